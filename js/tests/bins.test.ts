// Bins that are even in magnitude, by sign, with zero in a bin of its own.
import { describe, expect, it } from "vitest";
import { binAxis, findZeroBin, zeroShare } from "../src/charts/bins.ts";
import { heatmapScene } from "../src/charts/heatmap.ts";
import type { TextMark } from "../src/draw/scene.ts";
import { light } from "../src/draw/theme.ts";
import { makeHistogram } from "./helpers.ts";

/** 10^low to 10^high in `per` bins per decade on both sides, and what is between around 0. */
function logEdges(low: number, high: number, per: number): Float64Array {
  const side = Array.from({ length: (high - low) * per + 1 }, (_, i) => 10 ** (low + i / per));
  return Float64Array.from([...side.map((v) => -v).reverse(), ...side]);
}

describe("an axis of bins", () => {
  it.each([
    [-12, 2, 4],
    [-8, 0, 1],
    [-3, 3, 2],
  ])("from 1e%d to 1e%d with %d bins a decade is known as logarithmic", (low, high, per) => {
    const edges = logEdges(low, high, per);
    const axis = binAxis(edges);
    expect(axis.log).toBe(true);
    expect(axis.zero).toBe((high - low) * per);
    expect(axis.smallest).toBeCloseTo(10 ** low);
    const ticks = axis.ticks(7);
    expect(ticks.map(({ label }) => label)).toContain("0");
    expect(ticks.find(({ label }) => label === "0")?.share).toBeCloseTo(0.5);
    const shares = ticks.map(({ share }) => share);
    expect(shares).toEqual([...shares].sort((a, b) => a - b));
    expect(shares.every((share) => share >= 0 && share <= 1)).toBe(true);
  });

  it("puts a power of ten at the edge of its bin", () => {
    const edges = logEdges(-4, 0, 2); // 18 edges, 17 bins: 1e-2 is edge 9 + 4
    const tick = binAxis(edges)
      .ticks(9)
      .find(({ label }) => label === "0.01");
    expect(tick?.share).toBeCloseTo(13 / 17);
  });

  it("of one sign only is logarithmic, too", () => {
    const edges = Float64Array.from([0, ...Array.from({ length: 9 }, (_, i) => 10 ** (i - 8))]);
    expect(findZeroBin(edges)).toBe(0);
    expect(binAxis(edges).ticks(5)[0].label).toBe("0");
  });

  it("even in value is linear, whatever its range", () => {
    for (const [low, high, bins] of [
      [-2, 2, 100],
      [-1, 3, 8],
      [0, 1, 5],
      [-2, -1, 4],
      [-1, 1, 2],
      [-1, 1, 3],
    ]) {
      const edges = Float64Array.from({ length: bins + 1 }, (_, i) => low + ((high - low) * i) / bins);
      expect(binAxis(edges).log, String([low, high, bins])).toBe(false);
    }
    expect(binAxis(Float64Array.from([Number.NaN, 0, 1])).log).toBe(false);
  });

  it("tells the share of zeros, in one dimension and in two", () => {
    const edges = logEdges(-2, 0, 1); // 5 bins, the third around 0
    const axis = binAxis(edges);
    expect(zeroShare(Float64Array.from([1, 1, 6, 1, 1]), axis)).toBe(0.6);
    expect(zeroShare(Float64Array.from([1, 0, 0, 0, 3, 3, 0, 0, 1, 0]), axis, 2)).toBe(0.75);
  });

  it("is drawn so in the heat map, without a rim", () => {
    const edges = logEdges(-2, 0, 1);
    const histogram = { ...makeHistogram("GradHist2d", 1), shape: [5, 5], counts: new Float64Array(25), edges };
    histogram.parameter_edges = edges;
    const outer = { x: 0, y: 0, width: 300, height: 260 };
    const scene = heatmapScene({
      width: 300,
      height: 260,
      outer,
      theme: light,
      histogram,
      most: 1,
      color: "#000000",
      labels: true,
    });
    const texts = scene.marks.filter((mark): mark is TextMark => mark.type === "text").map(({ text }) => text);
    expect(texts.filter((text) => text === "0")).toHaveLength(2);
    expect(texts).toContain("−1");
    expect(scene.marks.some((mark) => "dash" in mark && mark.dash)).toBe(false);
  });
});
