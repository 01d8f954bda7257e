// 1D histograms with log counts: one alone, many as small multiples, and many steps as a heat strip over the shared axis.

import type { HistogramData } from "../data/wire.ts";
import { countColor } from "../draw/colors.ts";
import { pack } from "../draw/raster.ts";
import type { Scale } from "../draw/scale.ts";
import type { Box, Mark } from "../draw/scene.ts";
import type { Theme } from "../draw/theme.ts";
import { binAxis } from "./bins.ts";

/** Heights from 0 to 1 on a log scale; a single count is still visible. */
export function logHeights(counts: Float64Array, most: number): number[] {
  const scale = Math.log1p(Math.max(1, most));
  return Array.from(counts, (count) => Math.log1p(count) / scale);
}

export const largest = (counts: Float64Array) => counts.reduce((a, b) => Math.max(a, b), 0);

/** Bars from left to right; neighbours narrower than a pixel are joined by their maximum. */
export function histogramBoxes(counts: Float64Array, most: number, box: Box): number[] {
  const heights = logHeights(counts, most);
  const bins = Math.min(heights.length, Math.max(1, Math.floor(box.width)));
  const boxes: number[] = [];
  for (let b = 0; b < bins; b++) {
    const [from, to] = [Math.floor((b * heights.length) / bins), Math.floor(((b + 1) * heights.length) / bins)];
    const height = Math.max(...heights.slice(from, to)) * box.height;
    if (!(height > 0)) continue;
    const [x0, x1] = [box.x + (box.width * from) / heights.length, box.x + (box.width * to) / heights.length];
    boxes.push(x0, box.y + box.height - height, Math.max(0.6, x1 - x0 - (x1 - x0 > 3 ? 0.8 : 0)), height);
  }
  return boxes;
}

/** The upper edge of the same bars as one line: where many histograms lie over each other, filled ones hide each other. */
export function histogramOutline(counts: Float64Array, most: number, box: Box): { xs: number[]; ys: number[] } {
  const bottom = box.y + box.height;
  const [xs, ys]: number[][] = [[box.x], [bottom]];
  logHeights(counts, most).forEach((height, i, all) => {
    const y = bottom - height * box.height;
    xs.push(box.x + (box.width * i) / all.length, box.x + (box.width * (i + 1)) / all.length);
    ys.push(y, y);
  });
  return { xs: [...xs, box.x + box.width], ys: [...ys, bottom] };
}

/** Bars for one run or two, outlines for more. */
export function histogramMark(counts: Float64Array, most: number, box: Box, color: string, runs: number): Mark {
  if (runs > 2) return { type: "line", ...histogramOutline(counts, most, box), stroke: color, weight: 1.4 };
  return { type: "bars", boxes: histogramBoxes(counts, most, box), fill: color, alpha: runs > 1 ? 0.5 : 0.85 };
}

/** The line that bars stand on, with its numbers. */
export function binMarks(edges: Float64Array, box: Box, theme: Theme): Mark[] {
  const y = box.y + box.height;
  const base: Mark = { type: "line", xs: [box.x, box.x + box.width], ys: [y, y], stroke: theme.faint };
  const ticks = binAxis(edges).ticks(Math.max(3, Math.floor(box.width / 52)));
  const taken: [number, number][] = []; // the outermost numbers first: what would run into one is left out
  const marks = [...ticks]
    .sort((a, b) => Math.abs(b.share - 0.5) - Math.abs(a.share - 0.5))
    .flatMap(({ share, label }): Mark[] => {
      const anchor = share > 0.96 ? "end" : share < 0.04 ? "start" : "middle";
      const x = box.x + share * box.width;
      const size = 6.4 * label.length;
      const from = x - (anchor === "end" ? size : anchor === "start" ? 0 : size / 2);
      if (taken.some(([a, b]) => from < b && from + size > a)) return [];
      taken.push([from, from + size]);
      return [{ type: "text", x, y: y + 9, text: label, anchor, color: theme.quiet }];
    });
  return [base, ...marks];
}

