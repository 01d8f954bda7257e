import { describe, expect, it } from "vitest";
import {
  countPixels,
  differencePixels,
  heatmapGeometry,
  heatmapScene,
  marginals,
  outsideShares,
} from "../src/charts/heatmap.ts";
import { histogramBoxes, spread, thinSteps } from "../src/charts/histogram.ts";
import { countOutside, parabolaScales, parabolaScene, standardize } from "../src/charts/parabola.ts";
import { radial, THRESHOLDS, testsGeometry, testsScene } from "../src/charts/tests.ts";
import { density, EDGE, median } from "../src/data/density.ts";
import { countColor } from "../src/draw/colors.ts";
import type { DotsMark, EllipseMark, ImageMark, LineMark, TextMark } from "../src/draw/scene.ts";
import { light } from "../src/draw/theme.ts";
import { makeFit, makeHistogram } from "./helpers.ts";

describe("alpha on the standard parabola", () => {
  it("puts a step that ends on the floor at 0, with both losses on the curve", () => {
    const fit = standardize(makeFit(0, 0), 4);
    expect(fit?.end).toBeCloseTo(0);
    expect(fit?.start).toEqual({ y: 1, slope: -2, error: 0.1 });
    expect(fit?.stop.y).toBeCloseTo(0);
    expect(fit?.stop.slope).toBeCloseTo(0);
  });

  it("is the same for a valley of any width, depth and height", () => {
    // f = 7 + 3 ((tau - 5) / 5)^2 on a step of length 8: floor at 5, so alpha = 8 / 5 - 1.
    const [w0, w1, w2] = [10, -6 / 5, 3 / 25];
    const at = (tau: number) => w0 + w1 * tau + w2 * tau * tau;
    const slope = (tau: number) => w1 + 2 * w2 * tau;
    const fit = {
      ...makeFit(0, 0.6),
      length: 8,
      loss_start: at(0),
      loss_end: at(8),
      slope_start: slope(0),
      slope_end: slope(8),
      w0,
      w1,
      w2,
    };
    const standard = standardize(fit, 1);
    expect(standard?.end).toBeCloseTo(0.6);
    expect(standard?.start.y).toBeCloseTo(1);
    expect(standard?.stop.y).toBeCloseTo(0.36);
    expect(standard?.stop.slope).toBeCloseTo(1.2);
  });

  it("has no picture for a step that goes on downhill or begins uphill", () => {
    expect(standardize({ ...makeFit(0, -1), w2: -1 }, 1)).toBeNull();
    expect(standardize({ ...makeFit(0, -3), w1: 1 }, 1)).toBeNull();
  });

  it("finds medians and counts what is off the scale", () => {
    expect(median([3, 1, 2])).toBe(2);
    expect(median([4, 1, 2, 3])).toBe(2.5);
    expect(countOutside([-5, -1, 0, 1, 4, 6])).toEqual([1, 2]);
  });

  it("draws the density where the values are, its peak 1", () => {
    const heights = density(Array.from({ length: 200 }, (_, i) => 0.5 + 0.1 * Math.sin(i)));
    const peak = heights.indexOf(Math.max(...heights));
    expect(Math.max(...heights)).toBe(1);
    expect(-EDGE + (2 * EDGE * peak) / 120).toBeCloseTo(0.5, 0);
    expect(density([])).toEqual(new Array(121).fill(0));
  });

  it("draws the whole parabola, not cut at the top", () => {
    const box = { x: 40, y: 10, width: 300, height: 200 };
    const scene = parabolaScene({ width: 360, height: 260, box, theme: light, groups: [] });
    const curve = scene.marks.find((mark): mark is LineMark => mark.type === "line" && mark.xs.length === 77);
    const ys = Array.from(curve?.ys ?? []);
    expect(Math.min(...ys)).toBeGreaterThanOrEqual(box.y);
    expect(new Set(ys.map((y) => y.toFixed(3))).size).toBe(39); // symmetric, and nowhere flat
    const { x, y } = parabolaScales(box);
    expect([x.to(0), y.to(0)]).toEqual([190, ys[38]]);
  });

  it("marks the two observations of the chosen step where they were measured", () => {
    const box = { x: 40, y: 10, width: 300, height: 200 };
    const group = { color: "#000000", all: [0.4], recent: [0.4], fit: standardize(makeFit(3, 0.4), 64) };
    const scene = parabolaScene({ width: 360, height: 260, box, theme: light, groups: [group] });
    const { x, y } = parabolaScales(box);
    const dots = scene.marks.filter((mark): mark is DotsMark => mark.type === "dots");
    expect(dots.map((dot) => [dot.xs[0], dot.ys[0]])).toEqual([
      [x.to(-1), y.to(1)],
      [expect.closeTo(x.to(0.4)), expect.closeTo(y.to(0.16))],
    ]);
  });
});

