import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { Context, Panel } from "../src/contract/panel.ts";
import type { Batch } from "../src/data/wire.ts";
import { decodeBatch } from "../src/data/wire.ts";
import { contrast } from "../src/draw/theme.ts";
import { panels } from "../src/panels/index.ts";
import { type Cockpit, fixture, makeBatch, open, scalarNames } from "./helpers.ts";

const nan = (seq: number) => [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, -1, 0][seq % 5];
const many = makeBatch({ to: 100_000, layers: ["fc.weight"] });
const data: Record<string, () => Batch[]> = {
  "no run": () => [],
  "a run without a record": () => [makeBatch({ to: 0 })],
  "one record": () => [makeBatch({ to: 1 })],
  "a run": () => [makeBatch({ to: 200 })],
  "two runs": () => [makeBatch({ to: 120 }), makeBatch({ run: "b", to: 80 })],
  "nothing but NaN and infinities": () => [makeBatch({ to: 40, value: nan })],
  "100,000 points": () => [many],
  "what Python wrote": () => [decodeBatch(fixture("lenet-sgd")), decodeBatch(fixture("lenet-sigmoid"))],
};

let cockpit: Cockpit | null = null;
interface Listener {
  target: EventTarget;
  signal?: AbortSignal;
  removed: boolean;
}
let listeners: Listener[] = [];

/** Whoever defines addEventListener for this object in this DOM. */
function owner(target: EventTarget): EventTarget {
  let own = target;
  while (!Object.hasOwn(own, "addEventListener")) own = Object.getPrototypeOf(own);
  return own;
}

beforeEach(async () => {
  await new Promise((resolve) => setTimeout(resolve)); // on a busy machine the reporter wants its turn
  listeners = [];
  for (const place of new Set(
    [document.createElement("div"), document, window, new AbortController().signal].map(owner),
  )) {
    const { addEventListener, removeEventListener } = place;
    vi.spyOn(place, "addEventListener").mockImplementation(function (this: EventTarget, type, act, options) {
      const signal = typeof options === "object" ? options?.signal : undefined;
      listeners.push({ target: this, signal, removed: false });
      return addEventListener.call(this, type, act, options);
    });
    vi.spyOn(place, "removeEventListener").mockImplementation(function (this: EventTarget, ...args) {
      for (const listener of listeners) if (listener.target === this) listener.removed = true;
      return removeEventListener.apply(this, args);
    });
  }
});

afterEach(() => {
  cockpit?.destroy();
  cockpit = null;
  vi.restoreAllMocks();
  document.body.replaceChildren();
});

/** Listeners on whatever outlives the cockpit that nobody took away. */
const leftovers = () =>
  listeners.filter(({ target, signal, removed }) => {
    if (target instanceof AbortSignal) return !target.aborted; // where this DOM keeps its own
    const outside = !(target instanceof Element) || target === document.body || document.contains(target);
    return outside && !removed && !signal?.aborted;
  });

/** Ten records more of the first run, and a picture of them. */
function grow({ store, app }: Cockpit): void {
  const [run] = store.runs.values();
  if (!run) return;
  const { run: name, run_id, to_seq } = run;
  store.merge(makeBatch({ run: name, run_id, from: to_seq, to: to_seq + 10 }));
  app.draw();
}

