// What was off on runs of networks that a new user brought.
import { describe, expect, it, vi } from "vitest";
import { binMarks } from "../src/charts/histogram.ts";
import { parabolaScene } from "../src/charts/parabola.ts";
import { formatShare } from "../src/data/format.ts";
import type { Header } from "../src/data/records.ts";
import type { Mark, Scene } from "../src/draw/scene.ts";
import { light } from "../src/draw/theme.ts";
import { describeHeader, groupKey } from "../src/judge/facts.ts";
import { inWords } from "../src/judge/health.ts";
import { differences } from "../src/panels/about.ts";
import { panels } from "../src/panels/index.ts";
import { type Cockpit, makeBatch, makeHeader, makeHistogram, opener } from "./helpers.ts";

const start = opener();
const panel = (id: string) => panels.find((own) => own.id === id) as (typeof panels)[number];
const draw = (own: Cockpit, id: string, width = 420, height = 260): Scene =>
  panel(id).draw?.(own.app.context(), { width, height }) as Scene;
const textsOf = (marks: Mark[]) => marks.flatMap((mark) => (mark.type === "text" ? [mark] : []));
/** Where a text begins and ends, across. */
const reach = ({ x, text, anchor }: { x: number; text: string; anchor?: string }) => {
  const size = 6.2 * text.length;
  const from = anchor === "end" ? x - size : anchor === "middle" ? x - size / 2 : x;
  return [from, from + size];
};

describe("a run that learns slowly", () => {
  it("a score that guessing does not reach is learning, and a run whose loss still falls is given time", () => {
    const header = makeHeader({ loss: "CrossEntropyLoss" });
    const line = (accuracy: number, state = "finished") => {
      const value = (seq: number, name: string) =>
        name === "log/valid_accuracy" ? accuracy : name === "Loss" && seq > 60 ? 2.28 : 2.3;
      const status = { state, error: "", last_wall_time: 0, records: 120, expected: 120, broken: 0 };
      const own = start([makeBatch({ to: 120, value, change: { header, status, warnings: [] } })]);
      const text = own.text(".ck-healthtext");
      own.destroy();
      return text;
    };
    expect(line(0.12)).toContain("Not learning");
    expect(line(0.446)).toContain("No faults found");
    expect(line(44.6)).toContain("No faults found"); // in per cent
    expect(line(0.12, "running")).toContain("No faults found");
  });
});

