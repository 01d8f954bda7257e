// A 2D histogram: gradient element upwards, parameter value to the right, log counts as colour, both marginals as bars.

import type { HistogramData } from "../data/wire.ts";
import { countColor, differenceColor } from "../draw/colors.ts";
import { makeScale, type Scale } from "../draw/scale.ts";
import { type Box, emptyScene, type Mark, type Scene } from "../draw/scene.ts";
import type { Theme } from "../draw/theme.ts";
import { upright } from "./axes.ts";
import { binAxis } from "./bins.ts";
import { binMarks } from "./histogram.ts";

export interface HeatmapGeometry {
  map: Box;
  top: Box; // marginal of the parameters
  right: Box; // marginal of the gradients
  x: Scale;
  y: Scale;
}

export function heatmapGeometry(histogram: HistogramData, outer: Box, labels: boolean, plain = false): HeatmapGeometry {
  const [left, bottom] = [labels ? 64 : 38, plain ? 18 : 34];
  const side = plain ? 0 : Math.max(22, Math.min(56, outer.width * 0.16));
  const roof = plain ? 0 : Math.max(18, Math.min(44, outer.height * 0.16));
  const map = {
    x: outer.x + left,
    y: outer.y + roof + 4,
    width: Math.max(20, outer.width - left - side - 10),
    height: Math.max(20, outer.height - roof - bottom - 4),
  };
  const edges = histogram.edges;
  const across = histogram.parameter_edges ?? new Float64Array([0, 1]);
  return {
    map,
    top: { x: map.x, y: outer.y, width: map.width, height: roof },
    right: { x: map.x + map.width + 4, y: map.y, width: side, height: map.height },
    x: makeScale("linear", [across[0], across[across.length - 1]], [map.x, map.x + map.width]),
    y: makeScale("linear", [edges[0], edges[edges.length - 1]], [map.y + map.height, map.y]),
  };
}

/** Sums over parameters (one per gradient bin) and over gradients (one per parameter bin). */
export function marginals({ counts, shape }: HistogramData): { gradient: Float64Array; parameter: Float64Array } {
  const [rows, columns] = shape;
  const gradient = new Float64Array(rows);
  const parameter = new Float64Array(columns);
  for (let i = 0; i < rows; i++)
    for (let j = 0; j < columns; j++) {
      gradient[i] += counts[i * columns + j];
      parameter[j] += counts[i * columns + j];
    }
  return { gradient, parameter };
}

/** Shares of gradient and of parameter values that lie outside the range, and sit in the outermost bins. */
export function outsideShares(histogram: HistogramData): { gradient: number; parameter: number; broken: number } {
  const total = histogram.counts.reduce((sum, count) => sum + count, 0);
  const broken = histogram.nan + histogram.pos_inf + histogram.neg_inf;
  const of = (count: number) => (total > 0 ? count / total : 0);
  return {
    gradient: of(histogram.below + histogram.above),
    parameter: of(histogram.parameter_below + histogram.parameter_above),
    broken: total + broken > 0 ? broken / (total + broken) : 0,
  };
}

interface Grid {
  counts: Float64Array;
  shape: number[];
}

/** In a map with fewer pixels than bins each pixel is the largest of its bins (by size): none is lost between two. */
export function poolGrid({ counts, shape: [rows, columns] }: Grid, map: Box): Grid {
  const shape = [
    Math.min(rows, Math.max(1, Math.floor(map.height))),
    Math.min(columns, Math.max(1, Math.floor(map.width))),
  ];
  if (shape[0] === rows && shape[1] === columns) return { counts, shape };
  const pooled = new Float64Array(shape[0] * shape[1]);
  for (let i = 0; i < rows; i++)
    for (let j = 0; j < columns; j++) {
      const at = Math.floor((i * shape[0]) / rows) * shape[1] + Math.floor((j * shape[1]) / columns);
      const count = counts[i * columns + j];
      if (Math.abs(count) > Math.abs(pooled[at])) pooled[at] = count;
    }
  return { counts: pooled, shape };
}

/** Pixels, row 0 at the top: the largest gradient bin. `most` is the count that gets the brightest colour. */
export function countPixels(
  histogram: HistogramData,
  most: number,
  map: Box,
): { rgba: Uint8ClampedArray; shape: number[] } {
  const known = pictures.get(histogram);
  const pooled = known?.map === map || (known?.map.width === map.width && known.map.height === map.height);
  if (known && pooled && known.most === most) return known;
  const grid = poolGrid(histogram, map);
  const own = { most, map, shape: grid.shape, rgba: colorCounts(grid, most) };
  pictures.set(histogram, own);
  return own;
}

const pictures = new WeakMap<HistogramData, { most: number; map: Box; shape: number[]; rgba: Uint8ClampedArray }>();

function colorCounts({ counts, shape }: Grid, most: number): Uint8ClampedArray {
  const [rows, columns] = shape;
  const rgba = new Uint8ClampedArray(rows * columns * 4);
  const scale = Math.log1p(Math.max(1, most));
  for (let i = 0; i < rows; i++)
    for (let j = 0; j < columns; j++) {
      const count = counts[i * columns + j];
      if (!(count > 0)) continue;
      rgba.set([...countColor(Math.log1p(count) / scale), 255], ((rows - 1 - i) * columns + j) * 4);
    }
  return rgba;
}

