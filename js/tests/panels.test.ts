import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { Store } from "../src/data/store.ts";
import type { Batch } from "../src/data/wire.ts";
import { decodeBatch } from "../src/data/wire.ts";
import { contrast } from "../src/draw/theme.ts";
import { panels } from "../src/panels/index.ts";
import { type Cockpit, fixture, makeBatch, open } from "./helpers.ts";

const nan = (seq: number) => [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, -1, 0][seq % 5];
const many = () => [makeBatch({ to: 30_000, layers: ["fc.weight"] })];
const largeStores = new Map<string, Store>(); // merging it takes longer than all that is done with it
const data: Record<string, () => Batch[]> = {
  "no run": () => [],
  "a run without a record": () => [makeBatch({ to: 0 })],
  "one record": () => [makeBatch({ to: 1 })],
  "a run": () => [makeBatch({ to: 200 })],
  "two runs": () => [makeBatch({ to: 120 }), makeBatch({ run: "b", to: 80 })],
  "nothing but NaN and infinities": () => [makeBatch({ to: 40, value: nan })],
  "30,000 points": many,
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
    const known = largeStores.get(kind);
    cockpit = known ? open([], { panels: [id], store: known }) : open(data[kind](), { panels: [id] });
    if (data[kind] === many) largeStores.set(kind, cockpit.store);
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
      const lost = scene?.marks.filter(
        (mark) => mark.type === "text" && !(Number.isFinite(mark.x) && Number.isFinite(mark.y)),
      );
      expect(lost ?? []).toEqual([]);
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
