// Faults that users met, each with its story.
import { afterEach, describe, expect, it } from "vitest";
import { poolGrid } from "../src/charts/heatmap.ts";
import { poolLargest, stripMarks } from "../src/charts/histogram.ts";
import { brokenMarks } from "../src/charts/line.ts";
import { fileTitle } from "../src/contract/export.ts";
import { stepToAxis } from "../src/contract/navigation.ts";
import { allLayers } from "../src/contract/panel.ts";
import { defaults, type UiState } from "../src/contract/state.ts";
import type { Batch } from "../src/data/records.ts";
import { countColor } from "../src/draw/colors.ts";
import { makeScale } from "../src/draw/scale.ts";
import type { ImageMark, LineMark } from "../src/draw/scene.ts";
import { light } from "../src/draw/theme.ts";
import { curveReadings, withError } from "../src/panels/_curves.ts";
import { relativeGradients } from "../src/panels/grad_hist_layers.ts";
import { panels } from "../src/panels/index.ts";
import { describeStep } from "../src/view/scrubber.ts";
import { type Cockpit, makeBatch, makeHeader, makeHistogram, open } from "./helpers.ts";

let cockpit: Cockpit | null = null;
afterEach(() => {
  cockpit?.destroy();
  cockpit = null;
  document.body.replaceChildren();
});
const start = (batches: Batch[], state: Partial<UiState> = {}) => {
  cockpit = open(batches, { state: { ...defaults, ...state } });
  return cockpit;
};
const panel = (id: string) => panels.find((own) => own.id === id) as (typeof panels)[number];

describe("runs of unequal length", () => {
  const short = makeBatch({ run: "short", to: 62 });
  const long = makeBatch({ run: "long", run_id: "2", to: 84 });
  long.time = long.time.map((t) => 10 * t);

  it("have one playhead, at the step that the scrubber shows", () => {
    const ctx = start([short, long]).app.context();
    expect(ctx.step).toBe(83);
    const scene = panel("grad_norm").draw?.(ctx, { width: 400, height: 170 });
    const line = scene?.marks.find((m): m is LineMark => m.type === "line" && m.live === true);
    expect(line?.xs[0]).toBeCloseTo(scene?.frames[0].xscale.to(83) ?? 0);
  });

  it("tell epoch and time of the run that came so far", () => {
    const own = start([short, long], { axis: "time" });
    expect(describeStep(own.app.context())).toBe("step 83 · epoch 8.3 · 1:23");
    expect(stepToAxis(own.app.context(), 83)).toBeCloseTo(83);
    expect(stepToAxis(own.app.context(), 30)).toBeCloseTo(3); // both have it: the first
  });
});

describe("runs of different networks", () => {
  const layer = (name: string) => ({ name, shape: [10], size: 10, module: "Linear", method: "rule", reason: "" });
  const other = makeHeader({ layers: ["fc.weight", "head.weight"].map(layer) });
  const two = () => [makeBatch({ to: 9 }), makeBatch({ run: "b", run_id: "2", to: 9, change: { header: other } })];

  it("all have their tensors in the chooser and in the panel of layers", () => {
    const own = start(two());
    expect(allLayers(own.app.context())).toEqual(["conv.weight", "conv.bias", "fc.weight", "head.weight"]);
    expect([...own.element.querySelectorAll("option")].map((o) => o.value)).toContain("head.weight");
    const spots = panel("grad_hist_layers").draw?.(own.app.context(), { width: 400, height: 250 }).spots;
    expect(spots?.map((spot) => spot.layer)).toContain("head.weight");
  });

  it("a name is red only if the layer is slow in every run", () => {
    const batches = two().map((batch) => ({ ...batch, header: makeHeader() }));
    for (const column of batches[0].columns) if (column.layer === "conv.bias") column.values.fill(1e-9);
    const own = start(batches);
    const draw = () => panel("grad_hist_layers").draw?.(own.app.context(), { width: 600, height: 250 });
    const color = () => draw()?.marks.flatMap((m) => (m.type === "text" && m.text === "conv.bias" ? [m.color] : []))[0];
    expect(color()).toBe(light.quiet);
    expect(draw()?.spots.find((spot) => spot.layer === "conv.bias")?.hint).toContain("in a.");
    own.app.set({ runs: ["a"] });
    expect(color()).toBe(light.warn);
  });
});

