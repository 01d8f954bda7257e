// Messages that were made to hurt, and numbers at the ends of floating point: refused or drawn, never a page that hangs.
import { create, toBinary } from "@bufbuild/protobuf";
import { zlibSync } from "fflate";
import { describe, expect, it, vi } from "vitest";
import { testsScene } from "../src/charts/tests.ts";
import { decodeBatch, decodeHistogram } from "../src/data/wire.ts";
import { makeScale, padDomain } from "../src/draw/scale.ts";
import { light } from "../src/draw/theme.ts";
import { ArraySchema, BatchSchema, Codec, ColumnSchema, DType, HistogramSchema } from "../src/gen/cockpit_pb.ts";
import { feed, Store } from "../src/view/mount.ts";

type ArrayInit = { dtype?: DType; shape: number[]; codec?: Codec; data: Uint8Array };
const makeArray = (init: ArrayInit) => create(ArraySchema, { dtype: DType.DTYPE_FLOAT64, ...init });
const doubles = (...values: number[]) =>
  makeArray({ shape: [values.length], data: new Uint8Array(Float64Array.from(values).buffer) });
const words = (...values: number[]) =>
  makeArray({
    dtype: DType.DTYPE_UINT32,
    shape: [values.length],
    data: new Uint8Array(Uint32Array.from(values).buffer),
  });
const zeros = (size: number) => zlibSync(new Uint8Array(size), { level: 9 });

function makeHistogram(counts: ArrayInit, edges = doubles(), across?: ReturnType<typeof doubles>): Uint8Array {
  return toBinary(
    HistogramSchema,
    create(HistogramSchema, { counts: makeArray(counts), edges, parameterEdges: across }),
  );
}

function makeBatch(change: object): Uint8Array {
  const rows = { seq: words(0, 1), step: words(0, 1), time: doubles(0, 1), wallTime: doubles(0, 1) };
  return toBinary(BatchSchema, create(BatchSchema, { run: "r", toSeq: 2, ...rows, ...change }));
}

describe("an array", () => {
  const size = 80_000_000;
  it.each<[string, ArrayInit]>([
    ["claims more than its bytes can hold", { shape: [size], codec: Codec.ZLIB, data: zeros(1000) }],
    ["claims less than it inflates to", { shape: [2], codec: Codec.ZLIB, data: zeros(1_000_000) }],
    ["has too many dimensions", { shape: Array(300_000).fill(2), data: new Uint8Array(8) }],
    ["is empty in one of very many", { shape: [0, ...Array(40).fill(2 ** 31)], data: new Uint8Array(0) }],
    ["is shorter than its shape", { shape: [3], data: new Uint8Array(16) }],
    ["has an unknown type", { dtype: 77 as DType, shape: [2], data: new Uint8Array(16) }],
    ["has an unknown codec", { codec: 3 as Codec, shape: [2], data: new Uint8Array(16) }],
  ])("that %s is refused at once", (_, init) => {
    const begun = performance.now();
    expect(() => decodeHistogram(makeHistogram(init))).toThrow();
    expect(performance.now() - begun).toBeLessThan(1000);
  });

  it("may be compressed, of every type", () => {
    for (const [dtype, item] of [
      [DType.DTYPE_UINT32, 4],
      [DType.DTYPE_UINT64, 8],
      [DType.DTYPE_UINT8, 1],
      [DType.DTYPE_FLOAT32, 4],
    ])
      for (const length of [0, 1, 500]) {
        const data = zlibSync(new Uint8Array(length * item).fill(1));
        const { counts } = decodeHistogram(makeHistogram({ dtype, shape: [length], codec: Codec.ZLIB, data }));
        expect(counts).toHaveLength(length);
        if (dtype === DType.DTYPE_UINT32 && length) expect(counts[0]).toBe(0x01010101);
      }
  });

  it("that is small takes its share of what one message may inflate to", () => {
    const part = { dtype: DType.DTYPE_UINT8, shape: [34_000_000], codec: Codec.ZLIB, data: zeros(34_000_000) };
    const histogram = create(HistogramSchema, { counts: makeArray(part) });
    expect(() => decodeBatch(makeBatch({ histograms: [histogram, histogram] }))).toThrow(/inflates/);
  });
});