describe.each(Object.keys(data))("with %s", (kind) => {
  it.each(panels.map((panel) => panel.id))("the panel %s mounts, updates, resizes and is destroyed", (id) => {
    cockpit = open(data[kind](), { panels: [id] });
    const { app } = cockpit;
    const ctx = app.context();
    const panel = panels.find((own) => own.id === id);
    if (!panel?.shows(ctx)) {
      expect(cockpit.card(id)).toBeNull(); // a quantity that was not tracked leaves no hole
      return;
    }
    const card = cockpit.card(id);
    expect(card).toBeTruthy();
    expect(card.textContent).not.toContain("This panel failed");
    expect(card.textContent).not.toBe("");
    for (const size of [
      { width: 1200, height: 700 },
      { width: 150, height: 90 },
      { width: 20, height: 10 },
    ]) {
      const scene = panel.draw?.(ctx, size);
      for (const mark of scene?.marks ?? [])
        if (mark.type === "text") expect(Number.isFinite(mark.x) && Number.isFinite(mark.y)).toBe(true);
    }
    app.set({
      step: 0,
      xlog: true,
      yscale: "log",
      axis: "time",
      split: { [id]: true },
      layer: "fc.weight",
      difference: true,
    });
    app.draw();
    expect(card.textContent).not.toContain("This panel failed");
    expect(panel.csv(app.context()).split("\n").length).toBeGreaterThanOrEqual(1);
    expect(panel.help.join(" ").length).toBeGreaterThan(40);
    grow(cockpit);
    expect(card.textContent).not.toContain("This panel failed");
    app.card(id)?.tell();
    if (panel.draw) expect(card.querySelector(".ck-values caption")?.textContent).toContain(panel.title);
    cockpit.destroy();
    expect(leftovers()).toEqual([]);
    expect(cockpit.element.childNodes).toHaveLength(0);
  });
});

// Data for every name that a panel claims: a panel that is added is covered unasked, also what it says.
const heavyNames = ["Alpha", "GradHist1d", "GradHist2d"];
const claimed = panels.flatMap((panel) => panel.names).filter((name) => !heavyNames.includes(name));
const everything = (change: Partial<Parameters<typeof makeBatch>[0]>) => {
  const names = [...new Set([...scalarNames, ...claimed])];
  const batch = makeBatch({ to: 60, names, ...change });
  const known = batch.header?.quantities ?? [];
  const more = claimed.filter((name) => !known.some((own) => own.name === name));
  for (const name of more) known.push({ ...known[0], name, layerwise: true });
  return batch;
};
const kinds: Record<string, (seq: number) => number> = {
  "of ordinary values": (seq) => 1 + Math.sin(seq / 7) ** 2,
  "of tiny values": (seq) => 1e-6 * (1 + (seq % 3)),
  "of large values": (seq) => 1e6 * (1 + (seq % 3)),
  "of zeros": () => 0,
  "of NaN and infinities": nan,
};

