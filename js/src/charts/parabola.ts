// The valley in standard coordinates: -1 is where the step began, 0 the floor, +1 the opposite wall; height = x squared.

import { density, EDGE, inOrder, median } from "../data/density.ts";
import { lowerBound } from "../data/table.ts";
import type { AlphaFit } from "../data/wire.ts";
import { makeScale, type Scale } from "../draw/scale.ts";
import { type Box, emptyScene, type LineMark, type Mark, type Scene } from "../draw/scene.ts";
import type { Theme } from "../draw/theme.ts";
import { upright } from "./axes.ts";

const TOP = 3.9;
const MOST_DENSITIES = 5; // more only cover each other

/** The fit of one step on the standard parabola; null where it has no floor (w2 <= 0) or leads uphill (w1 >= 0). */
export interface StandardFit {
  end: number; // where the step ended: alpha, by the fit itself
  start: { y: number; slope: number; error: number };
  stop: { y: number; slope: number; error: number };
}

export function standardize(fit: AlphaFit, batch_size: number): StandardFit | null {
  const { w0, w1, w2, length } = fit;
  if (!(w2 > 0) || !(w1 < 0) || !(length > 0)) return null;
  const floor = -w1 / (2 * w2); // distance from the start to the valley floor
  const depth = (w1 * w1) / (4 * w2); // height of the start above it
  const lowest = w0 - depth;
  const count = Math.max(1, batch_size);
  const point = (loss: number, slope: number, variance: number) => ({
    y: (loss - lowest) / depth,
    slope: (slope * floor) / depth,
    error: Math.sqrt(variance / count) / depth, // standard error of the mean: variances are those of single samples
  });
  return {
    end: length / floor - 1,
    start: point(fit.loss_start, fit.slope_start, fit.loss_var_start),
    stop: point(fit.loss_end, fit.slope_end, fit.loss_var_end),
  };
}

export interface AlphaGroup {
  color: string;
  all: number[] | Float64Array;
  recent: number[] | Float64Array;
  fit: StandardFit | null;
}
export interface ParabolaChart {
  width: number;
  height: number;
  box: Box; // of the plot without its labels
  theme: Theme;
  groups: AlphaGroup[];
}

export function parabolaScales(box: Box): { x: Scale; y: Scale } {
  return {
    x: makeScale("linear", [-EDGE, EDGE], [box.x, box.x + box.width]),
    y: makeScale("linear", [-0.45, TOP], [box.y + box.height, box.y]),
  };
}

export function parabolaScene(chart: ParabolaChart): Scene {
  const scene = emptyScene(chart.width, chart.height);
  const { x, y } = parabolaScales(chart.box);
  const { marks } = scene;
  marks.push(...guides(chart, x, y));
  const count = chart.groups.length;
  if (count > MOST_DENSITIES) marks.push(...quantileMarks(chart, x, y));
  for (const group of count > MOST_DENSITIES ? [] : chart.groups) {
    if (count < 3) {
      const [color, alpha] = count === 1 ? [chart.theme.faint, 0.42] : [group.color, 0.12];
      marks.push(areaMark(density(group.all), chart, x, color, alpha));
    }
    // For more than two runs only the recent part, as outlines: areas would cover each other.
    const area = areaMark(density(group.recent), chart, x, group.color, count === 1 ? 0.5 : count === 2 ? 0.3 : 1);
    marks.push(count < 3 ? area : { ...area, fill: undefined, closed: false, weight: 1.6 });
  }
  const curve = Array.from({ length: 77 }, (_, i) => -EDGE + (2 * EDGE * i) / 76);
  marks.push({
    type: "line",
    xs: curve.map(x.to),
    ys: curve.map((v) => y.to(v * v)),
    stroke: chart.theme.text,
    weight: 2,
    alpha: 0.75,
  });
  for (const group of count > MOST_DENSITIES ? [] : chart.groups) {
    marks.push(...medianMarks(group, chart, x, y));
    if (group.fit) marks.push(...fitMarks(group.fit, group.color, chart, x, y));
  }
  marks.push(...edgeMarks(chart));
  return scene;
}

/** Many runs: one line each, of the recent part. Thin from the 5th to the 95th per cent, thick the middle half, a dot. */
function quantileMarks({ groups, box, theme }: ParabolaChart, x: Scale, y: Scale): Mark[] {
  const pitch = (y.to(0) - box.y - 8) / groups.length;
  return groups.flatMap(({ recent, color }, i): Mark[] => {
    const sorted = inOrder(recent);
    if (!sorted.length) return [];
    const at = (share: number) => x.to(hold(sorted[Math.round(share * (sorted.length - 1))]));
    const row = box.y + 6 + (i + 0.5) * pitch;
    const line = (from: number, to: number, weight: number): Mark => ({
      ...{ type: "line", xs: [at(from), at(to)], ys: [row, row], stroke: color, weight },
    });
    const dot: Mark = {
      type: "dots",
      xs: [at(0.5)],
      ys: [row],
      radius: 3.5,
      fill: color,
      stroke: theme.card,
      weight: 1,
    };
    return [line(0.05, 0.95, 1.2), line(0.25, 0.75, Math.max(2, Math.min(6, pitch * 0.5))), dot];
  });
}

const hold = (value: number) => Math.max(-EDGE, Math.min(EDGE, value));

