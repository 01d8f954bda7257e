import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { Painter, TextLayer } from "../src/draw/draw.ts";
import { emptyScene, type Mark, type Scene } from "../src/draw/scene.ts";
import { type Cockpit, makeBatch, open } from "./helpers.ts";

/** What every canvas of the page was told, in order. */
let calls: { canvas: HTMLCanvasElement; name: string; args: unknown[] }[] = [];
const named = (name: string) => calls.filter((call) => call.name === name);

beforeEach(() => {
  calls = [];
  vi.stubGlobal(
    "ImageData",
    class {
      constructor(
        readonly data: Uint8ClampedArray,
        readonly width: number,
        readonly height: number,
      ) {}
    },
  );
  vi.spyOn(HTMLCanvasElement.prototype, "getContext").mockImplementation(function (this: HTMLCanvasElement) {
    const recorder = new Proxy({} as Record<string, unknown>, {
      get: (own: Record<string, unknown>, name: string) =>
        own[name] ??
        ((...args: unknown[]) => {
          calls.push({ canvas: this, name, args });
          if (name === "createImageData") return { data: new Uint8ClampedArray(4 * Number(args[0]) * Number(args[1])) };
        }),
      set: (own: Record<string, unknown>, name: string, value) => {
        own[name] = value;
        return true;
      },
    });
    return recorder as never;
  });
});
afterEach(() => {
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
  document.body.replaceChildren();
});

const clip = { x: 10, y: 10, width: 80, height: 40 };
const curve = (ys: number[]): Mark => ({
  ...{ type: "line", curve: true, clip, stroke: "#ff0000" },
  xs: Float64Array.from(ys, (_, i) => 10 + i),
  ys: Float64Array.from(ys),
});
const grid: Mark = { type: "line", xs: [10, 90], ys: [30.5, 30.5], stroke: "#00ff00" };
const cursor = (x: number): Mark => ({ type: "line", live: true, xs: [x, x], ys: [10, 50], stroke: "#000000" });
const sceneOf = (...marks: Mark[]): Scene => ({ ...emptyScene(100, 60), marks });

describe("drawing", () => {
  it("draws nothing where nothing is new", () => {
    const painter = new Painter(document.createElement("canvas"));
    const line = curve([20, 30]);
    painter.draw(sceneOf(grid, line, cursor(20)), 1, "#ffffff");
    expect(calls.length).toBeGreaterThan(0);
    calls = [];
    painter.draw(sceneOf({ ...grid }, line, cursor(20)), 1, "#ffffff");
    expect(calls).toEqual([]);
  });

  it("draws what rests once while only the cursor moves, and everything when data is new", () => {
    const canvas = document.createElement("canvas");
    const painter = new Painter(canvas);
    const line = curve([20, 30]);
    painter.draw(sceneOf(grid, line, cursor(20)), 1, "#ffffff");
    expect(named("putImageData").map((call) => call.canvas)).toEqual([canvas]); // straight onto the page
    expect(named("drawImage")).toHaveLength(0);
    painter.draw(sceneOf(grid, line, cursor(21)), 1, "#ffffff"); // aside, then copied
    calls = [];
    for (const x of [22, 23, 24]) painter.draw(sceneOf(grid, line, cursor(x)), 1, "#ffffff");
    expect(named("putImageData")).toHaveLength(0);
    expect(named("drawImage")).toHaveLength(3);
    calls = [];
    painter.draw(sceneOf(grid, curve([20, 31]), cursor(24)), 1, "#ffffff");
    expect(named("putImageData")).toHaveLength(1);
    expect(named("drawImage")).toHaveLength(0);
  });

  it("puts curves over nothing but a grid as pixels that hold the grid, too", () => {
    new Painter(document.createElement("canvas")).draw(sceneOf(grid, curve([20.5, 20.5])), 1, "#ffffff");
    const [put] = named("putImageData");
    const [{ data, width }, left, top] = put.args as [ImageData, number, number];
    const at = (x: number, y: number) => Array.from(data.slice(4 * ((y - top) * width + x - left)).slice(0, 3));
    expect(at(60, 30)).toEqual([0, 255, 0]);
    expect(at(10, 20)).toEqual([255, 0, 0]);
    expect(at(60, 25)).toEqual([255, 255, 255]); // the ground: the canvas cannot be seen through
  });

  it("mixes curves in where something else lies below them, and nothing is wiped out", () => {
    const below: Mark = { type: "rect", x: 20, y: 20, width: 5, height: 5, fill: "#0000ff" };
    const canvas = document.createElement("canvas");
    new Painter(canvas).draw(sceneOf(grid, below, curve([20, 20])), 1, "#ffffff");
    expect(named("putImageData").some((call) => call.canvas === canvas)).toBe(false);
    expect(named("drawImage").filter((call) => call.canvas === canvas)).toHaveLength(1);
  });

  it("writes to a text only what changed in it", () => {
    const parent = document.createElement("div");
    const layer = new TextLayer(parent);
    const text = { type: "text", x: 5, y: 6, text: "10", color: "#333333" } as const;
    layer.update([text]);
    const span = parent.firstElementChild as HTMLElement;
    const touched: string[] = [];
    const style = new Proxy(span.style, {
      set: (own, name: string, value) => {
        touched.push(name);
        return Reflect.set(own, name, value, own);
      },
    });
    vi.spyOn(span, "style", "get").mockReturnValue(style);
    layer.update([{ ...text }]);
    expect(touched).toEqual([]);
    layer.update([{ ...text, x: 7 }]);
    expect(touched).toEqual(["left"]);
    expect(span.style.left).toBe("7px");
    layer.update([{ ...text, x: 7, anchor: "end", bold: true }]);
    expect(span.style.transform).toBe("translate(-100%, -50%)");
    expect(span.style.fontWeight).toBe("600");
  });
});