/** Share of the second minus share of the first; the square root keeps small differences visible. */
export function differencePixels(
  first: HistogramData,
  second: HistogramData,
  map: Box = { x: 0, y: 0, width: 1e6, height: 1e6 },
): { rgba: Uint8ClampedArray; most: number; shape: number[] } {
  const total = (h: HistogramData) =>
    Math.max(
      1,
      h.counts.reduce((sum, count) => sum + count, 0),
    );
  const [a, b] = [total(first), total(second)];
  const whole = Float64Array.from(first.counts, (count, i) => second.counts[i] / b - count / a);
  const { counts: change, shape } = poolGrid({ counts: whole, shape: first.shape }, map);
  const [rows, columns] = shape;
  const largest = change.reduce((size, value) => Math.max(size, Math.abs(value)), 0);
  const most = largest > 1e-12 ? largest : 0; // the same shares up to rounding: no difference
  const rgba = new Uint8ClampedArray(rows * columns * 4);
  for (let i = 0; i < rows; i++)
    for (let j = 0; j < columns; j++) {
      const value = most ? change[i * columns + j] / most : 0;
      if (!value) continue;
      rgba.set(
        [...differenceColor(Math.sign(value) * Math.sqrt(Math.abs(value))), 255],
        ((rows - 1 - i) * columns + j) * 4,
      );
    }
  return { rgba, most, shape };
}

export interface HeatmapChart {
  width: number;
  height: number;
  outer: Box;
  theme: Theme;
  histogram: HistogramData;
  minus?: HistogramData; // then the picture is histogram - minus
  most: number;
  color: string;
  labels: boolean;
  plain?: boolean; // one of many: no marginals, no words
}

export function heatmapScene(chart: HeatmapChart): Scene {
  const scene = emptyScene(chart.width, chart.height);
  const { histogram, theme, minus } = chart;
  const at = heatmapGeometry(histogram, chart.outer, chart.labels, chart.plain);
  const { rgba, shape } = minus
    ? differencePixels(minus, histogram, at.map)
    : countPixels(histogram, chart.most, at.map);
  scene.marks.push({ type: "rect", ...at.map, stroke: theme.line });
  scene.marks.push({ type: "image", ...at.map, columns: shape[1], rows: shape[0], rgba });
  scene.marks.push(...rimMarks(at.map, histogram, theme), ...axisMarks(at, chart));
  if (!chart.plain) scene.marks.push(...marginalMarks(at, chart));
  return scene;
}

// The outermost bins also hold what lies outside: a dashed line sets them apart. On a log axis nothing does.
function rimMarks(map: Box, { edges, parameter_edges, shape: [rows, columns] }: HistogramData, theme: Theme): Mark[] {
  const w = binAxis(parameter_edges ?? edges).log ? 0 : map.width / columns;
  const h = binAxis(edges).log ? 0 : map.height / rows;
  if (!w && !h) return [];
  return [
    {
      type: "rect",
      x: map.x + w,
      y: map.y + h,
      width: map.width - 2 * w,
      height: map.height - 2 * h,
      stroke: theme.faint,
      dash: [2, 3],
      alpha: 0.8,
    },
  ];
}

function axisMarks({ map }: HeatmapGeometry, { theme, labels, plain, histogram }: HeatmapChart): Mark[] {
  const marks: Mark[] = [];
  const across = histogram.parameter_edges ?? new Float64Array([0, 1]);
  marks.push(...binMarks(across, map, theme).slice(1));
  for (const { share, label } of binAxis(histogram.edges).ticks(Math.max(2, Math.floor(map.height / 40)))) {
    const y = map.y + (1 - share) * map.height;
    marks.push({ type: "text", x: map.x - 5, y, text: label, anchor: "end", color: theme.quiet });
  }
  if (plain) return marks;
  marks.push({
    type: "text",
    x: map.x + map.width / 2,
    y: map.y + map.height + 25,
    text: "parameter value",
    anchor: "middle",
    color: theme.quiet,
  });
  if (labels) marks.push(upright(map.x - 56, map.y + map.height / 2, "individual gradient element", theme));
  return marks;
}

function marginalMarks(at: HeatmapGeometry, { histogram, color, theme }: HeatmapChart): Mark[] {
  const { gradient, parameter } = marginals(histogram);
  const tall = (counts: Float64Array) => {
    const most = Math.log1p(Math.max(1, ...counts));
    return Array.from(counts, (count) => Math.log1p(count) / most);
  };
  const marks: Mark[] = [];
  const bars = (heights: number[], place: (i: number, height: number) => number[]) => {
    const rim = [0, heights.length - 1];
    const boxes = (keep: (i: number) => boolean) =>
      heights.flatMap((height, i) => (keep(i) && height > 0 ? place(i, height) : []));
    marks.push({ type: "bars", boxes: boxes((i) => !rim.includes(i)), fill: color, alpha: 0.85 });
    return boxes((i) => rim.includes(i));
  };
  const w = at.map.width / parameter.length;
  const h = at.map.height / gradient.length;
  const topRim = bars(tall(parameter), (j, height) => [
    at.map.x + j * w + 0.5,
    at.top.y + at.top.height * (1 - height),
    Math.max(0.5, w - 1),
    at.top.height * height,
  ]);
  const rightRim = bars(tall(gradient), (i, height) => [
    at.right.x,
    at.map.y + at.map.height - (i + 1) * h + 0.5,
    at.right.width * height,
    Math.max(0.5, h - 1),
  ]);
  const overParameter = histogram.parameter_below + histogram.parameter_above > 0;
  const overGradient = histogram.below + histogram.above > 0;
  marks.push({ type: "bars", boxes: topRim, fill: overParameter ? theme.warn : color, alpha: 0.85 });
  marks.push({ type: "bars", boxes: rightRim, fill: overGradient ? theme.warn : color, alpha: 0.85 });
  return marks;
}