function checkContract(panel: Panel, ctx: Context): void {
  expect(panel.shows(ctx), `the tests have no data for the panel ${panel.id}`).toBe(true);
  for (const { label, text } of [...panel.readings(ctx), ...(panel.details?.(ctx) ?? [])])
    expect(`${label} ${text ?? ""}`, panel.id).not.toMatch(/undefined|\[object/);
  for (const run of ctx.runs) {
    const verdict = panel.verdict?.(ctx, run);
    if (verdict) expect(verdict.text.length * verdict.short.length, panel.id).toBeGreaterThan(0);
  }
  expect(panel.note?.(ctx) ?? "", panel.id).not.toMatch(/undefined|NaN/);
  expect(panel.csv(ctx).endsWith("\n"), panel.id).toBe(true);
  for (const action of panel.actions?.(ctx) ?? []) expect(action.label, panel.id).toBeTruthy();
}

describe("the contract of panels", () => {
  it.each(Object.keys(kinds))("holds for runs %s: every one is shown, and nothing that it says fails", (kind) => {
    for (const runs of [["a"], ["a", "b", "c"]]) {
      const batches = runs.map((run) => everything({ run, run_id: run, value: kinds[kind] }));
      cockpit = open(batches, { panels: ["none is mounted"] });
      for (const state of [{}, { step: 3 }, { layer: "fc.weight", step: null }]) {
        cockpit.app.set(state);
        const ctx = cockpit.app.context();
        for (const panel of panels) if (runs.length > 1 || panel.shows(ctx)) checkContract(panel, ctx); // a table needs some
      }
      cockpit.destroy();
    }
  });

  it("notices a panel whose words fail, whatever it is called", () => {
    const fail = () => {
      throw new Error("no");
    };
    cockpit = open([everything({})], { panels: ["none is mounted"] });
    const ctx = cockpit.app.context();
    for (const part of ["verdict", "note", "readings", "csv"] as const)
      expect(() => checkContract({ ...panels[0], id: "unheard of", [part]: fail }, ctx), part).toThrow("no");
    expect(() => checkContract({ ...panels[0], shows: () => false }, ctx)).toThrow();
  });
});

describe.each(["light", "dark"] as const)("in the %s theme", (theme) => {
  it("all text in all panels meets contrast AA", () => {
    cockpit = open(data["what Python wrote"](), { theme });
    const { app } = cockpit;
    for (const runs of [["lenet-sgd"], ["lenet-sgd", "lenet-sigmoid"]]) {
      app.set({ runs });
      app.draw();
      const texts = panels.flatMap((panel) =>
        (panel.draw?.(app.context(), { width: 420, height: 320 }).marks ?? []).filter((mark) => mark.type === "text"),
      );
      expect(texts.length).toBeGreaterThan(100);
      for (const { text, color } of texts) expect(contrast(color, app.theme.card), text).toBeGreaterThanOrEqual(4.5);
    }
  });
});

describe("a panel", () => {
  it("leaves no listener, node or frame behind", () => {
    cockpit = open([makeBatch({ to: 50 })]);
    const { element } = cockpit;
    expect(element.querySelectorAll(".ck-card").length).toBeGreaterThan(15);
    expect(listeners.length).toBeGreaterThan(50);
    for (const button of element.querySelectorAll<HTMLButtonElement>(".ck-head button")) button.click();
    const store = cockpit.store;
    cockpit.destroy();
    expect(leftovers()).toEqual([]);
    expect(element.childNodes).toHaveLength(0);
    const draw = vi.spyOn(globalThis, "requestAnimationFrame");
    store.merge(makeBatch({ from: 50, to: 60 }));
    expect(draw).not.toHaveBeenCalled();
  });

  it("has a title that explains it and a menu that saves it", () => {
    cockpit = open([makeBatch({ to: 50 })]);
    for (const card of cockpit.element.querySelectorAll<HTMLElement>(".ck-card")) {
      card.querySelector<HTMLButtonElement>(".ck-title")?.click();
      expect(card.querySelector(".ck-help")?.textContent).toContain("How to read");
      card.querySelector<HTMLButtonElement>("button.ck-icon")?.click();
      expect(card.querySelector(".ck-menu")?.textContent).toContain("Save as CSV");
      expect(card.querySelector<HTMLElement>(".ck-help")?.hidden).toBe(true); // one is open at a time
    }
  });

  it("says what it waits for", () => {
    const batch = makeBatch({ to: 3, names: ["Loss"], layers: [], change: { alphas: [], heavy: [] } });
    cockpit = open([batch]);
    cockpit.app.draw();
    expect(cockpit.card("hess_trace").textContent).toContain("Waiting for the first HessTrace (measured every step).");
    expect(cockpit.card("alpha").textContent).toContain("Waiting for the first Alpha");
  });

  it("gives the reason where a quantity has no value", () => {
    const missing = [{ seq: 2, name: "HessTrace", reason: "the network has a layer without second derivatives" }];
    cockpit = open([makeBatch({ to: 3, names: ["Loss"], layers: [], change: { missing } })]);
    expect(cockpit.card("hess_trace").textContent).toContain("the network has a layer without second derivatives");
  });

  it("that fails says so and lets the others live", () => {
    cockpit = open([makeBatch({ to: 20 })]);
    const panel = panels.find((own) => own.id === "loss");
    vi.spyOn(panel as { draw: unknown } & object, "draw" as never).mockImplementation((() => {
      throw new Error("no luck");
    }) as never);
    cockpit.app.invalidate();
    cockpit.app.draw();
    expect(cockpit.card("loss").textContent).toContain("no luck");
    expect(cockpit.card("grad_norm").textContent).not.toContain("failed");
  });

  it("of a quantity that nobody knows shows up unasked, layer-wise if it has layers", () => {
    cockpit = open([makeBatch({ to: 20 })]);
    const card = cockpit.card("other:Custom");
    expect(card.textContent).toContain("Custom");
    const reading = card.querySelector<HTMLElement>(".ck-reading");
    expect(Number(reading?.dataset.value)).toBe(1 + Math.sin(19 / 7) ** 2);
    expect(cockpit.card("other:log/valid_accuracy").querySelector(".ck-title")?.textContent).toContain(
      "valid_accuracy",
    );
  });
});
