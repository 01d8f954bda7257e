// Many runs, many layers, many warnings: everybody is shown or named, and nothing looks like something else.
import { afterEach, describe, expect, it, vi } from "vitest";
import { histogramOutline } from "../src/charts/histogram.ts";
import { tableScene } from "../src/charts/table.ts";
import { framedScene } from "../src/contract/export.ts";
import { defaults, type UiState } from "../src/contract/state.ts";
import { shortNames } from "../src/data/format.ts";
import type { Batch, Notice } from "../src/data/records.ts";
import { emptyScene, type TextMark } from "../src/draw/scene.ts";
import { dark, light, runColor, seriesColor } from "../src/draw/theme.ts";
import { countWords, groupWarnings } from "../src/judge/notices.ts";
import { histogramOf } from "../src/panels/grad_hist_2d.ts";
import { HistogramFetcher } from "../src/view/context.ts";
import { inWords, opinions } from "../src/view/verdicts.ts";
import { type Cockpit, makeBatch, makeFit, makeHeader, open } from "./helpers.ts";

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
const name = (i: number) => `run-${String.fromCharCode(97 + i)}`;
/** Mostly signal: with much noise in the gradient, alpha has no opinion. */
const signal = (seq: number, own: string) => (own === "NormTest" ? 0.3 : 1 + Math.sin(seq / 7) ** 2);
const runs = (count: number, change: (i: number) => Partial<Batch> = () => ({})) =>
  Array.from({ length: count }, (_, i) =>
    makeBatch({ run: name(i), run_id: String(i), to: 20, value: signal, change: { ...change(i) } }),
  );
const texts = (own: Cockpit, id: string) =>
  [...own.card(id).querySelectorAll(".ck-texts span")].map((span) => span.textContent);

describe("names of layers", () => {
  const layers = [0, 1].flatMap((i) =>
    ["self_attn.in_proj_weight", "self_attn.in_proj_bias", "linear1.weight", "linear2.weight", "norm1.bias"].map(
      (own) => `transformer.encoder.layers.${i}.${own}`,
    ),
  );

  it("stay whole where they fit", () => {
    expect([...shortNames(["conv1.weight", "fc.bias"], 12).values()]).toEqual(["conv1.weight", "fc.bias"]);
  });

  it("leave out what all begin with", () => {
    expect(shortNames(layers, 30).get(layers[2])).toBe("…0.linear1.weight");
  });

  it.each([8, 12, 18, 26, 40])("differ in %d letters, and keep to them", (length) => {
    const short = [...shortNames(layers, length).values()];
    expect(new Set(short).size).toBe(layers.length);
    for (const text of short) expect([...text].length).toBeLessThanOrEqual(length);
  });

  it("fall back to their number", () => {
    const alike = ["x".repeat(60), `${"x".repeat(59)}y`];
    expect([...shortNames(alike, 10).values()]).toEqual(["1 …xxxxxxx", "2 …xxxxxxy"]);
    expect(shortNames([], 10).size).toBe(0);
    expect([...shortNames(["a.\u202eb"], 10).values()]).toEqual(["a.·b"]);
  });

  it("are whole in the label and on hover of the small multiples, and in the chooser", () => {
    const header = makeHeader({
      layers: layers.map((own) => ({ ...makeHeader().layers[0], name: own })),
    });
    const own = start([makeBatch({ to: 20, change: { header } })]);
    own.store.runs.get("a")?.keepHistogram("GradHist1d", 19, layers[0], null);
    const options = [...own.element.querySelectorAll<HTMLOptionElement>('select[aria-label="Layer"] option')];
    expect(options.map((option) => option.value)).toEqual(["", ...layers]);
    expect(options.slice(1).map((option) => option.title)).toEqual(layers);
    expect(new Set(options.map((option) => option.textContent)).size).toBe(layers.length + 1);
  });
});