function guides({ box, theme, groups }: ParabolaChart, x: Scale, y: Scale): Mark[] {
  const marks: Mark[] = [];
  const narrow = box.width < 350;
  const words: [number, string, string][] = [
    [-1, "−1 start", "−1 stands still"],
    [0, "0 floor", "0 valley floor"],
    [1, "+1 wall", "+1 opposite wall"],
  ];
  const base = y.to(0);
  for (const [value, short, long] of words) {
    const at = x.to(value);
    marks.push({ type: "line", xs: [at, at], ys: [box.y, base], stroke: theme.line });
    marks.push({
      type: "text",
      x: at,
      y: box.y + box.height + 9,
      text: narrow ? short : long,
      anchor: "middle",
      color: theme.quiet,
    });
  }
  marks.push({ type: "line", xs: [box.x, box.x + box.width], ys: [base, base], stroke: theme.faint });
  const many = groups.length > MOST_DENSITIES; // then heights tell the runs apart, and are no losses
  for (const value of many ? [] : [0, 1, 2, 3])
    marks.push({ type: "text", x: box.x - 6, y: y.to(value), text: String(value), anchor: "end", color: theme.quiet });
  marks.push(upright(box.x - 30, box.y + box.height / 2, many ? "one row per run" : "standardised loss", theme));
  return marks;
}

function areaMark(heights: number[], { box }: ParabolaChart, x: Scale, fill: string, alpha: number): LineMark {
  const { y } = parabolaScales(box);
  const base = y.to(0);
  const tall = (base - box.y) * 0.62;
  const xs = heights.map((_, i) => x.to(-EDGE + (2 * EDGE * i) / (heights.length - 1)));
  const ys = heights.map((height) => base - height * tall);
  return {
    type: "line",
    xs: [xs[0], ...xs, xs[xs.length - 1]],
    ys: [base, ...ys, base],
    closed: true,
    fill,
    stroke: fill,
    alpha,
  };
}

function medianMarks(group: AlphaGroup, { theme, groups }: ParabolaChart, x: Scale, y: Scale): Mark[] {
  const base = y.to(0);
  return [
    { value: median(group.all), color: groups.length === 1 ? theme.quiet : group.color, filled: false },
    { value: median(group.recent), color: group.color, filled: true },
  ].flatMap(({ value, color, filled }): Mark[] => {
    if (!(Math.abs(value) <= EDGE)) return [];
    const at = x.to(value);
    return [
      {
        type: "line",
        xs: [at - 5, at, at + 5],
        ys: [base + 9, base + 1, base + 9],
        closed: true,
        fill: filled ? color : theme.card,
        stroke: color,
        weight: 1.4,
      },
    ];
  });
}

// Two noisy observations, each with its slope and one standard error. The losses come from different batches, so one may
// lie far above or below the fitted valley: then a triangle at the edge points to it.
function fitMarks(fit: StandardFit, color: string, chart: ParabolaChart, x: Scale, y: Scale): Mark[] {
  const { box, theme, groups } = chart;
  const ink = groups.length > 1 ? color : theme.text;
  const ends = [
    { at: -1, ...fit.start, fill: color },
    { at: fit.end, ...fit.stop, fill: theme.card },
  ];
  return ends.flatMap(({ at, y: height, slope, error, fill }): Mark[] => {
    if (!(Math.abs(at) <= EDGE) || !Number.isFinite(height)) return [];
    const [px, py] = [x.to(at), y.to(height)];
    const outline = { live: true, stroke: ink, weight: 1.4, fill } as const;
    const bar = errorBar(px, y.to(height - error), y.to(height + error), ink, box);
    if (py < box.y || py > box.y + box.height) {
      const [tip, base] = py < box.y ? [box.y + 1, box.y + 9] : [box.y + box.height - 1, box.y + box.height - 9];
      return [bar, { type: "line", xs: [px - 5, px, px + 5], ys: [base, tip, base], closed: true, ...outline }];
    }
    const reach = Math.min(0.28, 0.9 / Math.max(0.1, Math.abs(slope)));
    const tangent = {
      xs: [x.to(at - reach), x.to(at + reach)],
      ys: [y.to(height - slope * reach), y.to(height + slope * reach)],
    };
    return [
      bar,
      { type: "line", live: true, ...tangent, stroke: ink, weight: 1.8, clip: box },
      { type: "dots", xs: [px], ys: [py], radius: 4.5, ...outline, clip: box },
    ];
  });
}

// With caps, so that it is no grid line; one that leaves the picture has none there.
function errorBar(x: number, low: number, high: number, stroke: string, clip: Box): Mark {
  const nan = Number.NaN;
  return {
    type: "line",
    live: true,
    xs: [x, x, nan, x - 4, x + 4, nan, x - 4, x + 4],
    ys: [low, high, nan, low, low, nan, high, high],
    stroke,
    alpha: 0.45,
    clip,
  };
}

/** How many finite values lie below and above the scale. */
export function countOutside(values: number[] | Float64Array): [number, number] {
  const sorted = inOrder(values);
  let above = sorted.length;
  while (above && sorted[above - 1] > EDGE) above--;
  return [lowerBound(sorted, sorted.length, -EDGE), sorted.length - above];
}

function edgeMarks({ box, theme, groups }: ParabolaChart): Mark[] {
  let [below, above] = [0, 0];
  for (const { all } of groups) {
    const [low, high] = countOutside(all);
    below += low;
    above += high;
  }
  const marks: Mark[] = [];
  const y = parabolaScales(box).y.to(0) - 9; // above the floor line, where the walls have left
  const text = { type: "text", y, color: theme.warn, baseline: "middle" } as const;
  if (below) marks.push({ ...text, x: box.x + 3, text: `◂ ${below} off`, title: `${below} below the scale` });
  if (above)
    marks.push({
      ...text,
      x: box.x + box.width - 3,
      text: `${above} off ▸`,
      anchor: "end",
      title: `${above} above the scale`,
    });
  return marks;
}