describe("a chosen layer", () => {
  it("is never drawn beside values of the whole network", () => {
    const own = start([makeBatch({ to: 9 })], { layer: "fc.weight" });
    const ctx = own.app.context();
    const labels = panel("grad_norm")
      .readings(ctx)
      .map(({ label }) => label);
    expect(labels).toEqual(["before clipping fc.weight"]);
    expect(panel("grad_norm").note?.(ctx)).toContain("Not known per layer: as the optimizer saw it, largest sample.");
    expect(curveReadings(ctx, [{ name: "Loss", label: "loss" }])).toHaveLength(1);
  });
});

describe("layers that vanished", () => {
  it("count as slow also where the median layer vanished with them", () => {
    const names = Array.from({ length: 8 }, (_, i) => `${i}.weight`);
    const header = makeHeader({
      layers: names.map((name) => ({ name, shape: [10], size: 10, module: "Linear", method: "rule", reason: "" })),
    });
    const batch = makeBatch({ to: 3, layers: names, change: { header } });
    for (const column of batch.columns)
      if (column.layer) column.values.fill(10 ** (-11 + 1.5 * Number.parseInt(column.layer, 10)));
    const ctx = start([batch]).app.context();
    const slow = [...relativeGradients(ctx, ctx.runs[0])].filter(([, part]) => part < 1 / 30).map(([name]) => name);
    expect(slow).toEqual(names.slice(0, 5));
    expect(panel("grad_hist_layers").verdict?.(ctx, ctx.runs[0])?.text).not.toContain("∞");
  });

  it("are no biases before a BatchNorm, which takes them out in any network", () => {
    const modules = ["Conv2d", "Conv2d", "BatchNorm2d", "BatchNorm2d", "Linear", "Linear"];
    const names = ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"];
    const tensor = { shape: [10], size: 10, method: "rule", reason: "" };
    const header = makeHeader({ layers: names.map((name, i) => ({ ...tensor, name, module: modules[i] })) });
    const batch = makeBatch({ to: 3, layers: names, change: { header } });
    const words = (weak: string) => {
      for (const column of batch.columns) if (column.layer) column.values.fill(column.layer === weak ? 1e-9 : 1);
      const own = start([batch]);
      const ctx = own.app.context();
      const found = panel("grad_hist_layers").verdict?.(ctx, ctx.runs[0]);
      own.destroy();
      return found?.text ?? null;
    };
    expect(words("0.bias")).toBeNull();
    for (const weak of ["1.bias", "2.bias", "0.weight"]) expect(words(weak)).toContain(weak);
  });

  it("without any gradient are said to have none, not an infinity", () => {
    const batch = makeBatch({ to: 3 });
    for (const column of batch.columns) if (column.layer === "conv.bias") column.values.fill(0);
    const ctx = start([batch]).app.context();
    expect(panel("grad_hist_layers").verdict?.(ctx, ctx.runs[0])?.text).toBe("No gradient: conv.bias.");
  });
});

describe("a picture with fewer pixels than bins", () => {
  it("keeps the largest bin of each pixel: a needle among a hundred is not lost", () => {
    const counts = new Float64Array(100);
    counts[49] = 1.1e6;
    for (const size of [1, 7, 50, 99, 100, 300]) expect(Math.max(...poolLargest(counts, size))).toBe(1.1e6);
    const edges = Float64Array.from({ length: 101 }, (_, i) => i / 50 - 1);
    const histogram = { ...makeHistogram("GradHist1d", 3), shape: [100], counts, edges };
    const box = { x: 0, y: 0, width: 60, height: 50 };
    const marks = stripMarks([{ x: 0, histogram }], box, makeScale("linear", [0, 1], [0, 60]), light);
    const image = marks.find((mark): mark is ImageMark => mark.type === "image");
    expect([image?.rows, image?.columns]).toEqual([50, 60]);
    const pixels = Array.from(image?.rgba ?? []);
    const bright = countColor(1);
    expect(pixels.some((_, i) => i % 4 === 0 && bright.every((c, k) => pixels[i + k] === c))).toBe(true);
  });

  it("does so in two dimensions", () => {
    const counts = new Float64Array(100 * 50);
    counts[4321] = 9;
    const pooled = poolGrid({ counts, shape: [100, 50] }, { x: 0, y: 0, width: 20.5, height: 33 });
    expect(pooled.shape).toEqual([33, 20]);
    expect([...pooled.counts].filter(Boolean)).toEqual([9]);
  });
});

