// What everyone looks at first: loss with validation loss, the line of guessing, the map of the network, the table of runs.
import { describe, expect, it } from "vitest";
import { defaults, type UiState } from "../src/contract/state.ts";
import { makeBand } from "../src/data/bands.ts";
import { groupNames, isScore, stemOf } from "../src/data/pairs.ts";
import type { Batch } from "../src/data/records.ts";
import { Series } from "../src/data/series.ts";
import { groupLabel, sequentialColors } from "../src/judge/facts.ts";
import { groupRuns } from "../src/judge/groups.ts";
import { guessAccuracy, guessGuides, guessLoss } from "../src/judge/guessing.ts";
import { panels } from "../src/panels/index.ts";
import { tableOf } from "../src/panels/runs.ts";
import type { MountOptions } from "../src/view/options.ts";
import { summarizeReadings } from "../src/view/readings.ts";
import { makeBatch, makeHeader, opener } from "./helpers.ts";

const show = opener();
const start = (batches: Batch[], state: Partial<UiState> = {}, options: MountOptions = {}) =>
  show(batches, { state: { ...defaults, ...state }, ...options });
const panel = (id: string) => panels.find((own) => own.id === id) as (typeof panels)[number];

describe("names that pair", () => {
  it.each([
    ["log/loss", "loss"],
    ["log/train_loss", "loss"],
    ["log/val_loss", "loss"],
    ["log/valid-loss", "loss"],
    ["log/Test/Loss", "loss"],
    ["log/loss/val", "loss"],
    ["log/validation.top1", "top1"],
    ["log/training_time", "time"],
    ["log/value", "value"],
    ["Loss", ""],
  ])("%s is %s", (name, stem) => {
    expect(stemOf(name)).toBe(stem);
  });

  it("are one chart", () => {
    expect(groupNames(["log/acc", "log/val_acc", "Custom", "log/lr"])).toEqual([
      ["log/acc", "log/val_acc"],
      ["Custom"],
      ["log/lr"],
    ]);
    expect(["accuracy", "f1", "macro_f1", "ppl", "lr", "value", "maple"].map(isScore)).toEqual([
      true,
      true,
      true,
      true,
      false,
      false,
      false,
    ]);
  });
});

