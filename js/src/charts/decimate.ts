// At most three points per pixel column: the smallest, the largest and the last. No peak is ever lost.

import type { Series } from "../data/series.ts";
import { lowerBound } from "../data/table.ts";
import type { Scale } from "../draw/scale.ts";

export interface Polyline {
  xs: Float64Array;
  ys: Float64Array;
  broken: number[]; // x pixels of values that are not finite
}

/** Indices of the part of the series that can be seen, with one neighbour on either side. */
export function visibleRange(series: Series, [low, high]: [number, number]): [number, number] {
  const from = Math.max(0, lowerBound(series.x, series.n, low) - 1);
  let to = lowerBound(series.x, series.n, high);
  while (to < series.n && series.x[to] <= high) to++;
  return [from, Math.min(series.n, to + 1)];
}

const known = new WeakMap<Series, Map<string, { n: number; line: Polyline }>>();

/** `grain` is the width of a column in pixels. The same line again while nothing changed: scrubbing and hovering move only the cursor. */
export function decimate(series: Series, xscale: Scale, yscale: Scale, grain = 1): Polyline {
  const key = [
    grain,
    xscale.kind,
    ...xscale.domain,
    ...xscale.range,
    yscale.kind,
    ...yscale.domain,
    ...yscale.range,
  ].join(" ");
  let lines = known.get(series);
  if (!lines) known.set(series, (lines = new Map()));
  const cached = lines.get(key);
  if (cached?.n === series.n) return cached.line;
  const line = decimateAnew(series, xscale, yscale, grain);
  lines.delete(key);
  lines.set(key, { n: series.n, line });
  if (lines.size > 2) lines.delete(lines.keys().next().value as string);
  return line;
}

function decimateAnew(series: Series, xscale: Scale, yscale: Scale, grain: number): Polyline {
  const [from, to] = visibleRange(series, xscale.domain);
  const width = Math.max(1, Math.ceil(Math.abs(xscale.range[1] - xscale.range[0]) / grain));
  const { x, y } = series;
  const out = new Drawing(to - from <= width * 2 ? to - from : 4 * (width + 4), yscale);
  if (to - from <= width * 2) for (let i = from; i < to; i++) out.put(xscale.to(x[i]), y[i]);
  else if (to - from < width * SCANNED) scanColumns(series, from, to, xscale, out, grain);
  else
    for (let i = from; i < to; ) {
      const pixel = Math.floor(xscale.to(x[i]) / grain) * grain;
      // Everything up to the next pixel; rounding at its edge must not let a column be empty or never end.
      const end = Math.min(to, Math.max(i + 1, lowerBound(x, to, xscale.from(pixel + grain))));
      putColumn(series, i, end, pixel + grain / 2, out);
      i = end;
    }
  return { ...out.line(), broken: brokenPixels(series, from, to, xscale) };
}

const SCANNED = 200; // values per pixel; above, looking up extremes is quicker than looking at every value

/** One walk over all values: this runs for every curve of every run while zooming. */
function scanColumns({ x, y }: Series, from: number, to: number, xscale: Scale, out: Drawing, grain: number): void {
  for (let i = from; i < to; ) {
    const left = Math.floor(xscale.to(x[i]) / grain) * grain;
    const edge = xscale.from(left + grain);
    const pixel = left + grain / 2;
    const first = y[i];
    let [low, high, last] = [first, first, first];
    let lowFirst = true; // NaN is neither smaller nor larger
    if (Number.isNaN(first)) [low, high] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
    for (i++; i < to && x[i] < edge; i++) {
      last = y[i];
      if (last < low) {
        low = last;
        lowFirst = false;
      }
      if (last > high) {
        high = last;
        lowFirst = true;
      }
    }
    if (low > high) out.put(pixel, Number.NaN);
    else if (low === high) out.put(pixel, low);
    else {
      out.put(pixel, lowFirst ? low : high);
      out.put(pixel, lowFirst ? high : low);
      if (last !== (lowFirst ? high : low)) out.put(pixel, last); // where the line goes on from
    }
  }
}

// NaN is no extreme, so it is looked up apart: none may vanish among many.
export function brokenPixels({ broken, x }: Series, from: number, to: number, xscale: Scale): number[] {
  if (!broken.length) return [];
  const pixels = new Set<number>();
  for (let k = lowerBound(broken, broken.length, from); k < broken.length && broken[k] < to; k++)
    pixels.add(Math.round(xscale.to(x[broken[k]])));
  return [...pixels];
}

let [roomX, roomY] = [new Float64Array(4096), new Float64Array(4096)]; // where lines are made, one at a time

/** Points in pixels, at most `size` of them. */
class Drawing {
  private readonly xs: Float64Array;
  private readonly ys: Float64Array;
  private readonly log: boolean;
  private n = 0;

  constructor(
    private readonly size: number,
    private readonly yscale: Scale,
  ) {
    if (size > roomX.length) [roomX, roomY] = [new Float64Array(size), new Float64Array(size)];
    [this.xs, this.ys] = [roomX, roomY];
    this.log = yscale.kind === "log";
  }

  put(x: number, value: number): void {
    if (this.n === this.size) return;
    const y = this.log && value <= 0 ? Number.NaN : this.yscale.to(value);
    this.xs[this.n] = x;
    this.ys[this.n++] = y - y === 0 ? y : Number.NaN;
  }

  line(): { xs: Float64Array; ys: Float64Array } {
    return { xs: this.xs.slice(0, this.n), ys: this.ys.slice(0, this.n) };
  }
}

function putColumn(series: Series, from: number, to: number, x: number, out: Drawing): void {
  const { y } = series;
  const [low, high] = series.extremes.range(y, from, to);
  const last = y[to - 1];
  if (low > high) out.put(x, Number.NaN);
  else {
    out.put(x, low);
    if (high !== low) out.put(x, high);
    if (last !== high) out.put(x, last);
  }
}
