// Is it well, what is wrong, since when, where: the line on top, and sentences that never contradict it.

import { create, toBinary } from "@bufbuild/protobuf";
import { afterEach, describe, expect, it, vi } from "vitest";
import { defaults, type UiState } from "../src/contract/state.ts";
import type { Batch, Evidence, Finding } from "../src/data/records.ts";
import { decodeBatch } from "../src/data/wire.ts";
import { BatchSchema } from "../src/gen/cockpit_pb.ts";
import { evidenceWords, healthOf, inWords, isSick, orderFindings } from "../src/judge/health.ts";
import { panels } from "../src/panels/index.ts";
import { silence, summarize } from "../src/view/summary.ts";
import { opinions, inWords as opinionWords } from "../src/view/verdicts.ts";
import { type Cockpit, makeBatch, makeFit, makeHeader, open } from "./helpers.ts";

let cockpit: Cockpit | null = null;
afterEach(() => {
  cockpit?.destroy();
  cockpit = null;
  vi.useRealTimers();
  document.body.replaceChildren();
});
const start = (batches: Batch[], state: Partial<UiState> = {}) => {
  cockpit = open(batches, { state: { ...defaults, ...state } });
  return cockpit;
};
const evidence = (change: Partial<Evidence> = {}): Evidence => ({
  ...{ name: "GradNorm", value: 1e-9, low: 1e-4, high: 10, unit: "", step: 7, layer: "fc.weight", text: "" },
  ...change,
});
const finding = (change: Partial<Finding> = {}): Finding => ({
  ...{
    name: "vanishing",
    severity: "likely",
    text: "Gradients vanish towards the input.",
    since: 5,
    layers: ["fc.weight"],
  },
  ...{ evidence: [evidence()], remedy: "Use ReLU.", confidence: 0.9, explains: [], retracted: false, step: 7 },
  ...change,
});
const sick = (...findings: Finding[]) => makeBatch({ to: 20, change: { findings, warnings: [] } });

