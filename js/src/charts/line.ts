// Curves over the shared axis: decimated lines, error bands, decision lines, the playhead.

import type { Series } from "../data/series.ts";
import { SHORTEST, smooth } from "../data/smooth.ts";
import { makeScale, padDomain, type Scale } from "../draw/scale.ts";
import { type Box, emptyScene, type LegendItem, type Mark, type Scene } from "../draw/scene.ts";
import { type AxisOptions, axisMarks, type Guide, guideMarks } from "./axes.ts";
import { brokenPixels, decimate, visibleRange } from "./decimate.ts";

export interface Curve {
  series: Series;
  color: string;
  label: string;
  dash?: number[];
  error?: Series | null; // drawn as a band of one standard error
  band?: { low: Series; high: Series }; // drawn as a band from one to the other, with the same places
  dots?: boolean;
  thin?: boolean;
  exact?: boolean; // never smoothed
}
export interface LineChart extends AxisOptions {
  width: number;
  height: number;
  domain: [number, number];
  ylog: boolean;
  smoothing: number;
  curves: Curve[];
  guides?: Guide[];
  cursor?: number | null; // step
  cursorAt?: number | null; // where that step stands on the axis: the curves may have ended before it
  legend?: LegendItem[];
  box?: Box; // where to draw, the whole by default
  yrange?: [number, number];
  least?: number; // the least relative height of the range
  holds?: number[]; // values that are always in the range
}

/** Smallest and largest finite value in sight; on a log scale only what is above 0 counts. */
export function valueRange(curves: Curve[], domain: [number, number], log: boolean): [number, number] {
  let [low, high] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  const take = (value: number) => {
    if (!Number.isFinite(value) || (log && value <= 0)) return;
    low = Math.min(low, value);
    high = Math.max(high, value);
  };
  for (const series of curves.flatMap((own) => [own.series, ...(own.band ? [own.band.low, own.band.high] : [])])) {
    const [from, to] = visibleRange(series, domain);
    const [a, b] = series.extremes.range(series.y, from, to);
    if (Number.isFinite(a) && Number.isFinite(b) && (!log || a > 0)) {
      take(a);
      take(b);
    } else for (let i = from; i < to; i++) take(series.y[i]);
  }
  for (const curve of curves) {
    const last = curve.error ? visibleRange(curve.series, domain)[1] - 1 : -1;
    if (last >= 0) errorEnds(curve, last).forEach(take); // of the number beside the title; all of them may be huge
  }
  return [low, high];
}

function withGuides([low, high]: [number, number], guides: Guide[], log: boolean): [number, number] {
  let [a, b] = [low, high];
  for (const { value } of guides) {
    if (!Number.isFinite(value) || (log && value <= 0)) continue;
    const near = log
      ? value > low / 1000 && value < high * 1000
      : Math.abs(value - (low + high) / 2) < 5 * (high - low || Math.abs(high) || 1);
    if (!near && Number.isFinite(low)) continue;
    a = Math.min(a, value);
    b = Math.max(b, value);
  }
  return [a, b];
}

/** Whether the curves go below zero now and then: a log axis would be full of holes. */
export function hasSigns(curves: Curve[], domain: [number, number]): boolean {
  let [below, all] = [0, 0];
  for (const { series } of curves) {
    const [from, to] = visibleRange(series, domain);
    all += to - from;
    if (series.extremes.range(series.y, from, to)[0] >= 0) continue;
    for (let i = from; i < to; i++) if (series.y[i] < 0) below++;
  }
  return below > all / 20;
}

// A log axis has no place for zero and below; their number is shown instead.
function countHidden(chart: LineChart): number {
  let hidden = 0;
  for (const { series } of chart.curves) {
    const [from, to] = visibleRange(series, chart.domain);
    if (series.extremes.range(series.y, from, to)[0] > 0) continue;
    for (let i = from; i < to; i++) if (series.y[i] <= 0) hidden++;
  }
  return hidden;
}

export function plotBox(chart: LineChart): Box {
  const outer = chart.box ?? { x: 0, y: 0, width: chart.width, height: chart.height };
  const left = chart.ylabel ? 56 : 42;
  const bottom = chart.bare ? 6 : 32;
  const [x, y] = [outer.x + left, outer.y + 8];
  return { x, y, width: Math.max(20, outer.width - left - 12), height: Math.max(16, outer.height - 8 - bottom) };
}

/** As long as there is room between the name of the axis, in the middle, and the end. */
function hiddenWords(count: number, width: number): string {
  const whole = `${count} ${count > 1 ? "values" : "value"} ≤ 0 not shown`;
  return 6.2 * whole.length < width / 2 - 28 ? whole : `${count} ≤ 0 hidden`;
}

