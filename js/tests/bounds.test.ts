import { describe, expect, it } from "vitest";
import { RunStore, Store } from "../src/data/store.ts";
import { Table } from "../src/data/table.ts";
import { chooseKept, countBytes, thinPast } from "../src/data/thin.ts";
import type { Batch } from "../src/data/wire.ts";
import { makeBatch, makeFit, makeHistogram, seeded } from "./helpers.ts";

const names = ["Loss", "GradNorm", "Distance"];
const part = (from: number, to: number, value: (seq: number, name: string) => number, change: Partial<Batch> = {}) =>
  makeBatch({ from, to, value, names, layers: [], change: { replace: false, ...change } });

/** A long stream into a store with small limits; the most bytes that were ever held. */
function stream(run: RunStore, records: number, value: (seq: number, name: string) => number): number {
  let most = 0;
  for (let from = 0; from < records; from += 50) {
    run.merge(part(from, Math.min(records, from + 50), value));
    most = Math.max(most, countBytes(run));
  }
  return most;
}

const small = () => Object.assign(new RunStore("a", "1"), { limits: { bytes: 200_000, fits: 800, notices: 40 } });
const columnOf = (run: RunStore, name: string) => run.columns.get(name)?.get("") as Table;

describe("a run without end", () => {
  it("stays below its limit, however long it is", () => {
    const random = seeded(1);
    const run = small();
    expect(stream(run, 30_000, () => random())).toBeLessThan(220_000);
    expect(run.fits.n).toBeLessThanOrEqual(850);
    expect(run.decimated).toEqual(new Set([...names, "Alpha"]));
    const held = [run.rows, run.topSamples, columnOf(run, "Loss")];
    for (const table of held) expect(table.seq.length).toBeLessThan(3 * table.n + 64); // the room was given back
  });

  it("keeps the newest records whole, every value exact, and no peak lost", () => {
    const random = seeded(2);
    const values = Float64Array.from({ length: 30_000 }, () => random());
    values[1234] = 1000;
    values[20_001] = -1000;
    values[7777] = Number.NaN;
    const run = small();
    stream(run, values.length, (seq, name) => (name === "Loss" ? values[seq] : seq));
    const { seq, n, columns } = columnOf(run, "Loss");
    for (let i = 0; i < n; i++) expect(Object.is(columns[0][i], values[seq[i]])).toBe(true);
    const kept = new Set(seq.subarray(0, n));
    for (const record of [1234, 20_001, 7777]) expect(kept.has(record)).toBe(true);
    for (let record = 29_900; record < 30_000; record++) expect(kept.has(record)).toBe(true);
    const loss = run.series("Loss", "", "step");
    expect(loss.n).toBe(n);
    expect(loss.at(1234)?.value).toBe(1000);
    expect(loss.at(29_999)).toEqual({ index: n - 1, step: 29_999, value: values[29_999] });
    expect(run.rows.seq[0]).toBe(0);
  });

  it("thins to the same past in whatever order the messages came", () => {
    const value = (seq: number, name: string) => Math.sin(seq * 1.7 + name.length) * (seq % 97);
    const batches = Array.from({ length: 60 }, (_, i) => part(i * 50, i * 50 + 50, value));
    const random = seeded(5);
    const past = (order: Batch[]) => {
      const run = new RunStore("a", "1");
      for (const batch of order) run.merge(batch);
      thinPast(run, 100_000);
      thinPast(run, 100_000);
      return [run.rows, columnOf(run, "Loss")].map(({ seq, n }) => Array.from(seq.subarray(0, n)));
    };
    const shuffled = [...batches, ...batches.slice(0, 20)].sort(() => random() - 0.5);
    expect(past(shuffled)).toEqual(past(batches));
    expect(past(batches)[1].length).toBeLessThan(2000);
  });

  it("thins a stretch that was thinned finer before to the same values", () => {
    const random = seeded(9);
    const make = () => {
      const table = new Table(1);
      const seq = Uint32Array.from({ length: 4096 }, (_, i) => i);
      table.upsert(seq, [values]);
      return table;
    };
    const values = Float64Array.from({ length: 4096 }, () => (random() < 0.01 ? Number.NaN : random()));
    const thin = (table: Table, power: number) => {
      const kept = chooseKept(table, table.n, power);
      table.filter((_, i) => kept[i] === 1);
    };
    const [twice, once] = [make(), make()];
    thin(twice, 4);
    thin(twice, 7);
    thin(once, 7);
    expect(Array.from(twice.seq.subarray(0, twice.n))).toEqual(Array.from(once.seq.subarray(0, once.n)));
    expect(once.n).toBeLessThanOrEqual(3 * 32);
  });

  it("takes back in what was thinned, when it is asked for again", () => {
    const run = small();
    const value = (seq: number) => seq % 13;
    stream(run, 30_000, value);
    const thinnings = run.thinnings;
    run.merge(part(4096, 4296, value));
    if (run.thinnings > thinnings) run.merge(part(4096, 4296, value)); // it was thinned at once; whoever looks asks again
    const { seq, n } = columnOf(run, "Loss");
    expect(Array.from(seq.subarray(0, n)).filter((own) => own >= 4096 && own < 4296)).toHaveLength(200);
    expect(run.thinnings).toBeLessThanOrEqual(thinnings + 1); // then there is room for it
  });

  it("bounds warnings, keeping the first and the newest, and counts what it left out", () => {
    const run = small();
    for (let step = 0; step < 500; step++)
      run.merge(
        part(step, step + 1, () => 1, { warnings: [{ step, kind: "error", quantity: "", layer: "", message: "!" }] }),
      );
    const steps = run.warnings.map((warning) => warning.step);
    expect(steps.length).toBeLessThanOrEqual(40);
    expect([steps[0], steps.at(-1)]).toEqual([0, 499]);
    expect(steps.length + run.noticesLost).toBe(500);
  });
});

