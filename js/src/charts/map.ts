// Layers against steps: one row each, one colour per value. One picture for six tensors or six hundred.
import { formatNumber } from "../data/format.ts";
import { lowerBound } from "../data/table.ts";
import { countColor, differenceColor, toHex } from "../draw/colors.ts";
import { pack } from "../draw/raster.ts";
import type { Scale } from "../draw/scale.ts";
import type { Box, Mark } from "../draw/scene.ts";
import { parseColor, type Theme } from "../draw/theme.ts";

export interface MapRow {
  xs: number[]; // on the shared axis, never going back
  values: number[];
}
export interface MapColors {
  low: number; // of log10
  high: number;
  difference: boolean; // values are ratios: 1 is in the middle
}

/** From the 2nd to the 98th per cent of what is above 0, at least one decade; ratios reach equally far to both sides. */
export function mapColors(rows: MapRow[], difference: boolean): MapColors {
  let found = scales.get(rows);
  if (found?.difference !== difference) scales.set(rows, (found = findColors(rows, difference)));
  return found;
}
const scales = new WeakMap<MapRow[], MapColors>();

function findColors(rows: MapRow[], difference: boolean): MapColors {
  const known = rows.flatMap(({ values }) => values.filter((v) => v > 0 && Number.isFinite(v)));
  const sorted = Float64Array.from(known).sort();
  const at = (share: number) => Math.log10(sorted[Math.round(share * (sorted.length - 1))]);
  if (difference) {
    const reach = sorted.length ? Math.max(0.3, Math.abs(at(0.02)), Math.abs(at(0.98))) : 1;
    return { low: -reach, high: reach, difference };
  }
  if (!sorted.length) return { low: -1, high: 0, difference };
  const [low, high] = [at(0.02), at(0.98)];
  return { low: Math.min(low, high - 1), high, difference };
}

/** A colour for each value: a number on the scale, exactly 0 (of a ratio, one of the two), or not a number. */
export function mapColor(value: number, { low, high, difference }: MapColors, theme: Theme): number[] {
  const isNone = difference && value === Number.POSITIVE_INFINITY; // divided by exactly 0
  if (!Number.isFinite(value) && !isNone) return parseColor(theme.warn);
  if (isNone || !(value > 0)) return parseColor(theme.dark ? "#000000" : "#16191d");
  const t = (Math.log10(value) - low) / (high - low);
  return difference ? differenceColor(Math.max(-1, Math.min(1, 2 * t - 1)) || 0.001) : countColor(t);
}

/** Of two values that share a pixel the worse is seen: what is not finite, else the larger one. */
const isWorse = (a: number, b: number) => Number.isFinite(b) && (!Number.isFinite(a) || a > b);

const known = new WeakMap<MapRow[], { key: string; rgba: Uint8ClampedArray }>();
const inks = new WeakMap<MapRow[], { colors: MapColors; dark: boolean; words: Uint32Array[] }>();

/** The colour of every value that was seen, worked out once: moving along the axis asks for them with every frame. */
function inkOf(rows: MapRow[], colors: MapColors, theme: Theme): Uint32Array[] {
  const { dark } = theme;
  let found = inks.get(rows);
  if (found?.colors !== colors || found.dark !== dark) {
    found = { colors, dark, words: rows.map(({ values }) => new Uint32Array(values.length)) };
    inks.set(rows, found);
  }
  return found.words;
}

/** Records that share a pixel, and how far they reach: [first, last, start, gap] for all that are seen. */
function stretches(xs: number[], xscale: Scale, box: Box, width: number): number[][] {
  const found: number[][] = [];
  const place = (x: number) => Math.round(xscale.to(x) - box.x);
  let i = Math.max(0, lowerBound(xs, xs.length, xscale.domain[0]) - 1); // what is before is not seen
  while (i > 0 && place(xs[i]) >= 0) i--;
  let before = i > 0 ? place(xs[i - 1]) : Number.NaN;
  let start = place(xs[i]);
  while (i < xs.length && start < width) {
    const first = i++;
    let next = Number.NaN;
    while (i < xs.length && (next = place(xs[i])) === start) i++;
    const gap = i < xs.length ? next - start : Math.max(4, start - before || 12);
    found.push([first, i - 1, start, gap]);
    [before, start] = [start, start + gap];
  }
  return found;
}