export function lineScene(chart: LineChart): Scene {
  const scene = emptyScene(chart.width, chart.height);
  const box = plotBox(chart);
  const xscale = makeScale(chart.xlog ? "log1p" : "linear", chart.domain, [box.x, box.x + box.width]);
  const [low, high] = withGuides(valueRange(chart.curves, chart.domain, chart.ylog), chart.guides ?? [], chart.ylog);
  const holds = chart.ylog || !Number.isFinite(low) ? [] : (chart.holds ?? []);
  const range = chart.yrange ?? padDomain(Math.min(low, ...holds), Math.max(high, ...holds), chart.ylog, chart.least);
  const yscale = makeScale(chart.ylog ? "log" : "linear", range, [box.y + box.height, box.y]);
  scene.marks.push(...axisMarks(chart, box, xscale, yscale));
  for (const curve of chart.curves) scene.marks.push(...curveMarks(curve, chart, box, xscale, yscale));
  for (const guide of chart.guides ?? []) scene.marks.push(...guideMarks(guide, chart.theme, box, yscale));
  if (chart.cursor !== null && chart.cursor !== undefined)
    scene.marks.push(...cursorMarks(chart.cursor, chart, box, xscale, yscale));
  const hidden = chart.ylog ? countHidden(chart) : 0;
  if (hidden)
    scene.marks.push({
      type: "text",
      x: box.x + box.width,
      y: box.y + box.height + (chart.bare ? -8 : 25),
      text: hiddenWords(hidden, box.width),
      anchor: "end",
      color: chart.theme.quiet,
    });
  scene.frames.push({ ...box, xscale });
  scene.legend = chart.legend ?? [];
  return scene;
}

function curveMarks(curve: Curve, chart: LineChart, box: Box, xscale: Scale, yscale: Scale): Mark[] {
  const marks: Mark[] = [];
  const { color, dash } = curve;
  const smoothed = chart.smoothing > 0 && curve.series.n >= SHORTEST && !curve.exact;
  // With many curves the raw ones below the smoothed only hide each other.
  const covered = smoothed && !curve.dots && chart.curves.length > 8;
  const grain = chart.curves.length > 8 ? 2 : 1; // where many curves lie over each other, nobody sees a single pixel
  const raw = covered ? null : decimate(curve.series, xscale, yscale, grain);
  const broken = raw?.broken ?? brokenPixels(curve.series, ...visibleRange(curve.series, chart.domain), xscale);
  if (curve.error?.n || curve.band) marks.push(bandMark(curve, box, xscale, yscale));
  if (raw && (curve.dots || curve.series.n === 1)) {
    const alone = curve.series.n === 1; // a single record stands at the edge, and is to be seen
    const radius = alone ? 4.5 : 1.4;
    marks.push({
      type: "dots",
      xs: raw.xs,
      ys: raw.ys,
      radius,
      fill: color,
      alpha: alone ? 1 : 0.55,
      clip: alone ? undefined : box,
    });
  }
  if (raw && !curve.dots) {
    const weight = curve.thin ? 1 : 1.5;
    marks.push({
      type: "line",
      xs: raw.xs,
      ys: raw.ys,
      stroke: color,
      weight,
      dash,
      alpha: smoothed ? 0.28 : 1,
      clip: box,
      curve: true,
    });
  }
  if (raw && !curve.dots && curve.series.n > 1 && broken.length) {
    const [xs, ys] = pickLonely(raw.xs, raw.ys);
    if (xs.length) marks.push({ type: "dots", xs, ys, radius: 2.5, fill: color, clip: box });
  }
  if (smoothed) {
    const calm = decimate(smooth(curve.series, chart.smoothing), xscale, yscale, grain);
    marks.push({
      type: "line",
      xs: calm.xs,
      ys: calm.ys,
      stroke: color,
      weight: curve.thin ? 1.2 : 1.8,
      dash,
      clip: box,
      curve: true,
    });
  }
  marks.push(...brokenMarks(broken, box, chart.theme.warn));
  return marks;
}

/** Values between two that are not finite: a line through one point has no length. */
function pickLonely(xs: ArrayLike<number>, ys: ArrayLike<number>): [number[], number[]] {
  const points: [number[], number[]] = [[], []];
  for (let i = 0; i < ys.length; i++) {
    if (Number.isFinite(ys[i]) && !Number.isFinite(ys[i - 1]) && !Number.isFinite(ys[i + 1])) {
      points[0].push(xs[i]);
      points[1].push(ys[i]);
    }
  }
  return points;
}