describe("the health line", () => {
  it("compares with a healthy run above the findings, where a long list does not hide the answer", () => {
    const own = start([sick(finding()), makeBatch({ run: "b", run_id: "2", to: 20, change: { warnings: [] } })]);
    own.element.querySelector<HTMLElement>(".ck-health")?.click();
    own.app.draw();
    const [first, ...rest] = own.element.querySelector(".ck-findings")?.children ?? [];
    expect(first?.textContent).toContain("Compare with");
    expect(rest.at(-1)?.textContent).toContain("Gradients vanish");
  });

  it("counts the records of a run that arrived thinned: what was logged is among them", () => {
    const whole = makeBatch({ to: 20, names: ["Loss"], change: { warnings: [] } });
    const columns = whole.columns.map((own) => ({ ...own, decimated: true }));
    const status = whole.status && { ...whole.status, records: 941, expected: 941 };
    expect(start([{ ...whole, columns, status }]).text(".ck-health")).toContain("(941 records)");
  });

  it("says that nothing was found, and in how much", () => {
    const own = start([makeBatch({ to: 20, change: { warnings: [] } })]);
    expect(own.text(".ck-health")).toBe("✓No faults found in what was measured (20 steps)");
  });

  it("waits before the first record", () => {
    expect(start([makeBatch({ to: 0, change: { warnings: [] } })]).text(".ck-health")).toContain(
      "Nothing measured yet",
    );
  });

  it("shows the worst finding in words, and since when, once", () => {
    const broken = finding({ name: "nan", severity: "broken", text: "The loss is NaN since step 9.", since: 9 });
    const own = start([sick(finding(), broken)]);
    expect(own.text(".ck-healthtext")).toBe("The loss is NaN since step 9");
    expect(own.element.querySelector(".ck-healthrow")?.getAttribute("data-tone")).toBe("broken");
    expect(inWords(finding())).toBe("Gradients vanish towards the input (since step 5)");
  });

  it("is quiet about what was taken back, and advice is no alarm", () => {
    const own = start([
      sick(finding({ retracted: true }), finding({ name: "x", severity: "advice", text: "Try more." })),
    ]);
    expect(own.text(".ck-healthtext")).toBe(
      "No faults found in what was measured (20 steps). Advice: Try more (since step 5)",
    );
  });

  it("does not call runs well of which nothing is known yet", () => {
    const runs = ["a", "b", "c", "d"].map((run, i) =>
      makeBatch({ run, run_id: run, to: i ? 0 : 9, change: { warnings: [] } }),
    );
    const own = start(runs);
    expect(own.text(".ck-health")).toContain("No faults found in 1 of 4 runs; nothing measured yet in 3.");
    own.destroy();
    const none = start(runs.slice(1).concat(makeBatch({ run: "e", run_id: "e", to: 0, change: { warnings: [] } })));
    expect(none.text(".ck-health")).toContain("Nothing measured yet in 4 runs.");
  });

  it("knows the latest message of each name, however messages come", () => {
    const later = makeBatch({ from: 20, to: 30, change: { findings: [finding({ retracted: true, step: 25 })] } });
    const own = start([later, sick(finding())]);
    expect(own.text(".ck-health")).toContain("No faults found");
  });

  it("puts causes before what they explain", () => {
    const list = orderFindings([
      finding({ name: "flat", since: 2 }),
      finding({ name: "cause", since: 4, explains: ["flat"] }),
    ]);
    expect(list.map(({ name }) => name)).toEqual(["cause", "flat"]);
  });

  it("names a cause before what it explains, also where that is worse, and takes its tone", () => {
    const dead = finding({ name: "dead", severity: "broken", text: "All units are dead.", since: 2 });
    const rate = finding({ name: "rate", severity: "likely", text: "The rate is too high.", explains: ["dead"] });
    const own = start([sick(dead, rate)]);
    expect(healthOf(own.app.context().runs[0])).toMatchObject({
      tone: "broken",
      text: expect.stringMatching(/^The rate is too high/),
    });
    const hint = finding({ name: "hint", severity: "advice", explains: ["dead"] });
    expect(orderFindings([hint, dead]).map(({ name }) => name)).toEqual(["dead", "hint"]);
  });

  it("opens a list that leads to the panel, the step and the layer", () => {
    const own = start([sick(finding())]);
    own.element.querySelector<HTMLButtonElement>(".ck-health")?.click();
    const list = own.element.querySelector<HTMLElement>(".ck-findings") as HTMLElement;
    expect(list.hidden).toBe(false);
    for (const words of [
      "step 5",
      "fc.weight",
      "Try: Use ReLU.",
      "right in 90 % of our tests",
      "(healthy: 1e−4 to 10)",
    ])
      expect(list.textContent).toContain(words);
    const links = [...list.querySelectorAll<HTMLButtonElement>(".ck-link")];
    links.at(-1)?.click();
    expect([own.app.state.step, own.app.state.layer]).toEqual([7, "fc.weight"]);
    expect(document.activeElement).toBe(own.card("grad_norm").querySelector(".ck-title"));
  });

  it("says what evidence says", () => {
    const open = evidence({ low: Number.NEGATIVE_INFINITY, high: 2, layer: "", value: 3.1399, unit: "nats" });
    expect(evidenceWords(open)).toBe("GradNorm 3.14 nats (healthy: at most 2) at step 7");
    expect(evidenceWords(evidence({ step: 0, layer: "" }), 5)).toMatch(/at step 5$/);
    expect(evidenceWords(evidence({ name: "dead", value: 1, layer: "3" }))).toMatch(/^dead 1 in module 3 /); // no share
  });

  it("has a line per run, and one for many", () => {
    const two = start([sick(finding()), makeBatch({ run: "b", run_id: "2", to: 9, change: { warnings: [] } })]);
    expect(two.element.querySelectorAll(".ck-healthrow")).toHaveLength(2);
    two.destroy();
    const many = Array.from({ length: 5 }, (_, i) =>
      makeBatch({
        run: `r${i}`,
        run_id: String(i),
        to: 20,
        change: { warnings: [], findings: i === 3 ? [finding()] : [] },
      }),
    );
    expect(start(many).text(".ck-health")).toContain("1 of 5 runs have faults. Worst, r3: Gradients vanish");
  });

  it("does not soothe where a suspicion was taken back and the loss is still that of guessing", () => {
    const layers = makeHeader().layers.map((layer) => ({ ...layer, shape: [10] }));
    const header = makeHeader({ loss: "CrossEntropyLoss", layers });
    const taken = finding({ name: "labels_random", text: "The labels may not belong to the inputs.", retracted: true });
    const made = (loss: number) => {
      const value = (seq: number, name: string) => (name === "Loss" && seq > 60 ? loss : 2.3);
      return makeBatch({ to: 120, value, change: { header, warnings: [], findings: [taken] } });
    };
    const own = start([made(2.28)]);
    expect(own.text(".ck-health")).toMatch(/Not learning: the loss is 2\.28, guessing 2\.3/);
    const told = healthOf(own.app.context().runs[0]).findings.map(({ name, severity }) => [name, severity]);
    expect(told).toEqual([
      ["not_learning", "likely"],
      ["labels_random", "advice"],
    ]);
    cockpit?.destroy();
    expect(start([made(1.1)]).text(".ck-health")).toContain("No faults found");
  });

  it("judges logs without findings by their warnings", () => {
    const notice = { step: 4, kind: "not_finite", quantity: "Loss", layer: "", message: "Loss is inf" };
    const others = ["GradNorm", "NormTest"].map((quantity) => ({ ...notice, quantity, message: `${quantity} is nan` }));
    const later = Array.from({ length: 2000 }, (_, i) => ({ ...notice, step: 5 + i }));
    const own = start([makeBatch({ to: 20, change: { warnings: [...others, notice, ...later] } })]);
    expect(own.text(".ck-healthtext")).toBe("Not finite: Loss is inf, then 2 other quantities (since step 4)");
    expect(own.card("warnings").querySelectorAll("tbody tr")).toHaveLength(1);
    expect(own.element.querySelector(".ck-run .ck-is-broken")).toBeTruthy();
  });

  it("an instrument that failed is no fault of the network", () => {
    const own = start([makeBatch({ to: 20 })]);
    expect(own.text(".ck-healthtext")).toContain("No faults found");
    expect(own.text(".ck-healthtext")).toContain("An instrument failed: It broke");
  });

  it("tells after the cause that nothing is learned, however high the loss began", () => {
    const header = makeHeader({ loss: "CrossEntropyLoss" });
    const cause = finding({ name: "inputs_not_scaled", text: "The inputs are not scaled.", since: 0 });
    const line = (value: (seq: number) => number, found = cause) => {
      const own = start([makeBatch({ to: 90, value, change: { header, findings: [found], warnings: [] } })]);
      const text = own.text(".ck-healthtext");
      own.destroy();
      return text;
    };
    const fell = (seq: number) => (seq < 10 ? 1e6 / (seq + 1) : 2.3);
    expect(line(fell)).toBe(
      "The inputs are not scaled (since step 0). Nothing is learned: the loss is 2.3, guessing 2.3 (ln(10))",
    );
    expect(line((seq) => 2.3 * 0.97 ** seq)).toBe("The inputs are not scaled (since step 0)");
    expect(line((seq) => 30 - 0.01 * seq)).toBe("The inputs are not scaled (since step 0)"); // still on its way, perhaps
    expect(line(fell, finding({ text: "The loss has not fallen." }))).toBe("The loss has not fallen (since step 5)");
  });

  it("a loss that stays where guessing is does not learn, also in old logs", () => {
    const header = makeHeader({ loss: "CrossEntropyLoss" }); // the last tensor has 10 outputs
    const flat = makeBatch({ to: 90, value: (seq) => 2.3 + 0.01 * Math.sin(seq), change: { header, warnings: [] } });
    const own = start([flat]);
    expect(own.text(".ck-healthtext")).toMatch(
      /^Not learning: the loss is 2\.3, guessing 2\.3 \(ln\(10\)\), since step 0/,
    );
    own.destroy();
    const falls = makeBatch({ to: 90, value: (seq) => 2.3 * 0.97 ** seq, change: { header, warnings: [] } });
    expect(start([falls]).text(".ck-healthtext")).toContain("No faults found");
  });

  it("takes findings from the wire", () => {
    const wire = { name: "n", severity: "broken", text: "t", since: 3, evidence: [{ name: "Loss", value: 1, low: 0 }] };
    const batch = decodeBatch(toBinary(BatchSchema, create(BatchSchema, { findings: [wire] })));
    expect(batch.findings[0]).toMatchObject({ name: "n", severity: "broken", since: 3, layers: [], retracted: false });
    expect(batch.findings[0].evidence[0]).toEqual({
      name: "Loss",
      value: 1,
      low: 0,
      high: 0,
      unit: "",
      step: 0,
      layer: "",
      text: "",
    });
  });

  it("a hostile kind or severity breaks nothing", () => {
    const odd = finding({ severity: "__proto__", name: "constructor", text: "<b>x</b>" });
    const own = start([sick(odd)]);
    own.element.querySelector<HTMLButtonElement>(".ck-health")?.click();
    expect(own.element.querySelector(".ck-findings strong b")).toBeNull();
  });
});

