// Networks of many tensors, of long names and inside of each other: rows with whole names, folded by block. And what was cut.
import { describe, expect, it } from "vitest";
import { lineScene } from "../src/charts/line.ts";
import { defaults, type UiState } from "../src/contract/state.ts";
import { groupBlocks } from "../src/data/blocks.ts";
import type { Batch, Finding } from "../src/data/records.ts";
import type { Scene } from "../src/draw/scene.ts";
import { light } from "../src/draw/theme.ts";
import { healthOf } from "../src/judge/health.ts";
import { panels } from "../src/panels/index.ts";
import { countLines } from "../src/view/verdicts.ts";
import { type Cockpit, makeBatch, makeHeader, makeHistogram, opener } from "./helpers.ts";

const show = opener();
const start = (batches: Batch[], state: Partial<UiState> = {}) => show(batches, { state: { ...defaults, ...state } });
const panel = (id: string) => panels.find((own) => own.id === id) as (typeof panels)[number];
const words = (scene: Scene) => scene.marks.flatMap((mark) => (mark.type === "text" ? [mark.text] : []));

const gpt = [
  "transformer.wte.weight",
  ...[0, 1, 2, 3].flatMap((i) =>
    ["ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"].flatMap((own) =>
      ["weight", "bias"].map((kind) => `transformer.h.${i}.${own}.${kind}`),
    ),
  ),
  "lm_head.weight",
];
const deep = [
  "0.weight",
  "0.bias",
  ...Array.from({ length: 150 }, (_, i) => ["0.weight", "0.bias", "1.weight", "1.bias"].map((own) => `1.${i}.${own}`)),
].flat();

/** A run of these tensors, with a histogram of each. */
function openNetwork(names: string[], count = 1): Cockpit {
  const layers = names.map((name) => ({
    ...{ name, shape: name.endsWith("bias") ? [4] : [4, 4], size: 16, module: "Linear", method: "rule", reason: "" },
  }));
  const own = start([makeBatch({ to: 9, layers: names, change: { header: makeHeader({ layers }) } })]);
  const data = own.store.runs.get("a");
  for (const name of names) {
    const histogram = makeHistogram("GradHist1d", 8, name);
    histogram.counts.fill(count);
    data?.keepHistogram("GradHist1d", 8, name, histogram);
  }
  return own;
}
const draw = (own: Cockpit, id = "grad_hist_layers") =>
  panel(id).draw?.(own.app.context(), { width: 370, height: 250 }) as Scene;

describe("histograms of many tensors", () => {
  it("are rows folded by block, and no name is mangled", () => {
    const own = openNetwork(gpt);
    const names = words(draw(own)).filter((text) => !/^[−\d.]+$/.test(text));
    expect(names).toEqual(["wte.weight", "▸ h.0", "▸ h.1", "▸ h.2", "▸ h.3", "lm_head.weight"]);
    expect(words(draw(own)).join(" ")).not.toContain("…");
    const block = draw(own).spots.find(({ hint }) => hint.startsWith("transformer.h.1"));
    expect(block?.hint).toBe("transformer.h.1, 12 tensors. Click: its tensors.");
    block?.act?.();
    expect(words(draw(own))).toContain("h.1.attn.c_attn.weight");
    const tensor = draw(own).spots.find(({ layer }) => layer === "transformer.h.1.attn.c_attn.weight");
    expect(tensor?.act).toBeUndefined(); // a click chooses it, and does not fold its block again
  });

  it("count the tensors of a block together", () => {
    const own = openNetwork(gpt);
    const bars = draw(own).marks.flatMap((mark) => (mark.type === "bars" ? [mark.boxes.length / 4] : []));
    expect(bars).toEqual([8, 8, 8, 8, 8, 8]);
  });

  it("of a deep network are those of weights from the first to the last", () => {
    const own = openNetwork(deep);
    const layers = panel("grad_hist_layers").details?.(own.app.context()) ?? [];
    expect(layers).toHaveLength(60);
    expect([layers[0].label, layers[59].label]).toEqual(["0.weight", "1.149.1.weight"]);
    expect(panel("grad_hist_layers").note?.(own.app.context())).toContain(
      "60 of 602 tensors, from the first to the last",
    );
  });

  it("say so where nothing is finite, instead of an empty picture", () => {
    const own = openNetwork(gpt, 0);
    expect(words(draw(own)).join(" ")).toContain("Every element is NaN or infinite at this step.");
    own.store.runs.get("a")?.histogram("GradHist1d", 8, "")?.counts.fill(0);
    expect(words(draw(own, "grad_hist_1d")).join(" ")).toContain("every element is NaN or infinite");
  });
});

