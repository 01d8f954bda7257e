// At most four points per pixel column: the first, the smallest, the largest and the last. No peak is ever lost.
import type { Scale } from "../scale.ts";
import type { Series } from "../series.ts";
import { lowerBound } from "../table.ts";

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

/** The same line again while nothing changed: scrubbing and hovering move only the cursor. */
export function decimate(series: Series, xscale: Scale, yscale: Scale): Polyline {
  const key = [xscale.kind, ...xscale.domain, ...xscale.range, yscale.kind, ...yscale.domain, ...yscale.range].join(
    " ",
  );
  let lines = known.get(series);
  if (!lines) known.set(series, (lines = new Map()));
  const cached = lines.get(key);
  if (cached?.n === series.n) return cached.line;
  const line = decimateAnew(series, xscale, yscale);
  lines.delete(key);
  lines.set(key, { n: series.n, line });
  if (lines.size > 4) lines.delete(lines.keys().next().value as string);
  return line;
}

function decimateAnew(series: Series, xscale: Scale, yscale: Scale): Polyline {
  const [from, to] = visibleRange(series, xscale.domain);
  const width = Math.max(1, Math.ceil(Math.abs(xscale.range[1] - xscale.range[0])));
  const out = new Drawing(Math.min(to - from, 4 * (width + 4)), yscale);
  const { x, y } = series;
  if (to - from <= width * 4) {
    for (let i = from; i < to; i++) out.put(xscale.to(x[i]), y[i]);
    return out.line(brokenPixels(series, from, to, xscale));
  }
  for (let i = from; i < to; ) {
    const pixel = Math.floor(xscale.to(x[i]));
    // Everything up to the next pixel; rounding at its edge must not let a column be empty or never end.
    const end = Math.min(to, Math.max(i + 1, lowerBound(x, to, xscale.from(pixel + 1))));
    putColumn(series, i, end, pixel + 0.5, out);
    i = end;
  }
  return out.line(brokenPixels(series, from, to, xscale));
}

// NaN is no extreme, so it is looked up apart: none may vanish among many.
function brokenPixels({ broken, x }: Series, from: number, to: number, xscale: Scale): number[] {
  const pixels = new Set<number>();
  for (let k = lowerBound(broken, broken.length, from); k < broken.length && broken[k] < to; k++)
    pixels.add(Math.round(xscale.to(x[broken[k]])));
  return [...pixels];
}

/** Points in pixels, written into arrays of known size: this runs for every curve of every run while zooming. */
class Drawing {
  private readonly xs: Float64Array;
  private readonly ys: Float64Array;
  private n = 0;

  constructor(
    size: number,
    private readonly yscale: Scale,
  ) {
    this.xs = new Float64Array(size);
    this.ys = new Float64Array(size);
  }

  put(x: number, value: number): void {
    if (this.n === this.xs.length) return;
    const y = this.yscale.kind === "log" && value <= 0 ? Number.NaN : this.yscale.to(value);
    this.xs[this.n] = x;
    this.ys[this.n++] = y - y === 0 ? y : Number.NaN;
  }

  line(broken: number[]): Polyline {
    return { xs: this.xs.subarray(0, this.n), ys: this.ys.subarray(0, this.n), broken };
  }
}

function putColumn(series: Series, from: number, to: number, x: number, out: Drawing): void {
  const { y } = series;
  if (to - from <= 4) {
    for (let i = from; i < to; i++) out.put(x, y[i]);
    return;
  }
  const [low, high] = series.extremes.range(y, from, to);
  const [first, last] = [y[from], y[to - 1]];
  if (first !== low && first !== high) out.put(x, first);
  if (low <= high) {
    out.put(x, low);
    if (high !== low) out.put(x, high);
  }
  if (last !== high) out.put(x, last);
}
