import { describe, expect, it } from "vitest";
import { Raster } from "../src/draw/raster.ts";
import { seeded } from "./helpers.ts";

const ink = { color: "#102030", weight: 2 };
const pixel = (raster: Raster, x: number, y: number) =>
  Array.from(raster.pixels.slice((y * raster.width + x) * 4, (y * raster.width + x) * 4 + 4));
const alphas = (raster: Raster, x: number) => Array.from({ length: raster.height }, (_, y) => pixel(raster, x, y)[3]);
const amount = (raster: Raster, x: number) => alphas(raster, x).reduce((sum, alpha) => sum + alpha / 255, 0);

describe("a curve as pixels", () => {
  it("is as thick as its pen, where it is, in its colour", () => {
    const raster = new Raster(10, 10, 0, 0, 1);
    raster.draw({ ...ink, xs: [0, 9.9], ys: [5, 5] });
    expect(alphas(raster, 4)).toEqual([0, 0, 0, 0, 255, 255, 0, 0, 0, 0]);
    expect(pixel(raster, 4, 5)).toEqual([16, 32, 48, 255]);
  });

  it("shares the ink between two pixels it only touches", () => {
    const raster = new Raster(4, 10, 0, 0, 1);
    raster.draw({ ...ink, xs: [0, 3.9], ys: [5.25, 5.25] });
    const [above, full, below] = [pixel(raster, 1, 4)[3], pixel(raster, 1, 5)[3], pixel(raster, 1, 6)[3]];
    expect([above, full, below].map((alpha) => Math.round((alpha / 255) * 4))).toEqual([3, 4, 1]);
  });

  it("goes from the lowest to the highest value of a column, and never further", () => {
    const raster = new Raster(6, 100, 0, 0, 1);
    raster.draw({ ...ink, xs: [2.5, 2.5, 2.5, 2.5], ys: [40, 10, 90, 50] });
    expect(
      alphas(raster, 2)
        .map((alpha, y) => (alpha ? y : -1))
        .filter((y) => y >= 0),
    ).toEqual(Array.from({ length: 82 }, (_, i) => 9 + i));
    expect(amount(raster, 1) + amount(raster, 3)).toBe(0);
  });

  it("has no hole where it is steep, and ends where it ends", () => {
    const random = seeded(3);
    const xs = Float64Array.from({ length: 40 }, (_, i) => 5 + i * 2);
    const ys = xs.map(() => 10 + 80 * random());
    const raster = new Raster(100, 100, 0, 0, 1);
    raster.draw({ ...ink, xs, ys });
    for (let x = 5; x < 83; x++) {
      const rows = alphas(raster, x).flatMap((alpha, y) => (alpha ? [y] : []));
      expect(rows.length).toBeGreaterThanOrEqual(2);
      expect(rows).toEqual(rows.map((_, i) => rows[0] + i)); // in one piece
      const next = alphas(raster, x + 1).flatMap((alpha, y) => (alpha ? [y] : []));
      if (x < 82) expect(rows.some((y) => next.includes(y))).toBe(true); // and joined to its neighbour
    }
    expect(amount(raster, 3)).toBe(0);
    expect(amount(raster, 85)).toBe(0);
  });

  it("breaks at NaN, leaves out what dashes leave out, and stays on its sheet", () => {
    const broken = new Raster(12, 10, 0, 0, 1);
    broken.draw({ ...ink, xs: [0, 3, 6, 9, 11], ys: [5, 5, Number.NaN, 5, 5] });
    expect(amount(broken, 2)).toBe(2);
    expect([amount(broken, 5), amount(broken, 7)]).toEqual([0, 0]);
    expect(amount(broken, 10)).toBe(2);
    const dashed = new Raster(12, 10, 0, 0, 1);
    dashed.draw({ ...ink, xs: [0, 12], ys: [5, 5], dash: [4, 2] });
    expect([3, 4, 5, 6].map((x) => amount(dashed, x) > 0)).toEqual([true, false, false, true]);
    const far = new Raster(12, 10, 0, 0, 1);
    far.draw({ ...ink, xs: [-1e9, 5, 6, 1e9], ys: [-1e12, 1e12, -5, 20] });
    expect(far.pixels).toHaveLength(480);
  });

  it("is placed by its sheet's corner and the ratio of device pixels", () => {
    const raster = new Raster(10, 10, 20, 10, 2);
    raster.draw({ ...ink, weight: 1, xs: [10, 14.9], ys: [7.5, 7.5] });
    expect(alphas(raster, 5).map((alpha) => alpha > 0)).toEqual(
      [4, 5].reduce((rows, y) => {
        rows[y] = true;
        return rows;
      }, new Array(10).fill(false)),
    );
  });

  it("lets what lies below shine through", () => {
    const raster = new Raster(3, 10, 0, 0, 1);
    raster.draw({ color: "#000000", weight: 2, xs: [0, 3], ys: [5, 5] });
    raster.draw({ color: "#ffffff", weight: 2, alpha: 0.5, xs: [0, 3], ys: [5, 5] });
    expect(pixel(raster, 1, 5)[0]).toBeCloseTo(128, -1);
    expect(pixel(raster, 1, 5)[3]).toBe(255);
  });
});
