// Data and hosts for the tests: Batches made by hand, fixtures made by Python, a source that records what is asked of it.
import { readFileSync } from "node:fs";
import { afterEach, vi } from "vitest";
import type { Source, SourceStatus } from "../src/data/source.ts";
import type { AlphaFit, Batch, Column, Header, HistogramData } from "../src/data/wire.ts";
import { type Mounted, mount, Store } from "../src/view/mount.ts";
import type { MountOptions } from "../src/view/options.ts";

/** Made by make_fixtures.py; the tests run from the root of the repository. */
export const fixture = (name: string): Uint8Array => new Uint8Array(readFileSync(`js/tests/fixtures/${name}.bin`));

/** Batches as the widget and the report get them: each behind its length. */
export function joinFrames(...batches: Uint8Array[]): Uint8Array {
  const out = new Uint8Array(batches.reduce((sum, batch) => sum + 4 + batch.length, 0));
  let at = 0;
  for (const batch of batches) {
    new DataView(out.buffer).setUint32(at, batch.length, true);
    out.set(batch, at + 4);
    at += 4 + batch.length;
  }
  return out;
}

/** A small generator of repeatable numbers from 0 to 1. */
export function seeded(seed: number): () => number {
  let state = seed >>> 0 || 1;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 4294967296;
  };
}

type Described = Omit<Header["quantities"][number], "schedule" | "options"> & { instrument: boolean };

/** What the Python classes say of themselves; written by scripts/quantity_tables.py. */
export const quantities: Described[] = JSON.parse(readFileSync("js/tests/fixtures/quantities.json", "utf8"));
const paper = quantities.filter((one) => !one.instrument);
const histograms = quantities.filter((one) => one.kind.startsWith("histogram")).map((one) => one.name);
/** What a run has beside its quantities: by-products, a quantity of the user's own, what was logged, costs, errors. */
const others = ["GradNormClipped", "TopSampleNorm", "LearningRate", "Custom"];
const named = ["log/valid_accuracy", "cost/shared", "cost/step", "error/HessMaxEV"];
export const scalarNames = [
  ...paper.filter((one) => one.kind === "scalar" && one.name !== "Time").map((one) => one.name),
  ...others,
  ...named,
];
export const layerNames = ["conv.weight", "conv.bias", "fc.weight"];

export function makeHeader(change: Partial<Header> = {}): Header {
  const own = others.map((name) => ({ name, kind: "scalar", unit: "", description: "", defined_for_sgd: false }));
  const told = [...paper.filter((one) => one.kind !== "parameters"), ...own];
  return {
    ...{ revision: 0, name: "run", created: 1.7e9, model: "Net", num_parameters: 1000, loss: "MSELoss" },
    layers: layerNames.map((name) => ({ name, shape: [10], size: 10, module: "Linear", method: "rule", reason: "" })),
    optimizers: [{ name: "SGD", groups: [{ lr: "0.1" }] }],
    ...{ config: "full", schedule: "every step", curvature: "hessian" },
    quantities: told.map((one) => ({ ...one, layerwise: true, schedule: "every step", options: {} })),
    ...{ versions: { torch: "2.13.0" }, git_commit: "abc", batch_size: 64, covered: 1, notes: [], options: {} },
    steps_per_epoch: 10,
    ...change,
  };
}

export function makeFit(step: number, alpha: number | null): AlphaFit {
  // A valley with its floor at distance 1 and depth 1: alpha = length - 1.
  const length = (alpha ?? 0) + 1;
  return {
    ...{ step, alpha, length, loss_start: 1, loss_end: (length - 1) ** 2, slope_start: -2, slope_end: 2 * length - 2 },
    ...{ loss_var_start: 0.04, loss_var_end: 0.04, slope_var_start: 0.1, slope_var_end: 0.1, w0: 1, w1: -2, w2: 1 },
  };
}

export function makeHistogram(quantity: string, step: number, layer = ""): HistogramData {
  const two = quantities.some((one) => one.name === quantity && one.kind === "histogram2d");
  const shape = two ? [4, 5] : [8];
  const cells = shape.reduce((a, b) => a * b);
  const edges = Float64Array.from({ length: shape[0] + 1 }, (_, i) => -1 + (2 * i) / shape[0]);
  return {
    ...{ quantity, step, layer, shape, edges, counts: Float64Array.from({ length: cells }, (_, i) => i) },
    parameter_edges: two ? Float64Array.from({ length: 6 }, (_, i) => -2 + (4 * i) / 5) : null,
    ...{ nan: 0, pos_inf: 0, neg_inf: 0, below: 1, above: 2, parameter_below: 0, parameter_above: 0 },
  };
}