describe("a message", () => {
  it("whose histogram and edges do not fit is refused", () => {
    const counts = { dtype: DType.DTYPE_UINT8, shape: [2, 3], data: new Uint8Array(6) };
    expect(decodeHistogram(makeHistogram(counts, doubles(0, 1, 2), doubles(0, 1, 2, 3))).shape).toEqual([2, 3]);
    expect(() => decodeHistogram(makeHistogram(counts, doubles(0, 1)))).toThrow(/edges/);
    expect(() => decodeHistogram(makeHistogram(counts, doubles(0, 1, 2), doubles(0)))).toThrow(/edges/);
  });

  it.each<[string, object]>([
    ["rows beyond its rows", { columns: [create(ColumnSchema, { rows: words(0, 7), values: doubles(1, 2) })] }],
    ["rows out of order", { columns: [create(ColumnSchema, { rows: words(1, 0), values: doubles(1, 2) })] }],
    ["records out of order", { seq: words(1, 0) }],
    ["records twice", { seq: words(1, 1) }],
    ["notes beyond its rows", { notes: [{ row: 2, missing: [{ name: "a", reason: "b" }] }] }],
    ["samples beyond its rows", { notes: [{ row: 2 ** 32 - 1, topSamples: [1] }] }],
  ])("with %s is refused, counted, and the store stays as it was", (_, change) => {
    vi.spyOn(console, "warn").mockImplementation(() => {});
    const store = new Store();
    feed(store, makeBatch({ columns: [create(ColumnSchema, { name: "Loss", values: doubles(1, 2) })] }));
    feed(store, makeBatch(change));
    expect(store.broken).toBe(1);
    expect(Array.from(store.runs.get("r")?.series("Loss", "", "step").y.slice(0, 2) ?? [])).toEqual([1, 2]);
  });

  it("whose state is the name of something else in JavaScript is not taken for it", () => {
    const store = new Store();
    for (const state of ["constructor", "__proto__", "finished"])
      feed(store, makeBatch({ status: { state, expected: 2 } }));
    expect(store.runs.get("r")?.status.state).toBe("finished");
  });
});

describe("an axis", () => {
  const odd = [5e-324, 1e-300, 1, 1e16, 1e16 + 2, 1e17, 1e17 + 16, 1e300, 1.7e308, Number.MAX_VALUE];
  it("ends, whatever the values", () => {
    for (const a of odd)
      for (const b of odd)
        for (const log of [true, false])
          for (const sign of log ? [1] : [1, -1]) {
            const domain = padDomain(Math.min(sign * a, b), Math.max(sign * a, b), log);
            expect(domain.every(Number.isFinite)).toBe(true);
            const scale = makeScale(log ? "log" : "linear", domain, [0, 100]);
            expect(scale.ticks(5).length).toBeLessThanOrEqual(200);
          }
    for (const domain of [
      [0, 1],
      [-1, 1],
      [Number.NEGATIVE_INFINITY, 1],
      [1, Number.POSITIVE_INFINITY],
      [0, Number.POSITIVE_INFINITY],
    ] as [number, number][])
      for (const kind of ["log", "linear", "log1p"] as const) makeScale(kind, domain, [0, 100]).ticks(5);
  });

  it("keeps its air and its ticks where values are ordinary", () => {
    expect(padDomain(1, 100, true).map((value) => Number(value.toFixed(4)))).toEqual([0.7943, 125.8925]);
    expect(padDomain(0, 10, false)).toEqual([0, 10.6]);
    expect(
      makeScale("linear", [0, 10], [0, 100])
        .ticks(5)
        .map(({ value }) => value),
    ).toEqual([0, 2, 4, 6, 8, 10]);
  });

  it("of the gradient tests ends too", () => {
    for (const value of odd) {
      const values = { norm: value, inner: value, ortho: value };
      const colors = { norm: "#000", inner: "#000", ortho: "#000" };
      const box = { x: 0, y: 0, width: 100, height: 100 };
      const scene = testsScene({ width: 100, height: 100 }, box, [{ values, colors }], light);
      expect(scene.marks.length).toBeLessThan(5000);
    }
  });
});
