import { describe, expect, it } from "vitest";
import type { Section } from "../src/contract/panel.ts";
import { arrange, columnCount, movePanel, nudgePanel, type Placeable } from "../src/view/layout.ts";

const panel = (id: string, group: Section, order: number, height = 170): Placeable => ({ id, group, order, height });
const all = [
  panel("alpha", "step", 1, 320),
  panel("distance", "step", 2),
  panel("tests", "gradients", 1, 320),
  panel("hist", "gradients", 2, 330),
  panel("hist2", "gradients", 3, 330),
  panel("ev", "curvature", 1, 240),
  panel("loss", "first", 10),
  panel("lr", "training", 20),
  panel("accuracy", "first", 30),
  panel("cost", "training", 40, 160),
  panel("warnings", "about", 0),
  panel("about", "about", 1),
];
const heights = new Map(all.map((own) => [own.id, own.height + 92]));
const total = (ids: string[]) => ids.reduce((sum, id) => sum + (heights.get(id) ?? 0), 0);

describe("the arrangement", () => {
  it("has one column per group and evens them out with the rest", () => {
    const [first, ...lists] = arrange(all, 3, null);
    expect(first).toEqual(["loss", "accuracy"]);
    expect(lists[0].slice(0, 2)).toEqual(["alpha", "distance"]);
    expect(lists[1].slice(0, 3)).toEqual(["tests", "hist", "hist2"]);
    expect(lists[2][0]).toBe("ev");
    expect([...first, ...lists.flat()].sort()).toEqual(all.map((own) => own.id).sort());
    const columns = lists.slice(0, 3).map(total);
    expect(Math.max(...columns) - Math.min(...columns)).toBeLessThan(400);
  });

  it("leaves no empty column where a group was not tracked", () => {
    const lists = arrange(
      all.filter((own) => own.group !== "curvature"),
      3,
      null,
    );
    expect(lists.slice(1, 4).every((list) => list.length > 0)).toBe(true);
  });

  it("holds every panel at any width", () => {
    for (const count of [1, 2, 3])
      expect(arrange(all, count, null).flat().sort()).toEqual(all.map((own) => own.id).sort());
    expect([300, 700, 1200].map(columnCount)).toEqual([1, 2, 3]);
  });

  it("follows what the user saved and finds a place for what is new", () => {
    const saved = [["loss"], ["ev"], ["alpha"], ["tests", "gone"], ["lr"]];
    const lists = arrange(all, 3, saved);
    expect(lists.map((list) => list[0])).toEqual(["loss", "ev", "alpha", "tests", "lr"]);
    expect(lists.flat().sort()).toEqual(all.map((own) => own.id).sort());
  });

  it("moves panels by drag and by keyboard", () => {
    const lists = [["a", "b"], ["c"], ["d"]];
    expect(movePanel(lists, "d", 0, "b")).toEqual([["a", "d", "b"], ["c"], []]);
    expect(nudgePanel(lists, "b", "up")).toEqual([["b", "a"], ["c"], ["d"]]);
    expect(nudgePanel(lists, "a", "down")).toEqual([["b", "a"], ["c"], ["d"]]);
    expect(nudgePanel(lists, "a", "right")).toEqual([["b"], ["a", "c"], ["d"]]);
    expect(nudgePanel(lists, "a", "left")).toBe(lists);
  });
});