describe("the first row", () => {
  const logged = ["Loss", "log/valid_loss", "log/valid_accuracy", "log/train_accuracy", "GradNorm"];
  const header = makeHeader({ loss: "CrossEntropyLoss()" });

  it("holds the loss with its validation loss, and the accuracy, before everything else", () => {
    const own = start([makeBatch({ to: 20, names: logged, change: { header } })]);
    const first = [...own.element.querySelectorAll<HTMLElement>(".ck-first [data-panel]")].map(
      ({ dataset }) => dataset.panel,
    );
    expect(first).toEqual(["loss", "other:group accuracy", "layer_map"]);
    expect([...own.card("loss").querySelectorAll(".ck-reading")].map((e) => e.getAttribute("data-label"))).toEqual([
      "mini-batch",
      "valid_loss",
    ]);
    expect(own.element.querySelector(".ck-board")?.children[1]?.className).toContain("ck-first");
  });

  it("knows what guessing would reach", () => {
    const own = start([makeBatch({ to: 20, names: logged, value: () => 2.2, change: { header } })]);
    const [run] = own.app.context().runs;
    expect(guessLoss(run)?.value).toBeCloseTo(Math.log(10));
    expect(own.card("loss").querySelector(".ck-legend")?.textContent).toContain("guessing 2.3 (ln(10))");
  });

  it("knows the loss of a run whose loss is a function by its graph", () => {
    const graph = { ...header, loss: "", options: { "loss function": "CrossEntropyLoss" } };
    const own = start([makeBatch({ to: 20, names: logged, value: () => 2.2, change: { header: graph } })]);
    expect(guessLoss(own.app.context().runs[0])?.value).toBeCloseTo(Math.log(10));
  });

  it("takes the entropy of the labels, or the variance of the targets, where they were counted", () => {
    const entropy = start([
      makeBatch({
        to: 5,
        names: ["Loss", "signal/label_entropy"],
        value: (_, name) => (name === "Loss" ? 2 : 1.5),
        change: { header },
      }),
    ]);
    expect(guessLoss(entropy.app.context().runs[0])).toEqual({
      value: 1.5,
      label: "guessing 1.5 (label entropy)",
    });
    entropy.destroy();
    const squares = start([makeBatch({ to: 5, names: ["Loss", "signal/target_std"], value: () => 3 })]);
    expect(guessLoss(squares.app.context().runs[0])?.value).toBe(9);
  });

  it("knows that the entropy of few labels is too small", () => {
    const signals: Record<string, number> = {
      "signal/label_entropy": 2.23,
      "signal/label_count": 64,
    };
    const own = start([
      makeBatch({
        to: 5,
        names: ["Loss", ...Object.keys(signals)],
        value: (_, name) => signals[name] ?? 2.3,
        change: { header },
      }),
    ]);
    expect(guessLoss(own.app.context().runs[0])?.value).toBeCloseTo(2.23 + (Math.exp(2.23) - 1) / 128);
  });

  it("has one line of guessing for runs whose labels were counted on different batches", () => {
    const counted = (run: string, entropy: number) =>
      makeBatch({
        ...{ run, run_id: run, to: 5, names: ["Loss", "signal/label_entropy"] },
        value: (_, name) => (name === "Loss" ? 2.3 : entropy),
        change: { header },
      });
    const own = start([counted("a", 2.2), counted("b", 2.28), counted("c", 1.5)]);
    expect(guessGuides(own.app.context(), guessLoss).map(({ value }) => value)).toEqual([1.5, 2.28]);
  });

  it("draws a loss with a spike on a log axis, so that the rest can be seen", () => {
    const isLog = (spike: number) => {
      const value = (seq: number) => (seq === 2 ? spike : 2.3);
      const own = start([makeBatch({ to: 40, names: ["Loss"], value, change: { header } })]);
      const marks = panel("loss").draw?.(own.app.context(), { width: 400, height: 150 }).marks ?? [];
      own.destroy();
      const texts = marks.flatMap((mark) => (mark.type === "text" ? [mark.text] : []));
      return texts.includes("100") && texts.includes("10k"); // no linear axis has both
    };
    expect([isLog(7e4), isLog(20)]).toEqual([true, false]);
  });

  it("draws an accuracy near chance from 0 on", () => {
    const own = start([
      makeBatch({ to: 9, names: ["Loss", "log/valid_accuracy"], value: (seq) => 0.1 + 0.01 * (seq % 2) }),
    ]);
    const texts = () =>
      [...own.card("other:log/valid_accuracy").querySelectorAll(".ck-texts span")].map((e) => e.textContent);
    expect(texts()).toContain("0");
  });

  it("draws no line of guessing in the accuracy for a run that has none", () => {
    const other = makeHeader({
      loss: "CrossEntropyLoss()",
      layers: [{ ...header.layers[0], name: "out", shape: [88, 4] }],
    });
    const own = start([
      makeBatch({ to: 9, names: logged, value: (_, name) => (name === "Loss" ? 2.2 : 0.5), change: { header } }),
      makeBatch({ run: "b", run_id: "2", to: 9, names: ["Loss"], value: () => 4, change: { header: other } }),
    ]);
    expect(guessGuides(own.app.context(), guessAccuracy).length).toBe(2);
    const legend = own.card("other:group accuracy").querySelector(".ck-legend")?.textContent;
    expect(legend).toContain("guessing 1 of 10");
    expect(legend).not.toContain("1 of 88");
  });

  it("claims nothing where a loss does not begin near guessing, or is no such loss", () => {
    const far = start([makeBatch({ to: 5, value: () => 40, change: { header } })]);
    expect(guessLoss(far.app.context().runs[0])).toBeNull();
    far.destroy();
    expect(guessLoss(start([makeBatch({ to: 5 })]).app.context().runs[0])).toBeNull();
  });

  it("shows no signals of the diagnosis as panels", () => {
    const own = start([makeBatch({ to: 5, names: ["Loss", "signal/label_entropy"] })]);
    expect(own.element.querySelector('[data-panel^="other:signal"]')).toBeNull();
  });
});