describe("the gradient tests", () => {
  const box = { x: 10, y: 20, width: 200, height: 160 };

  it("maps relative lengths to radii on a log scale that holds 0", () => {
    expect(radial(0, 10, 80)).toBe(0);
    expect(radial(10, 10, 80)).toBeCloseTo(80);
    expect(radial(1, 10, 80)).toBeCloseTo((80 * Math.log10(101)) / Math.log10(1001));
  });

  it("draws ball, bands, arrow and thresholds around the tip of the mean gradient", () => {
    const at = testsGeometry({ norm: 0.9, inner: 0.3, ortho: 5.84 }, box, 10);
    expect([at.cx, at.cy, at.radius]).toEqual([110, 100, 80]);
    expect(at.ball).toBeCloseTo(at.thresholds.norm);
    expect(at.across).toBeCloseTo(at.thresholds.ortho);
    expect(at.along).toBeCloseTo(radial(0.3, 10, 80));
    expect(at.arrow).toBeCloseTo(radial(1, 10, 80));
    expect(THRESHOLDS).toEqual({ norm: 0.9, inner: 0.9, ortho: 5.84 });
  });

  it("leaves out what has no value and never leaves its box", () => {
    const at = testsGeometry({ norm: null, inner: Number.NaN, ortho: 1e9 }, box, 10);
    expect([at.ball, at.along, at.across]).toEqual([null, null, 80]);
  });

  it("has the same numbers in the drawn marks", () => {
    const colors = { norm: "#111111", inner: "#222222", ortho: "#333333" };
    const scene = testsScene(
      { width: 300, height: 220 },
      box,
      [{ values: { norm: 0.5, inner: 0.2, ortho: 0.4 }, colors }],
      light,
    );
    const ball = scene.marks.find(
      (mark): mark is EllipseMark => mark.type === "ellipse" && mark.stroke === "#111111" && !mark.dash,
    );
    expect(ball?.rx).toBeCloseTo(radial(0.5, 10, 80));
    const band = scene.marks.find((mark) => mark.type === "rect" && mark.fill === "#222222");
    expect(band).toMatchObject({ width: 160, height: expect.closeTo(2 * radial(0.2, 10, 80)) });
  });
});

describe("the heat map", () => {
  const histogram = makeHistogram("GradHist2d", 5); // counts 0 to 19, 4 gradient bins x 5 parameter bins

  it("sums to both marginals", () => {
    const { gradient, parameter } = marginals(histogram);
    expect(Array.from(gradient)).toEqual([10, 35, 60, 85]);
    expect(Array.from(parameter)).toEqual([30, 34, 38, 42, 46]);
  });

  it("puts the largest gradient bin on top and leaves empty bins empty", () => {
    const { rgba } = countPixels(histogram, 19, { x: 0, y: 0, width: 100, height: 100 });
    const pixel = (row: number, column: number) =>
      Array.from(rgba.slice((row * 5 + column) * 4, (row * 5 + column) * 4 + 4));
    expect(pixel(3, 0)).toEqual([0, 0, 0, 0]); // count 0: lowest gradient, lowest parameter
    expect(pixel(0, 4)).toEqual([...countColor(1), 255]); // count 19
    expect(pixel(3, 1)).toEqual([...countColor(Math.log1p(1) / Math.log1p(19)), 255]);
  });

  it("places fixed axes on its box", () => {
    const at = heatmapGeometry(histogram, { x: 0, y: 0, width: 400, height: 300 }, true);
    expect(at.x.to(-2)).toBe(at.map.x);
    expect(at.x.to(2)).toBe(at.map.x + at.map.width);
    expect(at.y.to(1)).toBe(at.map.y);
    expect(at.y.to(-1)).toBe(at.map.y + at.map.height);
    const scene = heatmapScene({
      width: 400,
      height: 300,
      outer: { x: 0, y: 0, width: 400, height: 300 },
      theme: light,
      histogram,
      most: 19,
      color: "#000000",
      labels: true,
    });
    const image = scene.marks.find((mark): mark is ImageMark => mark.type === "image");
    expect(image).toMatchObject({ ...at.map, columns: 5, rows: 4 });
    expect(scene.marks.some((mark): mark is TextMark => mark.type === "text" && mark.text === "parameter value")).toBe(
      true,
    );
  });

  it("tells shares outside the range and broken values", () => {
    const shares = outsideShares({ ...histogram, nan: 10 });
    expect(shares.gradient).toBeCloseTo(3 / 190);
    expect(shares.parameter).toBe(0);
    expect(shares.broken).toBeCloseTo(10 / 200);
  });

  it("shows a difference of shares: nothing where two runs agree", () => {
    const { rgba, most } = differencePixels(histogram, {
      ...histogram,
      counts: histogram.counts.map((count) => count * 3),
    });
    expect(most).toBe(0);
    expect(rgba.every((value) => value === 0)).toBe(true);
  });
});

describe("1D histograms", () => {
  it("draws one box per bin, taller for more", () => {
    const boxes = histogramBoxes(Float64Array.from([0, 1, 9]), 9, { x: 0, y: 0, width: 30, height: 10 });
    expect(boxes).toHaveLength(8); // the empty bin has none
    expect(boxes[3]).toBeCloseTo((10 * Math.log1p(1)) / Math.log1p(9));
    expect(boxes[7]).toBe(10);
  });

  it("keeps a peak that is narrower than a pixel", () => {
    const counts = new Float64Array(1000);
    counts[377] = 5;
    const boxes = histogramBoxes(counts, 5, { x: 0, y: 0, width: 50, height: 10 });
    expect(boxes[3]).toBe(10);
  });

  it("measures the width of a layer's gradients", () => {
    const edges = Float64Array.from([-1.5, -0.5, 0.5, 1.5]);
    expect(spread({ ...makeHistogram("GradHist1d", 0), counts: Float64Array.from([1, 0, 1]), edges })).toBe(1);
  });

  it("chooses the same steps again when more are added", () => {
    const steps = Array.from({ length: 100 }, (_, i) => i * 10);
    const few = thinSteps(steps, 48);
    expect(few.length).toBeLessThanOrEqual(48);
    expect(thinSteps([...steps, 1000], 48).slice(0, few.length)).toEqual(few);
  });
});