describe("a panel's sentence", () => {
  const alphas = Array.from({ length: 20 }, (_, s) => makeFit(s, 0.05));
  const said = (own: Cockpit, id: string) => {
    const panel = panels.find((one) => one.id === id);
    return panel ? opinionWords(opinions(panel, own.app.context()), "", false) : "";
  };

  it("is silent where a stronger fact holds, from that step on", () => {
    const batch = makeBatch({ to: 20, value: () => 0.5, change: { alphas, warnings: [], findings: [finding()] } });
    const own = start([batch]);
    for (const id of ["alpha", "gradient_tests", "hess_max_ev", "cabs"]) expect(said(own, id), id).toBe("");
    own.app.set({ step: 2 });
    expect(isSick(own.app.context().runs[0], 2)).toBe(false);
    expect(said(own, "alpha")).toBe("Step 2: near the valley floor.");
  });

  it("speaks where nothing was found", () => {
    const own = start([makeBatch({ to: 20, value: () => 0.5, change: { alphas, warnings: [] } })]);
    expect(said(own, "alpha")).toBe("Steps end near the valley floor.");
    expect(said(own, "gradient_tests")).toContain("large enough");
    expect(said(own, "hess_max_ev")).toContain("below the edge");
  });

  it("judges the last part with its spread, not one noisy step", () => {
    const value = (seq: number, name: string) => (seq === 199 && name !== "LearningRate" ? 30 : 0.5);
    const own = start([makeBatch({ to: 200, value, change: { warnings: [] } })]);
    expect(said(own, "gradient_tests")).toContain("large enough");
    expect(said(own, "hess_max_ev")).toContain("below the edge");
    own.app.set({ step: 199 });
    expect(said(own, "hess_max_ev")).toMatch(/^At step 199: .*beyond the edge of stability/);
    own.app.set({ step: null });
    own.destroy();
    const noisy = makeBatch({ to: 200, value: (seq) => (seq % 2 ? 0.5 : 1.4), change: { warnings: [] } });
    expect(said(start([noisy]), "gradient_tests")).toContain("about at the usual limit 0.9");
  });

  it("says nothing of a network without curvature", () => {
    const own = start([
      makeBatch({ to: 20, value: (_, name) => (name === "HessMaxEV" ? 0 : 0.5), change: { warnings: [] } }),
    ]);
    expect(said(own, "hess_max_ev")).toBe("");
  });
});

