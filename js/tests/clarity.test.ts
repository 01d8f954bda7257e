// What a first user stumbled over: whose values these are, where the focus goes, what a file tells without the page.
import { afterEach, describe, expect, it } from "vitest";
import { withRuns } from "../src/contract/export.ts";
import { emptyScene } from "../src/draw/scene.ts";
import { costItems } from "../src/panels/cost.ts";
import { relativeGradients } from "../src/panels/grad_hist_layers.ts";
import { speed } from "../src/view/summary.ts";
import { type Cockpit, makeBatch, open } from "./helpers.ts";

let cockpit: Cockpit | null = null;
afterEach(() => {
  cockpit?.destroy();
  cockpit = null;
  document.body.replaceChildren();
});
const start = (...batches: Parameters<typeof open>[0]) => {
  cockpit = open(batches);
  return cockpit;
};
const one = makeBatch({ to: 60 });
const other = makeBatch({ run: "b", run_id: "2", to: 60 });

describe("with several runs", () => {
  it("the state names the run that it is about", () => {
    const own = start(one, other);
    expect(own.text(".ck-status")).toMatch(/^alive/);
    cockpit?.destroy();
    expect(start(one).text(".ck-status")).toMatch(/^live/);
  });

  it("a saved picture tells the colours of the runs", () => {
    const own = start(one, other);
    const ctx = own.app.context();
    expect(withRuns(emptyScene(10, 10), ctx).legend.map(({ label }) => label)).toEqual(["a", "b"]);
  });
});

describe("a number that was measured long ago", () => {
  const batch = (last: number) => {
    const made = makeBatch({ to: 100, names: ["Loss", "NormTest"], value: () => 0.5 });
    const columns = made.columns.map((own) =>
      own.name === "NormTest" ? { ...own, seq: own.seq.slice(0, last), values: own.values.slice(0, last) } : own,
    );
    return { ...made, columns };
  };

  it("says at which step, and nothing is concluded from it", () => {
    const own = start(batch(6));
    const card = own.card("gradient_tests");
    expect(card.querySelector(".ck-readings")?.textContent).toBe("step 5:0.5");
    expect(card.querySelector(".ck-note")?.textContent).toBe("");
    own.app.set({ step: 5 });
    own.app.draw();
    expect(card.querySelector(".ck-note")?.textContent).toMatch(/^At step 5: The noise is below/);
    expect(own.card("loss").querySelector(".ck-old")).toBeNull();
  });

  it("stands beside newer ones in grey, and two of different steps name both", () => {
    const made = makeBatch({ to: 100, names: ["Loss", "GradNorm", "TopSampleNorm"], value: () => 0.5 });
    const cut = (name: string, last: number) => (own: (typeof made.columns)[number]) =>
      own.name === name ? { ...own, seq: own.seq.slice(0, last), values: own.values.slice(0, last) } : own;
    const one = { ...made, columns: made.columns.map(cut("TopSampleNorm", 6)) };
    const spans = [...start(one).card("grad_norm").querySelectorAll(".ck-reading")];
    expect(spans.map((span) => [span.textContent, span.classList.contains("ck-old")])).toEqual([
      ["0.5", false],
      ["0.5", true],
    ]);
    cockpit?.destroy();
    const both = { ...one, columns: one.columns.map(cut("GradNorm", 21)) };
    const readings = start(both).card("grad_norm").querySelector(".ck-readings");
    expect(readings?.textContent).toBe("steps 5 to 20:0.50.5");
  });

  it("nor in the panel of the noise scale, unless the user points at it", () => {
    const made = makeBatch({ to: 100, names: ["Loss", "NoiseScale"], value: () => 20 });
    const columns = made.columns.map((own) =>
      own.name === "NoiseScale" ? { ...own, seq: own.seq.slice(0, 6), values: own.values.slice(0, 6) } : own,
    );
    const own = start({ ...made, columns });
    const note = own.card("noise_scale").querySelector(".ck-note");
    expect(note?.textContent).toBe("");
    own.app.set({ step: 5 });
    own.app.draw();
    expect(note?.textContent).toMatch(/^At step 5: The batch of 64/);
  });

  it("is shown as it is where it is of now", () => {
    const card = start(batch(90)).card("gradient_tests");
    expect(card.querySelector(".ck-readings")?.textContent).toBe("0.5");
    expect(card.querySelector(".ck-note")?.textContent).toMatch(/^The noise is below the usual limit 0.9/);
  });

  it("is not called old in a run that ended before the others", () => {
    const own = start(makeBatch({ to: 100 }), makeBatch({ run: "b", run_id: "2", to: 20 }));
    expect(own.element.querySelector(".ck-old")).toBeNull();
  });
});

describe("with a layer chosen", () => {
  it("each curve says whether it shows the layer or the whole network", () => {
    const own = start(one);
    own.app.set({ layer: "fc.weight" });
    own.app.draw();
    expect(own.card("grad_norm").querySelector(".ck-note")?.textContent).toContain("fc.weight");
    expect(own.card("hess_max_ev").querySelector(".ck-note")?.textContent).toContain("Whole network");
    own.app.set({ layer: "" });
    own.app.draw();
    expect(own.card("grad_norm").querySelector(".ck-note")?.textContent).not.toContain("fc.weight");
  });
});

describe("the keyboard", () => {
  const pressEscape = (target: EventTarget) =>
    target.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));

  it("stays in a panel that was enlarged, where Escape makes it small again", () => {
    const own = start(one);
    own.app.enlarge("loss");
    expect(own.card("loss").contains(document.activeElement)).toBe(true);
    pressEscape(document.activeElement as Element);
    own.app.draw();
    expect(own.element.querySelector(".ck-big")).toBeNull();
  });

  it("closes a menu whose focused entry is gone", () => {
    const own = start(one, other);
    const button = [...own.element.querySelectorAll("button")].find((each) => each.textContent?.startsWith("Runs"));
    button?.click();
    expect(button?.getAttribute("aria-expanded")).toBe("true");
    pressEscape(document.body);
    expect(button?.getAttribute("aria-expanded")).toBe("false");
  });
});

it("a layer without any gradient counts as one that does not learn, also if most are like it", () => {
  const batch = makeBatch({ to: 3 });
  for (const column of batch.columns)
    if (column.name === "GradNorm" && column.layer && column.layer !== "fc.weight") column.values.fill(0);
  const own = start(batch);
  const ctx = own.app.context();
  expect(Object.fromEntries(relativeGradients(ctx, ctx.runs[0]))).toEqual({
    "conv.weight": 0,
    "conv.bias": 0,
    "fc.weight": 300, // relative to what it would take to count as slow, where the median has vanished
  });
});

it("one slow first step does not count as what a quantity usually costs", () => {
  const own = start(makeBatch({ to: 9, value: (seq) => (seq === 0 ? 20 : 0.1) }));
  const ctx = own.app.context();
  expect(costItems(ctx, ctx.runs[0]).find(({ name }) => name === "shared")?.usual).toBe(0.1);
});

describe("the speed", () => {
  const rate = (steps: number[], time: number[]) => {
    const batch = { ...makeBatch({ to: steps.length }), step: Uint32Array.from(steps), time: Float64Array.from(time) };
    return speed(start(batch).app.context().runs[0]);
  };

  it("is not that of the time before the first step, in which something may have compiled", () => {
    expect(rate([0, 0, 5, 10], [0, 17, 18, 19])).toBe(5);
  });

  it("is not told of a single step", () => {
    expect(rate([0, 0], [0, 17])).toBeNull();
  });
});