describe("values that are not finite", () => {
  it("are all marked, however many: crosses, and bars from cross to cross", () => {
    const box = { x: 0, y: 0, width: 1000, height: 100 };
    const marks = brokenMarks([...Array.from({ length: 900 }, (_, i) => i), 950], box, "#ff0000");
    const bars = marks.flatMap((mark) => (mark.type === "rect" ? [[mark.x, mark.width]] : []));
    expect(bars).toEqual([[0, 899]]);
    expect(marks).toHaveLength(4);
  });
});

describe("words", () => {
  it("have no more precision than the number beside them", () => {
    expect(withError(2.31, 2e-6)).toBeUndefined();
    expect(withError(2.31, 0.04)).toBe("2.31 ± 0.04");
    expect(withError(2.31, 0.25)).toBe("2.31 ± 0.25");
    expect(withError(0.118, 0.17)).toBe("0.12 ± 0.17");
    expect(withError(-0.237, 0.35)).toBe("−0.24 ± 0.35");
    expect(withError(476, 770)).toBe("480 ± 770");
    expect(withError(0, 0.2)).toBe("0 ± 0.2");
    expect(withError(3000.4, 33377)).toBe("3,000 ± 33,000");
  });

  it("do not tell an angle that is no number", () => {
    const made = (angle: number) =>
      makeBatch({ to: 9, names: ["UpdateSize", "ParamNorm", "UpdateRatio/angle"], value: () => angle });
    const note = (angle: number) => panel("update_ratio").note?.(start([made(angle)]).app.context());
    expect(note(2)).toBe("A step turns the weights by 2°.");
    cockpit?.destroy();
    expect(note(Number.NaN)).toBe("");
  });

  it("beside the name of an axis have room", () => {
    const made = makeBatch({ to: 9, names: ["GradNorm"], value: (seq) => seq });
    const ctx = start([made]).app.context();
    const words = (width: number) =>
      panel("grad_norm")
        .draw?.(ctx, { width, height: 170 })
        .marks.flatMap((mark) => (mark.type === "text" && mark.text.includes("≤ 0") ? [mark.text] : []));
    expect(words(520)).toEqual(["1 value ≤ 0 not shown"]);
    expect(words(320)).toEqual(["1 ≤ 0 hidden"]);
  });

  it("say that top samples are places in the batch", () => {
    const ctx = start([makeBatch({ to: 9 })]).app.context();
    expect(panel("grad_norm").note?.(ctx)).toBe("Largest gradients: places 3, 1 in this batch (counted from 0).");
  });

  it("name a file by panel, run and step", () => {
    const ctx = start([makeBatch({ run: "lenet", to: 9 })], { step: 4 }).app.context();
    expect(fileTitle("Alpha", ctx)).toBe("Alpha lenet step 4");
  });
});

describe("the page", () => {
  it("smooths nothing unless asked", () => {
    expect(defaults.smoothing).toBe(0);
  });

  it("offers no pause for runs that ended", () => {
    const status = { state: "finished", error: "", last_wall_time: 0, records: 9, expected: 9, broken: 0 };
    const own = start([makeBatch({ to: 9, change: { status } })]);
    const pause = () => own.element.querySelector<HTMLElement>('[aria-label="Pause live updates"]');
    expect(pause()?.hidden).toBe(true);
    own.destroy();
    start([makeBatch({ to: 9 })]);
    expect(cockpit?.element.querySelector<HTMLElement>('[aria-label="Pause live updates"]')?.hidden).toBe(false);
  });

  it("lists panels in the View menu as they stand on the page", () => {
    const own = start([makeBatch({ to: 9 })]);
    const titles = own.app.panelTitles().map(({ id }) => id);
    const shown = [...own.element.querySelectorAll<HTMLElement>("[data-panel]")].map(({ dataset }) => dataset.panel);
    expect(titles).toEqual(shown);
  });

  it("shows colours in tips", async () => {
    const own = start([makeBatch({ to: 9 }), makeBatch({ run: "b", run_id: "2", to: 9 })]);
    own.app.hover(4);
    own.app.draw();
    const card = own.app.card("loss");
    const lines = card?.context ? card.describe(card.context) : [];
    expect(new Set(lines.map(({ color }) => color)).size).toBe(2);
  });
});