describe("the state of training", () => {
  it("is the last of the bar's first line: what does not fit is the longest, not a single button", () => {
    const bar = start([makeBatch({ to: 20 })]).element.querySelector(".ck-bar") as HTMLElement;
    const first = [...bar.children].slice(
      0,
      [...bar.children].findIndex((own) => own.className === "ck-break"),
    );
    expect(first.at(-1)?.className).toBe("ck-status");
    expect(first.some((own) => own.textContent === "Compact ▴" || own.textContent === "Expand ▾")).toBe(true);
  });

  it("is not live when nothing came for a while", () => {
    vi.useFakeTimers();
    const own = start([makeBatch({ to: 20 })]);
    expect(own.text(".ck-status")).toContain("live");
    vi.advanceTimersByTime(7000);
    expect(own.text(".ck-status")).toMatch(/no record for [67] s/);
    expect(own.text(".ck-status")).not.toMatch(/live|steps\/s/);
    own.store.merge(makeBatch({ from: 20, to: 21 }));
    own.app.draw();
    expect(own.text(".ck-status")).toContain("live");
  });

  it("is patient with slow steps", () => {
    const slow = makeBatch({ to: 5 });
    slow.time = slow.time.map((_, i) => i * 60);
    const [run] = start([slow]).app.context().runs;
    expect(silence(run, run.data.heard + 100_000)).toBeNull();
    expect(silence(run, run.data.heard + 400_000)).toBeCloseTo(400);
  });

  it("is not green for a run that ended sick", () => {
    const status = { state: "finished", error: "", last_wall_time: 0, records: 20, expected: 20, broken: 0 };
    const batch = sick(finding({ severity: "broken" }));
    const own = start([{ ...batch, status }]);
    const ctx = own.app.context();
    expect(healthOf(ctx.runs[0]).tone).toBe("broken");
    expect(summarize(ctx, { connection: "static" }, 0).tone).toBe("bad");
    own.destroy();
    const likely = start([{ ...sick(finding()), status }]).app.context();
    expect(summarize(likely, { connection: "static" }, 0).tone).toBe("idle");
  });

  it("takes any word for a state", () => {
    for (const state of ["constructor", "__proto__", "toString"]) {
      const status = { state, error: "", last_wall_time: 0, records: 20, expected: 20, broken: 0 };
      const ctx = start([{ ...makeBatch({ to: 5 }), status }]).app.context();
      expect(summarize(ctx, { connection: "static" }, 0).tone).toBe("idle");
    }
  });
});
