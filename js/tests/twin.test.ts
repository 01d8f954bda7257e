// Where a run leaves its healthy twin.
import { afterEach, describe, expect, it } from "vitest";
import { defaults } from "../src/contract/state.ts";
import { findFirst, firstDifferences, makeCells } from "../src/judge/twin.ts";
import { type Cockpit, makeBatch, makeHeader, open, seeded } from "./helpers.ts";

let cockpit: Cockpit | null = null;
afterEach(() => {
  cockpit?.destroy();
  cockpit = null;
  document.body.replaceChildren();
});

/** Noisy curves around 1; from `from` on the gradient norm grows, later the loss. */
const run = (name: string, seed: number, from = 1e9, lr = "0.1") => {
  const random = seeded(seed);
  const value = (seq: number, column: string) => {
    const noise = 1 + 0.05 * (random() - 0.5);
    if (column === "GradNorm" && seq >= from) return 5 * noise;
    return column === "Loss" && seq >= from + 20 ? 3 * noise : noise;
  };
  const header = makeHeader({ optimizers: [{ name: "SGD", groups: [{ lr }] }] });
  return makeBatch({ run: name, run_id: name, to: 80, value, change: { header, warnings: [], alphas: [] } });
};
const start = (...batches: ReturnType<typeof run>[]) => {
  cockpit = open(batches, { state: { ...defaults, reference: "a" } });
  return cockpit;
};

describe("the twin", () => {
  it("is left first where the cause is, with three runs each", () => {
    const { runs } = start(
      run("a", 1),
      run("b", 2),
      run("c", 3),
      run("x", 4, 30, "1"),
      run("y", 5, 30, "1"),
      run("z", 6, 30, "1"),
    ).app.context();
    const found = firstDifferences(runs.slice(0, 3), runs.slice(3));
    expect(found.map(({ name, step }) => [name, step])).toEqual([
      ["GradNorm", 30],
      ["Loss", 50],
    ]);
    expect(found[0].other / found[0].reference).toBeCloseTo(5, 0);
    expect(found[0].alone).toBe(false);
  });

  it("has colours that differ from group to group, one after the other", () => {
    const batches = ["0.1", "0.2", "0.3"].flatMap((lr, i) =>
      [1, 2, 3].map((seed) => run(`${lr}-${seed}`, seed + 3 * i, 1e9, lr)),
    );
    cockpit = open(batches, { state: { ...defaults, grouped: true } });
    const { runs, theme } = cockpit.app.context();
    expect([...new Set(runs.map(({ color }) => color))]).toEqual(theme.series.slice(0, 3));
  });

  it("is not left by another seed", () => {
    const { runs } = start(run("a", 1), run("b", 2), run("c", 3), run("d", 4), run("e", 5), run("f", 6)).app.context();
    expect(firstDifferences(runs.slice(0, 3), runs.slice(3))).toEqual([]);
  });

  it("needs four cells in a row in one direction", () => {
    const flat = Array.from({ length: 12 }, () => 0);
    const hill = (cells: number) => flat.map((_, i) => (i >= 4 && i < 4 + cells ? 9 : 0.001 * i));
    expect(findFirst([hill(3), hill(3)], [flat, flat], false)).toBeNull();
    expect(findFirst([hill(4), hill(4)], [flat, flat], false)).toBe(4);
  });

  it("compares in the range that all have, at the steps of the coarsest", () => {
    const curve = (...steps: number[]) => ({ steps, values: steps });
    expect(makeCells([curve(0, 1, 2, 3, 4, 5), curve(1, 3, 9)])).toEqual({ starts: [1, 3], end: 5 });
  });

  it("leaves out lengths of another network", () => {
    const other = run("x", 4, 30);
    other.header = makeHeader({ layers: [] });
    const { runs } = start(run("a", 1), other).app.context();
    expect(firstDifferences([runs[0]], [runs[1]]).map(({ name }) => name)).toEqual(["Loss"]);
  });

  it("is named on the page, two clicks away", () => {
    const own = start(run("a", 1), run("x", 4, 30, "1"));
    own.app.set({ reference: "" });
    own.app.draw();
    own.element.querySelector<HTMLButtonElement>(".ck-health")?.click();
    const chip = [...own.element.querySelectorAll<HTMLButtonElement>(".ck-findings .ck-chip")][0];
    chip.click();
    own.app.draw();
    expect(own.text(".ck-twin")).toMatch(
      /^x first differs from it in GradNorm \S+ against \S+ from step 3[0-4] on; Loss/,
    );
    expect(own.text(".ck-twin")).toContain("One run each");
    own.element.querySelector<HTMLButtonElement>(".ck-twin .ck-link")?.click();
    expect(Math.abs((own.app.state.step ?? 0) - 32)).toBeLessThanOrEqual(2);
  });

  it("compares settings: seeds of one are one line, and strong evidence", () => {
    const own = start(run("a1", 1), run("a2", 2), run("x1", 4, 30, "1"), run("x2", 5, 30, "1"), run("x3", 6, 30, "1"));
    own.app.set({ reference: "a1" });
    own.element.querySelector<HTMLButtonElement>(".ck-health")?.click();
    own.app.draw();
    expect(own.element.querySelectorAll(".ck-twin")).toHaveLength(1);
    expect(own.text(".ck-twin")).toMatch(/^x \(3\) first differs from it in GradNorm /);
    expect(own.text(".ck-twin")).not.toContain("One run each");
  });
});