describe("an axis", () => {
  const withError = (value: number, error: number) => (_: number, name: string) =>
    name === "SignalShare" ? value : name === "error/SignalShare" ? error : 1;

  it("holds the error of the number beside the title, and does not magnify noise", () => {
    const value = (seq: number, name: string) => withError(-0.078 + 1e-4 * (seq % 2), 0.14)(seq, name);
    const own = start([makeBatch({ to: 9, names: ["Loss", "SignalShare", "error/SignalShare"], value })]);
    const scene = draw(own, "signal_share");
    const left = textsOf(scene.marks).filter(({ anchor }) => anchor === "end");
    const ticks = left.map(({ text }) => Number(text.replace("−", "-"))).filter(Number.isFinite);
    expect(ticks).toContain(0); // "nothing but noise" is in the picture, not above it
    expect(Math.max(...ticks) - Math.min(...ticks)).toBeGreaterThan(0.05);
  });

  it("of the loss spikes always has the line of a spike", () => {
    const own = start([makeBatch({ to: 9, names: ["Loss", "SpikeScore"], value: (seq) => -0.7 - 0.01 * seq })]);
    expect(textsOf(draw(own, "loss_spikes").marks).some(({ text }) => text.includes("↑"))).toBe(false);
  });

  it("is linear where a quantity goes below zero now and then, and logarithmic where it is zero", () => {
    const hidden = (value: (seq: number) => number) => {
      const own = start([makeBatch({ to: 80, names: ["Loss", "TICDiag"], value })]);
      const texts = textsOf(draw(own, "tic").marks).map(({ text }) => text);
      own.destroy();
      return texts.find((text) => /hidden|not shown/.test(text)) ?? "";
    };
    expect(hidden((seq) => (seq % 6 ? 1000 + seq : -200))).toBe("");
    expect(hidden((seq) => (seq % 6 ? 1000 + seq : 0))).toMatch(/^14 /);
  });

  it("of a narrow histogram has no numbers that run into each other", () => {
    const sizes = Array.from({ length: 21 }, (_, i) => 10 ** (i / 4 - 5));
    const edges = Float64Array.from([...sizes.map((size) => -size).reverse(), ...sizes]);
    for (const width of [60, 80, 120, 300]) {
      const labels = textsOf(binMarks(edges, { x: 0, y: 0, width, height: 50 }, light));
      const places = labels.map(reach).sort((a, b) => a[0] - b[0]);
      for (const [i, [from]] of places.slice(1).entries())
        expect(from, String(width)).toBeGreaterThanOrEqual(places[i][1] - 1);
      expect(labels.map(({ text }) => text)).toEqual(expect.arrayContaining(["−1", "1"]));
    }
  });

  it("has its title beside the numbers, and round numbers at the ends of a strip", () => {
    const range = Float64Array.from({ length: 9 }, (_, i) =>
      i < 4 ? -(16 ** (4 - i)) : i > 4 ? 16 ** (i - 4) : 1e-14,
    );
    const change = { heavy: [{ quantity: "GradHist2d", steps: Uint32Array.of(8) }] };
    const own = start([makeBatch({ to: 9, change })]);
    const histogram = {
      ...makeHistogram("GradHist2d", 8),
      edges: Float64Array.from([-1e-14, -1e-15, 0, 1e-15, 1e-14]),
    };
    own.app.store.runs.get("a")?.histograms.keep("GradHist2d", 8, "", histogram);
    const marks = textsOf(draw(own, "grad_hist_2d").marks);
    const title = marks.find(({ text }) => text.startsWith("individual"));
    const longest = Math.min(
      ...marks.filter(({ anchor, turned }) => anchor === "end" && !turned).map((mark) => reach(mark)[0]),
    );
    expect((title?.x ?? 0) + 6).toBeLessThanOrEqual(longest);
    const other = { ...makeHistogram("GradHist1d", 8), edges: range };
    own.app.store.runs.get("a")?.heavy.set("GradHist1d", [8] as never);
    own.app.store.runs.get("a")?.histograms.keep("GradHist1d", 8, "", other);
    const strip = textsOf(draw(own, "grad_hist_1d").marks).filter(({ anchor }) => anchor === "end");
    expect(strip.map(({ text }) => text)).toContain("−65.5k");
    for (const mark of strip) expect(reach(mark)[0]).toBeGreaterThanOrEqual(-1);
  });

  it("over many runs has rows, and no losses that nobody measured", () => {
    const groups = Array.from({ length: 8 }, () => ({ color: "#000000", all: [0], recent: [0], fit: null }));
    const words = (count: number) =>
      textsOf(
        parabolaScene({
          ...{ width: 400, height: 300, theme: light, groups: groups.slice(0, count) },
          box: { x: 40, y: 10, width: 340, height: 250 },
        }).marks,
      ).map(({ text }) => text);
    expect(words(8)).toContain("one row per run");
    expect(words(8)).not.toContain("3");
    expect(words(2)).toEqual(expect.arrayContaining(["3", "standardised loss"]));
  });
});

describe("a sentence", () => {
  it("is not made of one or two numbers, nor of one that may as well be twice as large", () => {
    const said = (to: number, error = 1) => {
      const names = ["Loss", "NoiseScale", "error/NoiseScale", "NormTest", "AlphaOwnBatch"];
      const value = (_: number, name: string) => (name === "error/NoiseScale" ? error : name === "NormTest" ? 0.5 : 90);
      const own = start([makeBatch({ to, names, value, change: { alphas: [], warnings: [] } })]);
      const ctx = own.app.context();
      return ["noise_scale", "gradient_tests", "alpha"].map((id) => Boolean(panel(id).verdict?.(ctx, ctx.runs[0])));
    };
    expect(said(2)).toEqual([false, false, false]);
    expect(said(5)).toEqual([true, true, true]);
    expect(said(5, 60)).toEqual([false, true, true]);
  });

  it("says since when once, and not in two brackets", () => {
    const finding = {
      ...{ name: "n", severity: "likely", since: 3, layers: [], evidence: [], remedy: "", confidence: 0, explains: [] },
      ...{ retracted: false, step: 3 },
    };
    expect(inWords({ ...finding, text: "Units are dead, from the first step on." })).toBe(
      "Units are dead, from the first step on",
    );
    expect(inWords({ ...finding, text: "The loss is 2.3 (guessing)" })).toBe(
      "The loss is 2.3 (guessing), since step 3",
    );
  });

  it("of a share that is nearly all does not say all", () => {
    expect([0.5, 0.994, 0.9962, 1].map(formatShare)).toEqual(["50 %", "99 %", "> 99 %", "100 %"]);
  });

  it("for those who listen has short numbers, and names said once", () => {
    const own = start([makeBatch({ to: 20, value: () => 1 / 3 })]);
    own.app.draw();
    own.app.card("loss")?.tell();
    const label = own.card("loss").querySelector(".ck-chart")?.getAttribute("aria-label") ?? "";
    expect(label).toBe("Loss at step 19: loss 0.333");
    own.app.card("layer_map")?.tell();
    const map = own.card("layer_map").querySelector(".ck-chart")?.getAttribute("aria-label") ?? "";
    expect(map).not.toMatch(/(\b[\w.]+\.weight) \1/);
  });
});