describe("the page", () => {
  let cockpit: Cockpit | null = null;
  afterEach(() => {
    cockpit?.destroy();
    cockpit = null;
    vi.useRealTimers();
  });

  it("touches neither a canvas nor an element when it is drawn again with nothing new", async () => {
    vi.useFakeTimers({ now: 5000 });
    cockpit = open([makeBatch({ to: 101 })]);
    cockpit.app.draw();
    const seen: MutationRecord[] = [];
    const observer = new MutationObserver((records) => seen.push(...records));
    observer.observe(cockpit.element, { subtree: true, childList: true, attributes: true, characterData: true });
    calls = [];
    cockpit.app.invalidate();
    cockpit.app.draw();
    seen.push(...observer.takeRecords());
    expect(calls).toEqual([]);
    expect(seen.map(({ target, attributeName }) => `${(target as Element).className} ${attributeName}`)).toEqual([]);
  });

  // A page whose picture takes so many milliseconds, by a clock that only moves when told to.
  const openSlow = (milliseconds: number) => {
    vi.useFakeTimers({ now: 5000 });
    cockpit = open([makeBatch({ to: 101 })]);
    const { app, store, text } = cockpit;
    let clock = performance.now();
    vi.spyOn(performance, "now").mockImplementation(() => clock);
    vi.spyOn(Object.getPrototypeOf(app.card("loss")), "update").mockImplementation(function (this: { dirty: boolean }) {
      this.dirty = false;
      if (this === app.card("loss")) clock += milliseconds;
    });
    const pass = (time: number) => {
      clock += time;
      vi.advanceTimersByTime(time);
    };
    return { app, store, pass, shown: () => text(".ck-where") };
  };

  it("rests for fourteen times what a picture took before it draws the next message, unless a hand asks", () => {
    const { app, store, shown, pass } = openSlow(20);
    pass(1000);
    store.merge(makeBatch({ from: 101, to: 102 }));
    pass(20);
    expect(shown()).toContain("step 101");
    store.merge(makeBatch({ from: 102, to: 103 }));
    pass(200);
    expect(shown()).toContain("step 101");
    pass(110);
    expect(shown()).toContain("step 102");
    app.set({ step: 7 });
    pass(20);
    expect(shown()).toContain("step 7");
  });

  it("does not rest when what was being loaded is there", () => {
    const { app, store, shown, pass } = openSlow(60);
    pass(1000);
    app.setStatus({ connection: "live", progress: 0.1 });
    store.merge(makeBatch({ from: 101, to: 102 }));
    pass(20);
    store.merge(makeBatch({ from: 102, to: 103 }));
    pass(20);
    expect(shown()).toContain("step 101");
    app.setStatus({ connection: "live", progress: 1 });
    pass(20);
    expect(shown()).toContain("step 102");
  });

  it("puts a live picture into words at once and then every three seconds, a hand's whenever it rests", () => {
    vi.useFakeTimers({ now: 5000 });
    cockpit = open([makeBatch({ to: 101 })]);
    const { app, store } = cockpit;
    vi.advanceTimersByTime(5000);
    const words = () => app.card("loss")?.element.querySelector(".ck-chart")?.getAttribute("aria-label") ?? "";
    expect(words()).toContain("at step 100:");
    const heard: string[] = [];
    for (let i = 101; i < 141; i++) {
      store.merge(makeBatch({ from: i, to: i + 1 }));
      vi.advanceTimersByTime(200);
      if (words() !== heard.at(-1)) heard.push(words());
    }
    expect(heard.length).toBeGreaterThanOrEqual(3);
    expect(heard.length).toBeLessThanOrEqual(5);
    app.set({ step: 7 });
    vi.advanceTimersByTime(200);
    app.set({ step: 8 });
    vi.advanceTimersByTime(250);
    expect(words()).not.toContain("at step 7:");
    vi.advanceTimersByTime(200);
    expect(words()).toContain("at step 8:");
  });

  it("draws a message in one frame when no hand waits, and a hand's wish in small portions", () => {
    let clock = 10_000;
    vi.spyOn(performance, "now").mockImplementation(() => clock);
    const frames: FrameRequestCallback[] = [];
    vi.stubGlobal("requestAnimationFrame", (act: FrameRequestCallback) => frames.push(act));
    cockpit = open([makeBatch({ to: 101 })]);
    const app = cockpit.app;
    const card = app.card("loss");
    if (!card) throw new Error("no card");
    vi.spyOn(Object.getPrototypeOf(card), "update").mockImplementation(function (this: { dirty: boolean }) {
      this.dirty = false;
      clock += 5; // each takes 5 ms
    });
    const pictures = (start: () => void) => {
      frames.length = 0;
      start();
      let count = 0;
      for (; frames.length; count++) frames.shift()?.(clock);
      return count;
    };
    clock += 5000;
    expect(pictures(() => cockpit?.store.merge(makeBatch({ from: 101, to: 102 })))).toBe(1);
    expect(pictures(() => app.set({ step: 5 }))).toBeGreaterThan(3);
  });
});