describe("a network inside of another", () => {
  it("is not one block", () => {
    const blocks = groupBlocks(deep);
    expect(blocks).toHaveLength(151);
    expect(blocks.slice(0, 3).map(({ name }) => name)).toEqual(["0", "1.0", "1.1"]);
    expect(groupBlocks(gpt.map((name) => `0.${name}`)).map(({ name }) => name)).toContain("h.3");
  });

  it("ends where there is no further number", () => {
    const flat = Array.from({ length: 40 }, (_, i) => `net.fc${i}.weight`);
    expect(groupBlocks(flat)).toHaveLength(40);
    expect(groupBlocks(Array.from({ length: 40 }, (_, i) => `w${i}`))).toHaveLength(40);
    expect(groupBlocks(Array.from({ length: 40 }, (_, i) => `net.0.w${i}`))).toHaveLength(1);
  });
});

describe("the map of two runs", () => {
  it("names them in a sentence where its title has no room, and cuts no name", () => {
    const own = start([makeBatch({ to: 9 }), makeBatch({ run: "a rather long name", run_id: "2", to: 9 })]);
    const narrow = panel("layer_map").draw?.(own.app.context(), { width: 250, height: 190 }) as Scene;
    expect(words(narrow)).toContain("gradient RMS");
    const wide = panel("layer_map").draw?.(own.app.context(), { width: 700, height: 190 }) as Scene;
    expect(words(wide)).toContain("gradient RMS, a rather long name / a");
    expect(panel("layer_map").note?.(own.app.context())).toBe("a rather long name divided by a.");
  });
});

describe("words in a card", () => {
  it("get as many lines as they need on a telephone", () => {
    const text =
      "No verdict: only 19 % of the gradient is signal, and noise moves this alpha up at any learning rate. Track AlphaOwnBatch for one.";
    const lines = (width: number) => countLines([{ text, runs: [] }], "", false, width);
    expect([lines(1000), lines(460), lines(370)]).toEqual([1, 2, 3]);
    expect(countLines([], "", false, 370)).toBe(0);
    for (const width of [370, 480, 880]) // pointing at a step does not move what is below
      expect(countLines([{ text: `At step 163: ${text}`, runs: [] }], "", false, width)).toBe(lines(width));
  });

  it("beside the name of an axis stay apart from it", () => {
    const own = start([makeBatch({ to: 120 })]);
    const series = own.app.context().runs[0].data.series("Loss", "", "step");
    const many = { ...series, y: series.y.map((_, i) => (i ? -1 : 2)) };
    for (const width of [260, 330, 370, 420, 900]) {
      const chart = {
        width,
        height: 200,
        theme: light,
        axis: "step",
        xlog: false,
        ylog: true,
        domain: [0, 119],
        smoothing: 0,
      };
      const scene = lineScene({ ...chart, curves: [{ series: many, color: "#000", label: "x" }] } as never);
      const text = (like: RegExp) => scene.marks.find((mark) => mark.type === "text" && like.test(mark.text)) as never;
      const [name, note] = [text(/^step$/), text(/≤ 0/)] as { x: number; text: string }[];
      expect(note.x - 6.2 * note.text.length).toBeGreaterThan(name.x + 12);
    }
  });

  it("count one difference as one", () => {
    const header = (lr: string) => makeHeader({ optimizers: [{ name: "SGD", groups: [{ lr }] }] });
    const own = start([
      makeBatch({ to: 9, change: { header: header("0.1") } }),
      makeBatch({ run: "b", run_id: "2", to: 9, change: { header: header("0.2") } }),
    ]);
    expect(panel("about").readings(own.app.context())[0].text).toBe("1 differs");
  });

  it("name no sample of a batch in which nothing is finite", () => {
    const value = (seq: number, name: string) => (name === "TopSampleNorm" && seq > 5 ? Number.NaN : 1);
    const own = start([makeBatch({ to: 9, names: ["Loss", "GradNorm", "TopSampleNorm"], value })]);
    const note = (step: number | null) => {
      own.app.set({ step });
      return panel("grad_norm").note?.(own.app.context());
    };
    expect(note(null)).not.toContain("places");
    expect(note(4)).toContain("places 3, 1 in this batch");
  });
});

describe("a loss that stays at guessing", () => {
  it("is told though there is an advice of something else", () => {
    const layers = makeHeader().layers.map((layer) => ({ ...layer, shape: [10] }));
    const header = makeHeader({ loss: "CrossEntropyLoss", layers });
    const advice = (name: string): Finding => ({
      ...{ name, severity: "advice", text: "Something.", since: 3, layers: [], evidence: [], remedy: "" },
      ...{ confidence: 0.5, explains: [], retracted: false, step: 3 },
    });
    const tone = (name: string) => {
      const change = { header, warnings: [], findings: [advice(name)] };
      return healthOf(start([makeBatch({ to: 120, value: () => 2.3, change })]).app.context().runs[0]).tone;
    };
    expect(tone("batch_too_small")).toBe("likely");
    expect(tone("not_learning")).toBe("advice"); // it is said, and not sure
  });
});
