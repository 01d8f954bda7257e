// Histograms in log bins that cover different magnitudes are drawn on one axis.
import { describe, expect, it } from "vitest";
import { alignLog } from "../src/charts/align.ts";
import { binAxis } from "../src/charts/bins.ts";
import type { HistogramData } from "../src/data/wire.ts";
import { makeHistogram } from "./helpers.ts";

/** As it is stored: bins of half an octave from 2^low to 2^high in both signs; every bin counts its own place from zero. */
function stored(low: number, high: number): HistogramData {
  const sizes = Array.from({ length: 2 * (high - low) + 1 }, (_, i) => 2 ** (low + i / 2));
  const edges = Float64Array.from([...sizes.map((size) => -size).reverse(), ...sizes]);
  const counts = Float64Array.from({ length: edges.length - 1 }, (_, i) => i + 1);
  return { ...makeHistogram("GradHist1d", 1), shape: [counts.length], edges, counts };
}

/** What is in the bin that holds a value. */
const at = ({ edges, counts }: HistogramData, value: number) =>
  counts[edges.findIndex((edge, i) => value >= edge && value < edges[i + 1])];

describe("log bins of different magnitudes", () => {
  const [fine, coarse] = [stored(-40, -24), stored(-8, 0)];
  const [a, b] = alignLog([fine, coarse]);

  it("get the same edges, which are log bins again", () => {
    expect(a.edges).toBe(b.edges);
    expect(binAxis(a.edges)).toMatchObject({ log: true, zero: 80 });
    expect(a.edges[81]).toBeCloseTo(2 ** -40, 20);
    expect(a.edges.at(-1)).toBeCloseTo(1);
  });

  it("keep every count at its magnitude and sign, and nothing is lost", () => {
    for (const [before, after] of [
      [fine, a],
      [coarse, b],
    ]) {
      expect(after.counts.reduce((x, y) => x + y)).toBe(before.counts.reduce((x, y) => x + y));
      for (const size of [2 ** -39.9, 2 ** -30.2, 2 ** -24.1, 2 ** -7.7, 2 ** -3.1, 2 ** -0.2])
        for (const value of [size, -size]) {
          const inside = Math.abs(value) > before.edges[before.counts.length / 2 + 0.5];
          const known = inside && Math.abs(value) < (before.edges.at(-1) as number);
          expect(at(after, value), `${value}`).toBe(known ? at(before, value) : 0);
        }
      expect(at(after, 0)).toBe(at(before, 0));
    }
  });

  it("are left alone where they are alike, even, or of another kind", () => {
    const even = makeHistogram("GradHist1d", 1);
    expect(alignLog([fine, even])).toEqual([fine, even]);
    expect(alignLog([fine])).toEqual([fine]);
    expect(alignLog([])).toEqual([]);
    expect(alignLog([fine, stored(-40, -24)])[0].counts).toEqual(fine.counts);
  });

  it("are the same objects again, so that what was drawn of them is remembered", () => {
    expect(alignLog([fine, coarse])[0]).toBe(a);
  });
});