/** Standard deviation of the binned values: how wide a layer's gradients spread. */
export function spread({ counts, edges }: HistogramData): number {
  let [total, sum, squares] = [0, 0, 0];
  counts.forEach((count, i) => {
    const value = (edges[i] + edges[i + 1]) / 2;
    total += count;
    sum += count * value;
    squares += count * value * value;
  });
  return total ? Math.sqrt(Math.max(0, squares / total - (sum / total) ** 2)) : 0;
}

/** Columns of a grid in which cells stay readable; `cell` is the shape that suits one. */
export function gridShape(
  count: number,
  width: number,
  height: number,
  cell = { width: 110, height: 62 },
): { columns: number; rows: number } {
  let best = { columns: 1, rows: count };
  let score = Number.NEGATIVE_INFINITY;
  for (let columns = 1; columns <= Math.min(count, 8); columns++) {
    const rows = Math.ceil(count / columns);
    const [w, h] = [width / columns, height / rows];
    const holes = columns * rows - count;
    const own = Math.min(w / cell.width, h / cell.height) - holes * 0.04;
    if (own > score) [score, best] = [own, { columns, rows }];
  }
  return best;
}

export interface StripColumn {
  x: number; // on the shared axis
  histogram: HistogramData;
}

const strips = new WeakMap<HistogramData, { key: string; rgba: Uint8ClampedArray }>();

/** Histograms over time: each step's log counts as one column of colour that reaches to the next step. */
export function stripMarks(columns: StripColumn[], box: Box, xscale: Scale, theme: Theme): Mark[] {
  if (!columns.length) return [];
  const { edges, counts } = columns[columns.length - 1].histogram; // what is no longer counted like that is left out
  const bins = counts.length;
  const alike = (own: Float64Array) =>
    own === edges || (own.length === edges.length && own[0] === edges[0] && own[bins] === edges[bins]);
  const same = columns.filter(({ histogram }) => alike(histogram.edges));
  const width = Math.max(1, Math.round(box.width));
  const rows = Math.min(bins, Math.max(1, Math.floor(box.height)));
  const starts = same.map(({ x }) => Math.round(xscale.to(x) - box.x));
  const key = JSON.stringify([width, rows, starts, same.map(({ histogram }) => histogram.step)]);
  let known = strips.get(same[0].histogram);
  if (known?.key !== key)
    strips.set(same[0].histogram, (known = { key, rgba: stripPixels(same, starts, width, rows) }));
  return [
    { type: "rect", ...box, stroke: theme.line },
    { type: "image", ...box, columns: width, rows, rgba: known.rgba },
  ];
}

/** Fewer numbers, each the largest of its share: no bin, however narrow, is lost between two pixels. */
export function poolLargest(counts: Float64Array, size: number): Float64Array {
  if (counts.length <= size) return counts;
  const pooled = new Float64Array(size);
  counts.forEach((count, i) => {
    const at = Math.floor((i * size) / counts.length);
    if (count > pooled[at]) pooled[at] = count;
  });
  return pooled;
}

function stripPixels(columns: StripColumn[], starts: number[], width: number, rows: number): Uint8ClampedArray {
  const most = Math.log1p(Math.max(1, ...columns.map(({ histogram }) => largest(histogram.counts))));
  const rgba = new Uint8ClampedArray(width * rows * 4);
  const words = new Uint32Array(rgba.buffer);
  columns.forEach(({ histogram }, c) => {
    const from = Math.max(0, starts[c]);
    const gap = c ? starts[c] - starts[c - 1] : (starts[1] ?? 12) - starts[0];
    const to = Math.min(width, c + 1 < starts.length ? starts[c + 1] : starts[c] + Math.max(6, gap));
    poolLargest(histogram.counts, rows).forEach((count, bin) => {
      if (!(count > 0)) return;
      const [r, g, b] = countColor(Math.log1p(count) / most);
      const row = (rows - 1 - bin) * width;
      words.fill(pack(r, g, b), row + from, row + to);
    });
  });
  return rgba;
}

/** At most `wanted` of the steps, evenly, and the same ones again when more are added: every 1st, 2nd, 4th, ... */
export function thinSteps(steps: ArrayLike<number>, wanted: number): number[] {
  let stride = 1;
  while (steps.length / stride > wanted) stride *= 2;
  return Array.from(steps as number[]).filter((_, i) => i % stride === 0);
}