describe("what a run takes", () => {
  it("holds each value once: a curve borrows it, and its smoothed and shown forms borrow the places", () => {
    const store = new Store();
    store.merge(part(0, 2000, (seq) => seq));
    const run = store.runs.get("a") as RunStore;
    const loss = run.series("Loss", "", "step");
    expect(loss.y).toBe(columnOf(run, "Loss").columns[0]);
    expect(loss.x).toBe(loss.step);
  });

  it("has room for a quarter more than it holds, not for as much again", () => {
    const run = new RunStore("a", "1");
    for (let from = 0; from < 5000; from += 7) run.merge(part(from, from + 7, (seq) => seq));
    const { seq, n } = columnOf(run, "Loss");
    expect(seq.length / n).toBeLessThan(1.26);
    const loss = run.series("Loss", "", "time");
    expect(loss.x.length / loss.n).toBeLessThan(1.26);
  });

  it("remembers fits as they came, the ones without alpha and the ones that are not finite too", () => {
    const run = new RunStore("a", "1");
    const fits = [makeFit(3, 0.5), makeFit(4, null), { ...makeFit(5, Number.NaN), w2: Number.POSITIVE_INFINITY }];
    run.merge(part(0, 6, () => 1, { alphas: fits }));
    run.merge(part(0, 6, () => 1, { alphas: [fits[0]] }));
    expect(run.alphas).toEqual(fits);
    expect(run.alphaAt(4)).toEqual(fits[1]);
    expect(run.alphaAt(2)).toBeNull();
    expect(run.series("Alpha", "", "step").n).toBe(2);
  });

  it("knows the steps of its histograms without looking through them, and holds equal bins once", () => {
    const run = new RunStore("a", "1");
    for (const step of [30, 10, 20, 20]) run.keepHistogram("GradHist1d", step, "", makeHistogram("GradHist1d", step));
    run.keepHistogram("GradHist1d", 40, "", null);
    expect(run.cachedSteps("GradHist1d", "")).toEqual([10, 20, 30]);
    expect(run.histogram("GradHist1d", 40, "")).toBeNull();
    expect(run.histogram("GradHist1d", 10, "")?.edges).toBe(run.histogram("GradHist1d", 30, "")?.edges);
    expect(run.histogram("GradHist1d", 10, "")).toEqual(makeHistogram("GradHist1d", 10));
  });
});
