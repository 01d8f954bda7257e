import { describe, expect, it } from "vitest";
import { RunStore, Store } from "../src/data/store.ts";
import type { Batch } from "../src/data/wire.ts";
import { makeBatch, makeFit, seeded } from "./helpers.ts";

/** Everything that panels can see of a run, as plain data. */
function snapshot(store: Store) {
  return [...store.runs.values()].map((run) => ({
    run: run.run,
    rows: Array.from(run.rows.seq.slice(0, run.rows.n)),
    steps: Array.from(run.rows.columns[0].slice(0, run.rows.n)),
    columns: [...run.columns]
      .flatMap(([name, layers]) =>
        [...layers].map(([layer, table]) => [
          name,
          layer,
          Array.from(table.seq.slice(0, table.n)),
          Array.from(table.columns[0].slice(0, table.n)),
        ]),
      )
      .sort(),
    alphas: run.alphas,
    warnings: run.warnings,
    state: run.status,
    loss: Array.from(run.series("Loss", "", "step").y.slice(0, run.series("Loss", "", "step").n)),
  }));
}

function shuffled<T>(items: T[], random: () => number): T[] {
  const copy = [...items];
  for (let i = copy.length - 1; i > 0; i--) {
    const j = Math.floor(random() * (i + 1));
    [copy[i], copy[j]] = [copy[j], copy[i]];
  }
  return copy;
}

/** A run of `total` records cut into deltas at random places. */
function cut(total: number, random: () => number, value?: (seq: number) => number): Batch[] {
  const batches: Batch[] = [];
  for (let from = 0; from < total; ) {
    const to = Math.min(total, from + 1 + Math.floor(random() * 9));
    batches.push({ ...makeBatch({ from, to, value }), replace: false });
    from = to;
  }
  return batches;
}

function fill(batches: Batch[]): Store {
  const store = new Store();
  for (const batch of batches) store.merge(batch);
  return store;
}

describe("the store", () => {
  it("ends in the same state whatever the order, with messages twice", () => {
    for (let seed = 1; seed <= 25; seed++) {
      const random = seeded(seed);
      const batches = cut(60, random);
      const again = batches.filter(() => random() < 0.4);
      expect(snapshot(fill(shuffled([...batches, ...again], random)))).toEqual(snapshot(fill(batches)));
    }
  });

  it("heals lost messages with the next keyframe", () => {
    for (let seed = 1; seed <= 40; seed++) {
      const random = seeded(seed);
      const batches = cut(60, random);
      const kept = batches.filter(() => random() < 0.5);
      const keyframe = makeBatch({ to: 60 });
      expect(snapshot(fill(shuffled([...kept, keyframe], random)))).toEqual(snapshot(fill([keyframe])));
    }
  });

  it("forgets what a resumed run replaces, also when an old message comes late", () => {
    const before = cut(40, seeded(3), () => 1);
    // At record 40 the run went back to step 25; from there on steps are seq - 15.
    const after = makeBatch({ from: 40, to: 60, value: () => 2, change: { drop_from_step: 25 } });
    after.step = after.seq.map((seq) => seq - 15);
    after.alphas = Array.from(after.step, (step) => makeFit(step, 0.5));
    for (let seed = 1; seed <= 30; seed++) {
      const store = fill(shuffled([...before, after], seeded(seed)));
      const loss = (store.runs.get("a") as RunStore).series("Loss", "", "step");
      expect(Array.from(loss.step.slice(0, loss.n))).toEqual(Array.from({ length: 45 }, (_, i) => i));
      expect(Array.from(loss.y.slice(0, loss.n))).toEqual(Array.from({ length: 45 }, (_, i) => (i < 25 ? 1 : 2)));
      expect(store.runs.get("a")?.alphas.filter((fit) => fit.alpha === 0.5)).toHaveLength(20);
    }
  });

  it("drops rows that a whole copy of the run no longer has", () => {
    const store = fill([makeBatch({ to: 20 })]);
    const shorter = makeBatch({ to: 20 });
    const keep = (seq: number) => seq < 10;
    shorter.seq = shorter.seq.filter(keep);
    shorter.step = shorter.step.slice(0, 10);
    shorter.time = shorter.wall_time = shorter.time.slice(0, 10);
    shorter.epoch = null;
    for (const column of shorter.columns) {
      column.seq = shorter.seq;
      column.values = column.values.slice(0, 10);
    }
    store.merge(shorter);
    expect(store.runs.get("a")?.rows.n).toBe(10);
    expect(store.runs.get("a")?.series("Loss", "", "step").n).toBe(10);
  });

  it("keeps detail when a thinned keyframe arrives", () => {
    const thinned = makeBatch({ to: 50 });
    for (const column of thinned.columns) {
      column.decimated = true;
      column.seq = column.seq.filter((seq) => seq % 10 === 0);
      column.values = column.values.filter((_, i) => i % 10 === 0);
    }
    thinned.seq = thinned.seq.filter((seq) => seq % 10 === 0);
    thinned.step = thinned.seq.slice();
    thinned.time = thinned.wall_time = Float64Array.from(thinned.seq, (seq) => seq * 0.1);
    thinned.epoch = null;
    const full = makeBatch({ to: 50 });
    expect(fill([full, thinned]).runs.get("a")?.series("Loss", "", "step").n).toBe(50);
    expect(fill([thinned, full]).runs.get("a")?.series("Loss", "", "step").n).toBe(50);
  });

  it("starts anew when the run has another id, and ignores stragglers of the old one", () => {
    const store = fill([makeBatch({ to: 30 }), makeBatch({ run_id: "2", to: 5 }), makeBatch({ from: 30, to: 40 })]);
    expect(store.runs.get("a")?.run_id).toBe("2");
    expect(store.runs.get("a")?.rows.n).toBe(5);
  });

  it("takes NaN and infinities for values, and an absent one for none", () => {
    const values = [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, 3];
    const store = fill([makeBatch({ to: 4, value: (seq) => values[seq] })]);
    const loss = store.runs.get("a")?.series("Loss", "", "step");
    expect(Array.from(loss?.y.slice(0, 4) ?? [])).toEqual(values);
    expect(store.runs.get("a")?.series("Nothing", "", "step").n).toBe(0);
  });

  it("gives a logged row without an epoch the epoch of the row before", () => {
    const batch = makeBatch({ to: 4 });
    batch.epoch = Float64Array.from([0, 0.5, Number.NaN, 1]);
    const loss = fill([batch]).runs.get("a")?.series("Loss", "", "epoch");
    expect(Array.from(loss?.x.slice(0, 4) ?? [])).toEqual([0, 0.5, 0.5, 1]);
  });

  it("keeps memory bounded over an hour of live histograms", () => {
    const run = new RunStore("a", "1");
    for (let step = 0; step < 6_000; step++) {
      const counts = new Float64Array(2000);
      run.keepHistogram("GradHist2d", step, "", { ...makeHistogramShape(counts), step });
    }
    expect(run.histograms.size * 2000).toBeLessThanOrEqual(6_000_000);
    expect(run.histogram("GradHist2d", 5_999, "")).toBeTruthy();
  });
});

function makeHistogramShape(counts: Float64Array) {
  return {
    ...{ quantity: "GradHist2d", step: 0, layer: "", shape: [40, 50], counts, edges: new Float64Array(41) },
    ...{
      parameter_edges: null,
      nan: 0,
      pos_inf: 0,
      neg_inf: 0,
      below: 0,
      above: 0,
      parameter_below: 0,
      parameter_above: 0,
    },
  };
}