describe("with five runs", () => {
  it("every run has its heat map, its number and its opinion", () => {
    const own = start(runs(5));
    for (let i = 0; i < 5; i++) expect(texts(own, "grad_hist_2d")).toContain(name(i));
    for (const id of ["loss", "alpha", "grad_hist_1d", "grad_hist_2d", "hess_max_ev", "cost"]) {
      const shown = [...own.card(id).querySelectorAll<HTMLElement>(".ck-reading")];
      expect(
        shown.map((span) => span.dataset.run),
        id,
      ).toEqual([0, 1, 2, 3, 4].map(name));
    }
    expect(own.card("alpha").querySelectorAll(".ck-note .ck-swatch")).toHaveLength(5);
  });

  it("runs of one opinion stand together", () => {
    const wide = (i: number): Partial<Batch> =>
      i < 3 ? {} : { alphas: Array.from({ length: 20 }, (_, step) => makeFit(step, 1.5)) };
    const own = start(runs(5, wide));
    const panel = own.app.card("alpha")?.panel;
    if (!panel) throw new Error("no panel");
    const found = opinions(panel, own.app.context());
    expect(found.map((one) => [one.text, one.runs.map(({ run }) => run)])).toContainEqual([
      "high on the opposite wall",
      [name(3), name(4)],
    ]);
    expect(found.flatMap((one) => one.runs)).toHaveLength(5);
    expect(inWords(found, "", true)).toContain("run-d, run-e: high on the opposite wall.");
    expect(own.card("alpha").querySelector(".ck-note")?.getAttribute("title")).toContain("run-d, run-e: high");
  });
});

describe("with more runs than there is room for", () => {
  it("says which heat maps are shown, and how to see others", () => {
    const own = start(runs(8));
    expect(texts(own, "grad_hist_2d")).toContain(name(5));
    expect(texts(own, "grad_hist_2d")).not.toContain(name(6));
    for (const id of ["grad_hist_2d", "grad_hist_1d", "grad_hist_layers"])
      expect(own.card(id).querySelector(".ck-note")?.textContent).toContain("The first 6 of 8 chosen runs; hide some");
  });

  it("names the runs whose numbers do not fit", () => {
    const own = start(runs(14), { runs: Array.from({ length: 14 }, (_, i) => name(i)) });
    const shown = [...own.card("loss").querySelectorAll<HTMLElement>(".ck-reading")];
    expect(shown.map((span) => span.textContent)).toEqual([
      shown[0].textContent,
      `to ${shown[0].textContent}`,
      "14 runs",
    ]);
    for (let i = 0; i < 14; i++) expect(shown[2].title).toContain(name(i));
  });
});

describe("the head of a narrow card", () => {
  it("puts the numbers below the title, where they do not cut it", () => {
    const own = start([makeBatch({ to: 20 })]); // a card without a layout is taken as 320 pixels wide
    const below = (id: string) => own.card(id).querySelector(".ck-head")?.classList.contains("ck-below");
    expect(below("distance")).toBe(true);
    expect(below("loss")).toBe(false);
  });
});

describe("histograms", () => {
  it("of the chosen step are fetched before those of the past", async () => {
    const own = start(runs(1));
    const run = own.store.runs.get(name(0));
    if (!run) throw new Error("no run");
    own.source.asked = [];
    const fetcher = new HistogramFetcher(own.source, () => {});
    for (let step = 0; step < 8; step++) fetcher.get(run, "GradHist1d", step, "", true, true);
    fetcher.get(run, "GradHist2d", 7, "", true);
    fetcher.get(run, "GradHist1d", 7, "", true); // also asked for as a part of the past
    fetcher.endPicture();
    await vi.waitFor(() => expect(own.source.asked.length).toBeGreaterThan(8), { timeout: 8000 });
    const steps = own.source.asked.map(([, , quantity, step]) => `${quantity} ${step}`);
    expect(steps.slice(0, 2).sort()).toEqual(["GradHist1d 7", "GradHist2d 7"]);
    fetcher.stop();
  });

  it("of a layer that another network does not have are not asked for", () => {
    const header = makeHeader({ layers: [{ ...makeHeader().layers[0], name: "elsewhere.weight" }] });
    const own = start(
      runs(2, (i) => (i ? { header } : {})),
      { layer: "fc.weight", step: 3 },
    );
    const asked = own.app.context().runs.map((run) => histogramOf(own.app.context(), run, "GradHist1d"));
    expect(asked[0]).not.toBeNull();
    expect(asked[1]).toBeNull();
  });
});

