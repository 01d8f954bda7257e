// Whatever two numbers a user's run may hold, no scale, axis or chart freezes, and everything drawn has a place.
import { afterEach, describe, expect, it } from "vitest";
import { axisMarks } from "../src/charts/axes.ts";
import { heatmapScene } from "../src/charts/heatmap.ts";
import { lineScene } from "../src/charts/line.ts";
import { parabolaScene, standardize } from "../src/charts/parabola.ts";
import { testsScene } from "../src/charts/tests.ts";
import { zoomAround } from "../src/contract/navigation.ts";
import { Series } from "../src/data/series.ts";
import { makeScale, padDomain, type ScaleKind } from "../src/draw/scale.ts";
import type { Scene } from "../src/draw/scene.ts";
import { light } from "../src/draw/theme.ts";
import { panels } from "../src/panels/index.ts";
import { axisDomain } from "../src/view/context.ts";
import { type Cockpit, makeBatch, makeFit, makeHistogram, open } from "./helpers.ts";

const next = (value: number) => value * (1 + Number.EPSILON);
const positive = [5e-324, 1e-308, 1e-45, 1e-7, 0.1, 0.3, 1, Math.LN10, 1e7, 2 ** 53, 1e38, 1e308, Number.MAX_VALUE];
const values = [0, ...positive, ...positive.map((v) => -v), Number.NaN, Number.POSITIVE_INFINITY];
const pairs = [
  ...values.flatMap((a) => values.map((b): [number, number] => [a, b])),
  [0.3, 0.1 + 0.2],
  [0.1, next(0.1)],
  [-next(1e300), -1e300],
  [2 ** 53, 2 ** 53 + 2],
] as [number, number][];

const few: [number, number][] = [
  [0.3, 0.1 + 0.2],
  [5e-324, 1e308],
  [-Number.MAX_VALUE, Number.MAX_VALUE],
  [0, 5e-324],
  [1e-45, 1e38],
  [Number.NaN, 1e308],
  [Number.MAX_VALUE, next(1e-7)],
];

function checkScene(scene: Scene, about: unknown): void {
  expect(scene.marks.length, String(about)).toBeLessThan(20_000);
  const lost = scene.marks.filter(
    (mark) => mark.type === "text" && !(Number.isFinite(mark.x) && Number.isFinite(mark.y)),
  );
  expect(lost, String(about)).toEqual([]);
}

let cockpit: Cockpit | null = null;
afterEach(() => {
  cockpit?.destroy();
  cockpit = null;
});

describe("a scale", () => {
  it.each(["linear", "log", "log1p"] as ScaleKind[])("%s has few finite ticks for any two values", (kind) => {
    for (const pair of pairs)
      for (const domain of [pair, padDomain(pair[0], pair[1], kind === "log")]) {
        const scale = makeScale(kind, domain, [40, 400]);
        expect(scale.domain.every(Number.isFinite), String(domain)).toBe(true);
        const ticks = scale.ticks(5);
        expect(ticks.length, String(domain)).toBeLessThan(70);
        const wild = ticks.filter(({ value, at }) => !(Number.isFinite(value) && Number.isFinite(at)));
        expect(wild, String(domain)).toEqual([]);
        for (const pixel of [0, 40, 220, 400, 1e4]) expect(Number.isNaN(scale.from(pixel))).toBe(false);
      }
  });

  it("puts the two ends of any padded domain inside the picture", () => {
    for (const [a, b] of pairs) {
      if (!(a < b) || !Number.isFinite(b)) continue;
      const scale = makeScale("linear", padDomain(a, b, false), [0, 400]);
      expect(scale.to(a), `${a} ${b}`).toBeLessThanOrEqual(scale.to(b));
      for (const end of [a, b]) expect(scale.to(end) >= -1 && scale.to(end) <= 401, `${a} ${b}`).toBe(true);
    }
  });

  it("does not draw rounding as if it were a change", () => {
    const [low, high] = padDomain(0.3, 0.1 + 0.2, false);
    expect(high - low).toBeGreaterThan(0.05);
  });

  it("has room for values that differ little, where it is asked to", () => {
    const [low, high] = padDomain(2.3, 2.31, false, 0.2);
    expect(high - low).toBeGreaterThan(0.4);
    expect(padDomain(1, 2, false, 0.2)).toEqual(padDomain(1, 2, false));
  });
});