export interface Shape {
  run?: string;
  run_id?: string;
  from?: number;
  to: number;
  value?: (seq: number, name: string) => number;
  names?: string[];
  layers?: string[];
  change?: Partial<Batch>;
}

/** Rows [from, to) with every name; the step is the seq unless changed. */
export function makeBatch({
  run = "a",
  run_id = "1",
  from = 0,
  to,
  value,
  names = scalarNames,
  layers = layerNames,
  change,
}: Shape): Batch {
  const count = to - from;
  const seq = Uint32Array.from({ length: count }, (_, i) => from + i);
  const of = value ?? ((s: number) => 1 + Math.sin(s / 7) ** 2);
  const column = (name: string, layer: string): Column => ({
    ...{ name, layer, seq, decimated: false },
    values: Float64Array.from(seq, (s) => of(s, name)),
  });
  return {
    ...{ run, run_id, from_seq: from, to_seq: to, replace: from === 0, drop_from_step: -1 },
    header: from === 0 ? makeHeader() : null,
    ...{ seq, step: seq.slice(), time: Float64Array.from(seq, (s) => s * 0.1) },
    wall_time: Float64Array.from(seq, (s) => 1.7e9 + s * 0.1),
    epoch: Float64Array.from(seq, (s) => s / 10),
    triggered: null,
    columns: [...names.map((name) => column(name, "")), ...layers.map((layer) => column("GradNorm", layer))],
    alphas: change?.alphas ?? Array.from(seq, (s) => makeFit(s, of(s, "Alpha") - 1.2)),
    warnings:
      from <= 2 && to > 2
        ? [{ step: 2, kind: "error", quantity: "Custom", layer: "fc.weight", message: "It broke." }]
        : [],
    findings: [],
    missing: [],
    top_samples: change?.top_samples ?? Array.from(seq, (s) => ({ seq: s, samples: [3, 1] })),
    heavy: histograms.map((quantity) => ({
      quantity,
      steps: Uint32Array.from(count ? [to - 1] : []),
    })),
    histograms: [],
    status: { state: "running", error: "", last_wall_time: 1.7e9 + to * 0.1, records: to, expected: to, broken: 0 },
    ...change,
  };
}

export class FakeSource implements Source {
  asked: unknown[][] = [];
  stopped = 0;
  detail?: Source["detail"];
  samples?: Source["samples"];
  onBatch: (bytes: Uint8Array) => void = () => {};
  onStatus: (status: SourceStatus) => void = () => {};
  start(onBatch: (bytes: Uint8Array) => void, onStatus: (status: SourceStatus) => void): void {
    this.onBatch = onBatch;
    this.onStatus = onStatus;
  }
  stop(): void {
    this.stopped++;
  }
  async histogram(...place: unknown[]): Promise<Uint8Array | null> {
    this.asked.push(["histogram", ...place]);
    return null;
  }
  async layers(...place: unknown[]): Promise<void> {
    this.asked.push(["layers", ...place]);
  }
}

export interface Cockpit extends Mounted {
  store: Store;
  source: FakeSource;
  element: HTMLElement;
  text(selector: string): string;
  card(id: string): HTMLElement;
}

/** An app in the page with these Batches, drawn once. */
export function open(batches: Batch[], options: MountOptions = {}): Cockpit {
  const store = options.store ?? new Store();
  const source = new FakeSource();
  const element = document.createElement("div");
  document.body.append(element);
  for (const batch of batches) {
    store.merge(batch);
    for (const quantity of histograms)
      for (const layer of ["", ...layerNames])
        if (batch.to_seq)
          store.runs
            .get(batch.run)
            ?.keepHistogram(quantity, batch.to_seq - 1, layer, makeHistogram(quantity, batch.to_seq - 1, layer));
  }
  const mounted = mount(element, source, { ...options, store });
  mounted.app.draw();
  return {
    ...mounted,
    ...{ store, source, element },
    text: (selector) => element.querySelector(selector)?.textContent ?? "",
    card: (id) => element.querySelector<HTMLElement>(`[data-panel="${id}"]`) as HTMLElement,
  };
}

/** `open` for the tests of one file: what it opened last is taken away after each of them. */
export function opener(): typeof open {
  let last: Cockpit | null = null;
  afterEach(() => {
    last?.destroy();
    last = null;
    document.body.replaceChildren();
    vi.useRealTimers();
  });
  return (batches, options) => {
    last = open(batches, options);
    return last;
  };
}

/** A value that differs for each record and each name. */
export const distinct = (seq: number, name: string) => seq + name.length / 100 + 1;

/** One run of 101 records of such values. */
export const startWith =
  (show: typeof open) =>
  (options: MountOptions = {}) =>
    show([makeBatch({ to: 101, value: distinct })], options);