describe("colours", () => {
  it("of twenty runs differ, in both palettes and themes", () => {
    for (const theme of [light, dark])
      for (const palette of ["tensorboard", "safe"] as const) {
        const colors = Array.from({ length: palette === "safe" ? 18 : 20 }, (_, i) => runColor(i, palette, theme));
        expect(new Set(colors).size).toBe(colors.length);
      }
    expect(runColor(1, "tensorboard", light)).toBe("#12b5cb"); // the first round is TensorBoard's own
  });

  it("of a run's further series do not look like its own", () => {
    expect([1, 2].map((index) => seriesColor("#0072b2", index, light))).toEqual(["#d55e00", "#009e73"]);
    expect([1, 2].map((index) => seriesColor("#e8710a", index, light))).toEqual(["#009e73", "#8a5aa8"]);
    expect(seriesColor("#f9ab00", 1, dark)).toBe("#4fd1a5"); // not another orange
    expect(new Set([1, 2, 3, 4, 5].map((index) => seriesColor("#0072b2", index, light))).size).toBe(5);
  });
});

describe("warnings", () => {
  const notice = (kind: string, step: number, layer: string, message: string): Notice => ({
    ...{ kind, step, layer, message, quantity: "GradHist2d" },
  });
  const some = [
    notice("outside_range", 3, "conv.weight", "1.2% lie outside"),
    notice("outside_range", 5, "fc.weight", "7% lie outside"),
    notice("outside_range", 9, "fc.weight", "8% lie outside"),
    notice("outside_range", 9, "", "something else"),
    notice("edge_of_stability", 7, "", "beyond"),
  ];

  it("of one kind are one line, with each of its layers to go to", () => {
    const own = start([makeBatch({ to: 20, change: { warnings: some } })]);
    const lines = groupWarnings(own.app.context());
    expect(lines.map(({ notice: { kind, step }, count, layers }) => [kind, step, count, [...layers.keys()]])).toEqual([
      ["edge_of_stability", 7, 1, [""]],
      ["outside_range", 3, 3, ["conv.weight", "fc.weight"]],
      ["outside_range", 9, 1, [""]],
    ]);
    const buttons = [...own.card("warnings").querySelectorAll<HTMLButtonElement>(".ck-layers button")];
    buttons[1].click();
    expect([own.app.state.step, own.app.state.layer]).toEqual([5, "fc.weight"]);
    expect(countWords(lines).text).toBe("1 warning, 2 hints");
  });

  it("are no alarm where they only ask for another setting", () => {
    const own = start([makeBatch({ to: 20, change: { warnings: some.slice(0, 3) } })]);
    expect(countWords(groupWarnings(own.app.context()))).toEqual({ text: "1 hint", alarming: false });
    expect(own.text(".ck-health")).toContain("No faults found in what was measured (20 steps)");
  });
});

describe("a saved file", () => {
  it("of a table has one line per row, in columns", () => {
    const scene = tableScene(
      [
        ["", "a"],
        ["lr", "0.1"],
        ["a long name", "0.2"],
      ],
      light,
    );
    const words = scene.marks.filter((mark): mark is TextMark => mark.type === "text");
    expect(words.map(({ text }) => text)).toEqual(["", "a", "lr", "0.1", "a long name", "0.2"]);
    expect(new Set(words.filter((_, i) => i % 2).map(({ x }) => x)).size).toBe(1);
    expect(words[5].x).toBeGreaterThan(words[4].x + 6 * 11);
    expect(words[4].y - words[2].y).toBe(18);
  });

  it("keeps a long legend inside", () => {
    const legend = Array.from({ length: 8 }, (_, i) => ({ label: `a run with a name ${i}`, color: "#123456" }));
    const framed = framedScene({ ...emptyScene(300, 100), legend }, "title", light);
    const words = framed.marks.filter((mark): mark is TextMark => mark.type === "text" && mark.text !== "title");
    expect(Math.max(...words.map(({ x, text }) => x + 6.2 * text.length))).toBeLessThanOrEqual(300);
    expect(framed.height - 100).toBeGreaterThan(Math.max(...words.map(({ y }) => y)));
  });
});

describe("the outline of a histogram", () => {
  it("goes along the tops of its bars", () => {
    const { xs, ys } = histogramOutline(Float64Array.of(0, 9), 9, { x: 10, y: 0, width: 20, height: 50 });
    expect(xs).toEqual([10, 10, 20, 20, 30, 30]);
    expect(ys).toEqual([50, 50, 50, 0, 0, 50]);
  });
});