describe("a chart", () => {
  const series = (ys: number[], xs: number[] = ys.map((_, i) => i)) => {
    const own = new Series();
    ys.forEach((y, i) => {
      own.push(xs[i], y, i);
    });
    own.extremes.extend(own.y, own.n);
    return own;
  };
  const size = { width: 400, height: 200 };
  const base = { ...size, theme: light, axis: "time" as const, smoothing: 0, cursor: 1 };

  it("of curves draws any two values, on either scale", () => {
    for (const pair of pairs)
      for (const ylog of [false, true]) {
        const curves = [{ series: series([...pair]), color: "#000000", label: "x" }];
        const guides = [{ value: pair[1], label: "guide" }];
        checkScene(lineScene({ ...base, xlog: false, ylog, domain: [0, 1], curves, guides }), pair);
      }
  });

  it("of curves draws any two places, on either axis", () => {
    for (const [a, b] of pairs) {
      if (!(a < b)) continue;
      const curves = [{ series: series([1, 2], [a, b]), color: "#000000", label: "x" }];
      for (const xlog of [false, true])
        checkScene(lineScene({ ...base, xlog, ylog: false, domain: [a, b], curves }), [a, b]);
      const view = zoomAround([a, b], [a, b], 0.5, a, false);
      expect(view === null || view.every(Number.isFinite)).toBe(true);
    }
  });

  it("of axes alone does, too", () => {
    const box = { x: 40, y: 8, width: 300, height: 150 };
    for (const pair of pairs) {
      const [x, y] = [makeScale("linear", pair, [40, 340]), makeScale("log", pair, [158, 8])];
      expect(axisMarks({ theme: light, axis: "step", xlog: false }, box, x, y).length).toBeLessThan(600);
    }
  });

  it("of tests, valleys and heat maps does, too", () => {
    const box = { x: 20, y: 6, width: 200, height: 150 };
    for (const [a, b] of pairs) {
      const colors = { norm: "#000000", inner: "#000000", ortho: "#000000" };
      checkScene(testsScene(size, box, [{ values: { norm: a, inner: b, ortho: a }, colors }], light), [a, b]);
      const fit = standardize({ ...makeFit(1, a), w0: a, w1: -Math.abs(b), w2: Math.abs(a), length: b }, 4);
      checkScene(
        parabolaScene({ ...size, box, theme: light, groups: [{ color: "#000000", all: [a, b], recent: [b], fit }] }),
        [a, b],
      );
      const edges = Float64Array.from([a, a, b, b, b]);
      const histogram = { ...makeHistogram("GradHist2d", 1), edges, counts: new Float64Array(20).fill(Math.abs(b)) };
      checkScene(
        heatmapScene({ ...size, outer: box, theme: light, histogram, most: b, color: "#000000", labels: true }),
        [a, b],
      );
    }
  });

  it.each(few)("of every panel draws a run that holds %d and %d", (a, b) => {
    const batch = makeBatch({ to: 4, value: (seq) => (seq % 2 ? b : a) });
    batch.time = Float64Array.from([0, 5e-324, 1e-300, 2e-300]);
    cockpit = open([batch]);
    for (const axis of ["step", "time"] as const)
      for (const yscale of ["linear", "log"] as const) {
        cockpit.app.set({ axis, yscale });
        const ctx = cockpit.app.context();
        for (const panel of panels) if (panel.draw && panel.shows(ctx)) checkScene(panel.draw(ctx, size), panel.id);
        cockpit.app.draw();
      }
    expect(axisDomain(cockpit.app.context().runs, cockpit.app.state).every(Number.isFinite)).toBe(true);
    expect(cockpit.element.textContent).not.toContain("This panel failed");
  });
});
