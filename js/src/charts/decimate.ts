// At most four points per pixel column: the first, the smallest, the largest and the last. No peak is ever lost.
import type { Scale } from "../scale.ts";
import type { Series } from "../series.ts";
import { lowerBound } from "../table.ts";

export interface Polyline {
  xs: number[];
  ys: number[];
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
  const width = Math.max(1, Math.abs(xscale.range[1] - xscale.range[0]));
  const line: Polyline = { xs: [], ys: [], broken: [] };
  const put = (x: number, value: number) => {
    const y = yscale.kind === "log" && value <= 0 ? Number.NaN : yscale.to(value);
    line.xs.push(x);
    line.ys.push(Number.isFinite(y) ? y : Number.NaN);
    if (!Number.isFinite(value)) line.broken.push(x);
  };
  if (to - from <= width * 4) {
    for (let i = from; i < to; i++) put(xscale.to(series.x[i]), series.y[i]);
    return line;
  }
  for (let i = from; i < to; ) {
    const pixel = Math.floor(xscale.to(series.x[i]));
    let end = Math.min(to, Math.max(i + 1, lowerBound(series.x, to, xscale.from(pixel + 1))));
    while (end > i + 1 && Math.floor(xscale.to(series.x[end - 1])) > pixel) end--;
    putColumn(series, i, end, pixel + 0.5, put);
    i = end;
  }
  return line;
}

function putColumn(series: Series, from: number, to: number, x: number, put: (x: number, value: number) => void): void {
  if (to - from <= 4) {
    for (let i = from; i < to; i++) put(x, series.y[i]);
    return;
  }
  const [low, high] = series.extremes.range(series.y, from, to);
  put(x, series.y[from]);
  if (low <= high) {
    put(x, low);
    put(x, high);
  }
  put(x, series.y[to - 1]);
}