describe("the list of hard samples", () => {
  it("says that it is chance where each was seen once or twice", () => {
    const note = (times: number) => {
      const counts = Float64Array.from([17, 5, -0.2, times, 4, 9, 40, 4, 0.5, 1, -1, 8]);
      const table = { ...makeHistogram("HardSamples", 9), shape: [2, 6], counts };
      const heavy = [{ quantity: "HardSamples", steps: Uint32Array.of(9) }];
      const own = start([makeBatch({ to: 10, names: ["HardSamples"], change: { heavy, histograms: [table] } })]);
      return panel("hard_samples").note?.(own.app.context());
    };
    expect(note(1)).toBe("Until step 9. Seen once at most: the order is mostly chance.");
    expect(note(2)).toContain("Seen 2 times at most");
    expect(note(3)).toBe("Until step 9.");
  });
});

describe("what is known of a run", () => {
  const scheduled = (group: Record<string, string>): Header =>
    makeHeader({ optimizers: [{ name: "SGD", groups: [group] }] });

  it("has the rate that a schedule leads to, not the first of its warm-up", () => {
    expect(describeHeader(scheduled({ lr: "0.0001", initial_lr: "0.003" })).get("lr")).toBe("0.003");
    expect(describeHeader(scheduled({ lr: "0.0001", initial_lr: "0.0001", max_lr: "0.01" })).get("lr")).toBe("0.01");
    const [a, b] = ["0.003", "0.03"].map((rate) => groupKey(scheduled({ lr: "0.0001", initial_lr: rate })));
    expect(a).not.toBe(b);
  });

  it("ends a long list between two of its parts", () => {
    const network = Array.from({ length: 60 }, (_, i) => `RB(Conv2d ${i}→${i}, BatchNorm2d)`).join(", ");
    const own = start([makeBatch({ to: 5, change: { header: makeHeader({ options: { network } }) } })]);
    const cell = [...own.card("about").querySelectorAll("tr")].find((row) => row.textContent?.startsWith("network"));
    const text = cell?.lastElementChild?.textContent ?? "";
    expect(text.endsWith(", …")).toBe(true);
    expect(network.startsWith(text.slice(0, -3))).toBe(true);
    expect(differences(own.app.context()).some(([name]) => name === "network")).toBe(true);
  });

  it("tells settings that differ in much by the names of their runs", () => {
    const run = (name: string, i: number) => {
      const options = { augmentation: `a long description of what was done to the data, number ${i}` };
      const header = makeHeader({
        name,
        options,
        model: `Net${i}`,
        optimizers: [{ name: "SGD", groups: [{ lr: `0.${i}` }] }],
      });
      return makeBatch({ run: name, run_id: name, to: 9, change: { header } });
    };
    const own = start(["small", "wide", "deep"].map((name, i) => run(name, i + 1)));
    const labels = draw(own, "settings").legend.map(({ label }) => label);
    expect(labels).toEqual(expect.arrayContaining(["small", "wide", "deep"]));
    expect(panel("settings").readings(own.app.context())[0].text).toMatch(/^best (small|wide|deep)$/);
  });
});

it("an enlarged panel is brought into sight where it stands then, from its head on", () => {
  const own = start([makeBatch({ to: 9 })]);
  own.app.draw();
  const seen: [string, unknown][] = [];
  const scroll = vi.spyOn(Element.prototype, "scrollIntoView").mockImplementation(function (this: Element, how) {
    seen.push([this.className, how]);
  });
  own.app.enlarge("alpha");
  expect(seen).toEqual([["ck-card ck-big", { block: "start" }]]);
  scroll.mockRestore();
});