describe("many runs", () => {
  const rates = ["0.01", "0.1", "1"];
  const sweep = (count = 6) =>
    Array.from({ length: count }, (_, i) => {
      const header = makeHeader({ optimizers: [{ name: "SGD", groups: [{ lr: rates[i % 3] }] }] });
      return makeBatch({
        run: `lr${rates[i % 3]}-seed${Math.floor(i / 3)}`,
        run_id: String(i),
        to: 20,
        value: (seq) => (i + 1) * (20 - seq),
        change: { header, warnings: [] },
      });
    });

  it("are a table that sorts", () => {
    const own = start(sweep(), { sort: "-lr" });
    const cells = [...own.card("runs").querySelectorAll("tbody tr")].map((row) => row.textContent ?? "");
    expect(cells[0]).toContain("lr1-seed");
    expect(cells.at(-1)).toContain("lr0.01");
    const [row] = tableOf(own.app.context());
    expect([...row.cells.keys()]).toEqual([
      "run",
      "verdict",
      "last Loss",
      "best",
      "last valid_accuracy",
      "best valid_accuracy",
      "lr",
      "steps",
      "time",
      "tracking",
      "state",
    ]);
    expect([row.cells.get("last Loss")?.value, row.cells.get("best")?.value]).toEqual([1, 1]);
    expect([row.cells.get("last valid_accuracy")?.value, row.cells.get("best valid_accuracy")?.value]).toEqual([1, 20]);
    own.card("runs").querySelectorAll<HTMLButtonElement>(".ck-sort")[0].click();
    expect(own.app.state.sort).toBe("run");
  });

  it("leave out what only some optimizers have, and there is the same", () => {
    const groups: Record<string, string>[] = [
      { lr: "1", dampening: "0" },
      { lr: "0.1", dampening: "0" },
      { lr: "0.1", eps: "1e-8" },
    ];
    const made = groups.map((group, i) =>
      makeBatch({
        ...{ run: `r${i}`, run_id: String(i), to: 9 },
        change: { header: makeHeader({ optimizers: [{ name: i > 1 ? "Adam" : "SGD", groups: [group] }] }) },
      }),
    );
    const own = start(made);
    const names = [...tableOf(own.app.context())[0].cells.keys()];
    expect(names).toEqual(expect.arrayContaining(["optimizer", "lr"]));
    expect(names).not.toContain("dampening");
    expect([...own.card("runs").querySelectorAll(".ck-chip")].map((e) => e.textContent)).toEqual(["colour by lr"]);
  });

  it("can be coloured by a number, from dark to light", () => {
    expect(sequentialColors([1, null, 3], false)[1]).toBeNull();
    const own = start(sweep(), { colorBy: "lr" });
    const colors = new Map(own.app.context().runs.map(({ run, color }) => [run, color]));
    expect(colors.get("lr0.01-seed0")).toBe(colors.get("lr0.01-seed1"));
    expect(new Set(colors.values()).size).toBe(3);
  });

  it("that differ in their seed only are one curve with a band", () => {
    const own = start(sweep(), { grouped: true });
    const { runs, groups } = own.app.context();
    expect(groups.map(({ label, runs: { length } }) => [label, length])).toEqual([
      ["lr0.01 (2)", 2],
      ["lr0.1 (2)", 2],
      ["lr1 (2)", 2],
    ]);
    expect(groupRuns(runs)).toHaveLength(3);
    expect(groupLabel(["a/lr0.1-seed0", "a/lr0.1-seed1"])).toBe("a/lr0.1 (2)");
    const scene = panel("grad_norm").draw?.(own.app.context(), { width: 400, height: 170 });
    expect(scene?.marks.filter((mark) => mark.type === "line" && mark.closed && mark.alpha === 0.18)).not.toHaveLength(
      0,
    );
  });

  it("have a median, a lowest and a highest value at each step that they reached", () => {
    const series = (...ys: number[]) => {
      const own = new Series();
      ys.forEach((y, i) => {
        own.push(i, y, i);
      });
      return own;
    };
    const { middle, low, high } = makeBand([series(1, 2, 3), series(5, 6), series(3, 10, 7)]);
    expect([...middle.y.slice(0, 3)]).toEqual([3, 6, 5]);
    expect([...low.y.slice(0, 3)]).toEqual([1, 2, 3]);
    expect([...high.y.slice(0, 3)]).toEqual([5, 10, 7]);
  });

  it("show a range instead of ten bare numbers", () => {
    const readings = Array.from({ length: 8 }, (_, i) => ({
      label: `r${i}`,
      value: i === 3 ? Number.NaN : i,
      run: `r${i}`,
    }));
    expect(summarizeReadings(readings).map(({ text }) => text)).toEqual(["0", "to 7", "8 runs", "1 not finite"]);
    expect(summarizeReadings(readings.slice(0, 5))).toHaveLength(5);
  });

  it("say how many are shown", () => {
    const own = start(sweep(12));
    expect(own.text(".ck-bar")).toContain("10 of 12 shown");
    expect(own.card("runs").textContent).toContain("10 of 12 shown");
  });
});

describe("a strip", () => {
  it("shows health, loss and three sparklines, and expands", () => {
    const own = start([makeBatch({ to: 20 })], {}, { compact: true });
    expect(own.element.querySelector(".ck-root")?.classList.contains("ck-compact")).toBe(true);
    const ids = () =>
      [...own.element.querySelectorAll<HTMLElement>("[data-panel]")].map(({ dataset }) => dataset.panel);
    expect(ids()).toEqual(["loss", "other:log/valid_accuracy", "grad_norm", "update_ratio"]);
    [...own.element.querySelectorAll<HTMLButtonElement>(".ck-bar button")]
      .find((b) => b.textContent === "Expand ▾")
      ?.click();
    own.app.draw();
    expect(ids().length).toBeGreaterThan(15);
    expect(own.app.state.view).toBe("full");
    own.destroy();
    const plain = start([makeBatch({ to: 20 })]);
    expect(plain.text(".ck-bar")).toContain("Compact");
    expect(
      [...plain.element.querySelectorAll<HTMLElement>(".ck-bar button")].find((b) => b.textContent?.includes("Compact"))
        ?.hidden,
    ).toBe(true);
  });
});