export function mapPixels(rows: MapRow[], xscale: Scale, box: Box, colors: MapColors, theme: Theme): Uint8ClampedArray {
  const width = Math.max(1, Math.round(box.width));
  const key = JSON.stringify([width, xscale.kind, xscale.domain, xscale.range, colors, theme.dark]);
  const cached = known.get(rows);
  if (cached?.key === key) return cached.rgba;
  const words = new Uint32Array(width * rows.length);
  const ink = inkOf(rows, colors, theme);
  let places: number[][] = [];
  rows.forEach(({ xs, values }, r) => {
    const paint = (i: number, from: number, to: number) => {
      if (to <= 0) return;
      ink[r][i] ||= pack(...(mapColor(values[i], colors, theme) as [number, number, number])); // 0 is no colour
      words.fill(ink[r][i], r * width + Math.max(0, from), r * width + Math.min(width, to));
    };
    if (xs !== rows[r - 1]?.xs) places = stretches(xs, xscale, box, width);
    // The pixel of several records shows the worst; what follows until the next one, the last.
    for (const [first, last, start, gap] of places) {
      let worst = first;
      for (let i = first + 1; i <= last; i++) if (isWorse(values[i], values[worst])) worst = i;
      paint(last, start, start + gap);
      if (worst !== last) paint(worst, start, start + 1);
    }
  });
  const rgba = new Uint8ClampedArray(words.buffer);
  known.set(rows, { key, rgba });
  return rgba;
}

/** The colours with their ends, and what has a colour of its own; to its right if the picture is wide enough. */
export function mapLegend(
  width: number,
  colors: MapColors,
  theme: Theme,
  values: number[],
): { marks: Mark[]; x: number } {
  const narrow = width < 360;
  const isZero = (value: number) => value === 0 || (colors.difference && value === Number.POSITIVE_INFINITY);
  const zero = colors.difference ? "one is 0" : "exactly 0";
  const own = [
    [values.some(isZero), 0, narrow ? "0" : zero],
    [values.some((value) => !Number.isFinite(value) && !isZero(value)), Number.NaN, narrow ? "NaN" : "not finite"],
  ] as const;
  const shown = own.filter(([there]) => there);
  const [bar, each] = narrow ? [44, 40] : [70, 78];
  const box = { x: Math.max(70, width - bar - 62 - each * shown.length), y: 5, width: bar };
  const steps = 24;
  const marks: Mark[] = [];
  for (let i = 0; i < steps; i++) {
    const value = 10 ** (colors.low + ((colors.high - colors.low) * (i + 0.5)) / steps);
    const fill = toHex(mapColor(value, colors, theme));
    marks.push({
      type: "rect",
      x: box.x + (box.width * i) / steps,
      y: box.y,
      width: box.width / steps + 0.6,
      height: 8,
      fill,
    });
  }
  const text = (x: number, words: string, anchor: "start" | "end") =>
    marks.push({ type: "text", x, y: box.y + 4, text: words, anchor, color: theme.quiet });
  const times = colors.difference ? "×" : "";
  text(box.x - 5, `${formatNumber(10 ** colors.low, 1)}${times}`, "end");
  text(box.x + box.width + 5, `${formatNumber(10 ** colors.high, 1)}${times}`, "start");
  let x = box.x + box.width + 50;
  for (const [, value, words] of shown) {
    marks.push({ type: "rect", x, y: box.y, width: 8, height: 8, fill: toHex(mapColor(value, colors, theme)) });
    text(x + 12, words, "start");
    x += each - 4;
  }
  return { marks, x: box.x };
}