const APART = 9; // pixels between two crosses that can be told apart

/** A value that is not finite has no height: a cross at the upper edge says where, a bar from cross to cross how long. */
export function brokenMarks(places: number[], box: Box, color: string): Mark[] {
  const y = box.y + 4;
  const marks: Mark[] = [];
  const sorted = [...places].sort((a, b) => a - b);
  for (let i = 0; i < sorted.length; ) {
    const from = sorted[i];
    let to = from;
    while (i < sorted.length && sorted[i] - to < APART) to = sorted[i++];
    marks.push(crossMark(from, y, color));
    if (to - from < APART) continue;
    marks.push(
      { type: "rect", x: from, y: y - 1.5, width: to - from, height: 3, fill: color },
      crossMark(to, y, color),
    );
  }
  return marks;
}

function crossMark(x: number, y: number, color: string): Mark {
  const nan = Number.NaN;
  return {
    type: "line",
    xs: [x - 3, x + 3, nan, x - 3, x + 3],
    ys: [y - 3, y + 3, nan, y + 3, y - 3],
    stroke: color,
    weight: 1.4,
  };
}

interface Outline {
  xs: number[];
  ys: number[];
}
const outlines = new WeakMap<Series, { key: string; outline: Outline }>();

function bandMark(curve: Curve, box: Box, xscale: Scale, yscale: Scale): Mark {
  const key = JSON.stringify([
    curve.series.n,
    curve.error?.n,
    xscale.kind,
    xscale.domain,
    xscale.range,
    yscale.kind,
    yscale.domain,
    yscale.range,
  ]);
  let known = outlines.get(curve.series);
  if (known?.key !== key)
    outlines.set(curve.series, (known = { key, outline: bandOutline(curve, box, xscale, yscale) }));
  return { type: "line", ...known.outline, closed: true, fill: curve.color, alpha: 0.18, clip: box };
}

/** One standard error below and above a value that has one, NaN elsewhere. */
function errorEnds({ series, error }: Curve, index: number): [number, number] {
  const own = error?.at(series.step[index]);
  const size = own && own.step === series.step[index] ? own.value : Number.NaN;
  return [series.y[index] - size, series.y[index] + size];
}

function bandOutline(curve: Curve, box: Box, xscale: Scale, yscale: Scale): Outline {
  const { series, band } = curve;
  const [from, to] = visibleRange(series, xscale.domain);
  const stride = Math.max(1, Math.floor((to - from) / (box.width * 2)));
  const [xs, upper, lower]: number[][] = [[], [], []];
  for (let i = from; i < to; i += stride) {
    const [below, above] = band ? [band.low.y[i], band.high.y[i]] : errorEnds(curve, i);
    if (!Number.isFinite(below) || !Number.isFinite(above)) continue;
    const floor = yscale.kind === "log" ? yscale.domain[0] : Number.NEGATIVE_INFINITY;
    xs.push(xscale.to(series.x[i]));
    upper.push(yscale.to(Math.max(above, floor)));
    lower.push(yscale.to(Math.max(below, floor)));
  }
  return { xs: [...xs, ...xs.slice().reverse()], ys: [...upper, ...lower.reverse()] };
}

function cursorMarks(step: number, chart: LineChart, box: Box, xscale: Scale, yscale: Scale): Mark[] {
  const marks: Mark[] = [];
  const inside = (x: number) => x >= box.x - 0.5 && x <= box.x + box.width + 0.5;
  const first = chart.curves.map(({ series }) => ({ series, hit: series.at(step) })).find(({ hit }) => hit);
  const place = chart.cursorAt ?? (first?.hit ? first.series.x[first.hit.index] : null);
  const line = place === null ? Number.NaN : xscale.to(place);
  if (inside(line))
    marks.push({
      type: "line",
      live: true,
      xs: [line, line],
      ys: [box.y, box.y + box.height],
      stroke: chart.theme.quiet,
      alpha: 0.7,
    });
  for (const curve of chart.curves) {
    const hit = curve.series.at(step);
    if (!hit) continue;
    const x = xscale.to(curve.series.x[hit.index]);
    if (!inside(x)) continue;
    if (!Number.isFinite(hit.value) || (chart.ylog && hit.value <= 0) || curve.thin) continue;
    const y = yscale.to(hit.value);
    if (y < box.y - 1 || y > box.y + box.height + 1) continue;
    marks.push({
      type: "dots",
      live: true,
      xs: [x],
      ys: [y],
      radius: 3,
      fill: curve.color,
      stroke: chart.theme.card,
      weight: 1.2,
    });
  }
  return marks;
}
