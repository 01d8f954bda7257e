// Sentences that somebody tired can read: no names of columns, nothing cut, nothing said twice.
import { afterEach, expect, it } from "vitest";
import type { Evidence, Finding } from "../src/data/records.ts";
import { evidenceWords } from "../src/judge/health.ts";
import { panels } from "../src/panels/index.ts";
import { type Cockpit, makeBatch, makeHeader, open } from "./helpers.ts";

let cockpit: Cockpit | null = null;
afterEach(() => {
  cockpit?.destroy();
  cockpit = null;
  document.body.replaceChildren();
});
const panel = (id: string) => panels.find((own) => own.id === id) as (typeof panels)[number];

const evidence: Evidence = {
  ...{ name: "input_rms", value: 122, low: 0.05, high: 3, unit: "", step: 4, layer: "" },
  text: "root mean square of the inputs",
};
const finding: Finding = {
  ...{ name: "inputs", severity: "likely", text: "The inputs are not scaled: they are 120", since: 4, layers: [] },
  ...{ evidence: [evidence], remedy: "Scale them.", confidence: 0.9, explains: [], retracted: false, step: 4 },
};

it("evidence with words of its own does not name its column", () => {
  expect(evidenceWords(evidence)).toBe("root mean square of the inputs: 122 (healthy: 0.05 to 3) at step 4");
  expect(evidenceWords({ ...evidence, text: "" })).toContain("input_rms 122");
});

it("a finding in the list says its step once", () => {
  cockpit = open([makeBatch({ to: 9, change: { findings: [finding], warnings: [] } })]);
  cockpit.element.querySelector<HTMLButtonElement>(".ck-health")?.click();
  const text = cockpit.text(".ck-finding");
  expect(text).toContain("likely: The inputs are not scaled: they are 120Since step 4");
});

it("the table of runs has the verdict, not its reasons, and no column for a commit", () => {
  const run = (name: string, lr: string, git_commit: string) =>
    makeBatch({
      ...{ run: name, run_id: name, to: 9 },
      change: {
        findings: [finding],
        header: makeHeader({ git_commit, optimizers: [{ name: "SGD", groups: [{ lr }] }] }),
      },
    });
  cockpit = open([run("a", "0.1", "1"), run("b", "0.2", "2"), run("c", "0.3", "3")]);
  const cells = [...cockpit.card("runs").querySelectorAll(".ck-verdict")].map((own) => own.textContent);
  expect(cells).toEqual(Array(3).fill("The inputs are not scaled"));
  const heads = [...cockpit.card("runs").querySelectorAll(".ck-sort")].map((own) => own.textContent);
  expect(heads).toContain("lr");
  expect(heads).not.toContain("git commit");
});

it("a curve that is one of several has its name in the legend", () => {
  cockpit = open([makeBatch({ to: 20, names: ["Loss", "UpdateCosine"], value: () => 1 })]);
  const scene = panel("update_cosine").draw?.(cockpit.app.context(), { width: 400, height: 170 });
  expect(scene?.legend.map(({ label }) => label)).toEqual(["with −gradient", "across"]);
});

it("what hardly varies is drawn flat", () => {
  const value = (seq: number) => 0.92 + 1e-5 * (seq % 2);
  cockpit = open([makeBatch({ to: 20, names: ["Loss", "SignalShare"], value })]);
  const scene = panel("signal_share").draw?.(cockpit.app.context(), { width: 400, height: 170 });
  const line = scene?.marks.find((mark) => mark.type === "line" && mark.curve);
  const ys = line?.type === "line" ? Array.from(line.ys) : [];
  expect(ys.length).toBeGreaterThan(5);
  expect(Math.max(...ys) - Math.min(...ys)).toBeLessThan(2); // pixels
});

it("a step that is pointed at is what the sentence is about", () => {
  cockpit = open([makeBatch({ to: 20, names: ["Loss", "NoiseScale"], value: (seq) => 100 + seq })], {});
  const said = () => {
    const ctx = (cockpit as Cockpit).app.context();
    return panel("noise_scale").verdict?.(ctx, ctx.runs[0])?.text ?? "";
  };
  expect(said()).toMatch(/^Doubling the batch/);
  cockpit.app.set({ step: 7 });
  expect(said()).toMatch(/^At step 7: Doubling the batch would help up to about 107 samples/);
});
