// What every panel of the folder must stand: a panel that is added is covered unasked, also what it says.
import { afterEach, describe, expect, it } from "vitest";
import type { Context, Panel } from "../src/contract/panel.ts";
import type { Batch, Finding, HistogramData } from "../src/data/wire.ts";
import { decodeBatch } from "../src/data/wire.ts";
import { panels } from "../src/panels/index.ts";
import {
  type Cockpit,
  fixture,
  makeBatch,
  makeHeader,
  makeHistogram,
  open,
  quantities,
  scalarNames,
} from "./helpers.ts";

let cockpit: Cockpit | null = null;
afterEach(() => {
  cockpit?.destroy();
  cockpit = null;
  document.body.replaceChildren();
});

const size = { width: 420, height: 300 };
const nan = (seq: number) => [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, -1, 0][seq % 5];

/** Every name that a panel of the folder claims, whatever it is, and every quantity there is. */
const claimed = [...new Set([...panels.flatMap((panel) => panel.names), ...quantities.map((one) => one.name)])];
const scalars = [...new Set([...scalarNames, ...claimed.filter((name) => name !== "Alpha")])];
const optimizers = [
  { name: "SGD", groups: [{ lr: "0.1", momentum: "0.9" }] },
  { name: "Adam", groups: [{ lr: "0.001" }] },
  { name: "Mine", groups: [{ lr: "1" }] },
];

/** A table, a histogram, whatever: of some shape that one of the panels reads. */
function makeTable(quantity: string, step: number, columns: number, value: (seq: number) => number): HistogramData {
  const rows = columns === 6 ? 8 : columns - 1;
  const counts = Float64Array.from({ length: rows * columns }, (_, i) => (i % columns ? value(i) : i / columns));
  return { ...makeHistogram("GradHist1d", step), quantity, shape: [rows, columns], counts, edges: new Float64Array(0) };
}

const everything = (run: string, value: (seq: number) => number, change: Partial<Batch> = {}): Batch => {
  const header = makeHeader({ optimizers: [optimizers[run.charCodeAt(0) % 3]], options: { budget: "0.1", seed: run } });
  for (const name of claimed)
    if (!header.quantities.some((own) => own.name === name))
      header.quantities.push({ ...header.quantities[0], name, layerwise: true });
  const heavy = claimed.map((quantity) => ({ quantity, steps: Uint32Array.from([59]) }));
  return makeBatch({ run, run_id: run, to: 60, names: scalars, value, change: { header, heavy, ...change } });
};

/** Tables of both shapes for whatever is claimed: a panel takes what it can read, and leaves the rest alone. */
function addTables({ store }: Cockpit, value: (seq: number) => number): void {
  for (const run of store.runs.values())
    for (const [i, name] of claimed.entries())
      if (run.histogram(name, 59, "") === undefined)
        run.keepHistogram(name, 59, "", makeTable(name, 59, name === "HardSamples" || i % 2 ? 6 : 4, value));
}

const finding: Finding = {
  ...{
    name: "not_learning",
    severity: "broken",
    text: "Not learning.",
    since: 3,
    layers: ["fc.weight"],
    remedy: "Less.",
  },
  evidence: claimed.slice(0, 5).map((name) => ({
    ...{ name, value: 1, low: 0, high: 2, unit: "", step: 3, layer: "", text: "" },
  })),
  ...{ confidence: 1, explains: [], retracted: false, step: 3 },
};

const kinds: Record<string, { value: (seq: number) => number; change?: Partial<Batch> }> = {
  "healthy values": { value: (seq) => 0.2 + 0.1 * Math.sin(seq / 7) ** 2 },
  "ordinary values": { value: (seq) => 1 + Math.sin(seq / 7) ** 2 },
  "a finding": { value: (seq) => 1 + Math.sin(seq / 7) ** 2, change: { findings: [finding] } },
  "tiny values": { value: (seq) => 1e-6 * (1 + (seq % 3)) },
  "large values": { value: (seq) => 1e6 * (1 + (seq % 3)) },
  "values below zero": { value: (seq) => -1 - (seq % 3) },
  zeros: { value: () => 0 },
  "NaN and infinities": { value: nan },
};

/** Nothing that a panel says, counts or saves may fail. */
function checkWords(panel: Panel, ctx: Context): void {
  for (const { label, text } of [...panel.readings(ctx), ...(panel.details?.(ctx) ?? [])])
    expect(`${label} ${text ?? ""}`, panel.id).not.toMatch(/undefined|\[object/);
  for (const run of ctx.runs) {
    const verdict = panel.verdict?.(ctx, run);
    if (verdict) expect(verdict.text.length * verdict.short.length, panel.id).toBeGreaterThan(0);
    expect(`${verdict?.text} ${verdict?.short}`.replace("undefined undefined", ""), panel.id).not.toMatch(/undefined/);
  }
  expect(panel.note?.(ctx) ?? "", panel.id).not.toMatch(/undefined|NaN/);
  expect(panel.csv(ctx).endsWith("\n"), panel.id).toBe(true);
  for (const action of panel.actions?.(ctx) ?? []) expect(action.label, panel.id).toBeTruthy();
  panel.draw?.(ctx, size);
  panel.fill?.(ctx, document.createElement("div"));
}

const show = (batches: Batch[]) => open(batches, { panels: ["none is mounted"] });

describe("the contract of panels", () => {
  it.each(Object.keys(kinds))("holds for runs with %s: every one is shown, and nothing that it says fails", (kind) => {
    const { value, change } = kinds[kind];
    for (const runs of [["a"], ["a", "b", "c"]]) {
      cockpit = show(runs.map((run) => everything(run, value, change)));
      addTables(cockpit, value);
      for (const state of [{}, { step: 3 }, { layer: "fc.weight", step: null }]) {
        cockpit.app.set(state);
        const ctx = cockpit.app.context();
        for (const panel of panels) {
          if (runs.length > 1) expect(panel.shows(ctx), `the tests have no data for the panel ${panel.id}`).toBe(true);
          checkWords(panel, ctx);
        }
      }
      cockpit.destroy();
    }
  });

  const others: Record<string, () => Batch[]> = {
    "no run": () => [],
    "a run without a record": () => [makeBatch({ to: 0 })],
    "a run without a header": () => [makeBatch({ to: 9, change: { header: null } })],
    "one record": () => [everything("a", () => 1), makeBatch({ run: "b", to: 1 })],
    "synthetic runs, healthy, sick and with all quantities": () =>
      ["lenet-sgd", "lenet-sigmoid", "everything"].map((name) => decodeBatch(fixture(name))),
  };
  it.each(Object.keys(others))("holds for %s", (kind) => {
    cockpit = show(others[kind]());
    const ctx = cockpit.app.context();
    for (const panel of panels) {
      panel.shows(ctx);
      checkWords(panel, ctx);
    }
  });

  it("is tried on all quantities that there are", () => {
    const { header } = decodeBatch(fixture("everything"));
    const written = new Set(header?.quantities.map((one) => one.name));
    const left = quantities.filter((one) => !written.has(one.name)).map((one) => one.name);
    expect(left, "run: python js/tests/make_fixtures.py").toEqual([]);
  });

  it("notices a panel whose words fail, whatever it is called", () => {
    const fail = () => {
      throw new Error("no");
    };
    cockpit = show([everything("a", () => 1)]);
    const ctx = cockpit.app.context();
    for (const part of ["verdict", "note", "readings", "csv", "details", "actions", "draw", "fill"] as const)
      expect(() => checkWords({ ...panels[0], id: "unheard of", [part]: fail }, ctx), part).toThrow("no");
  });
});
