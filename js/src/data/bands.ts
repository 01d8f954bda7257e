// Several runs as one curve: their median at each step of the longest, and a band from the lowest to the highest.
import { Series } from "./series.ts";

export interface Band {
  middle: Series;
  low: Series;
  high: Series;
}

const known = new WeakMap<Series, { key: string; band: Band }>();

export function makeBand(all: Series[]): Band {
  const guide = all.reduce((best, own) => (own.n > best.n ? own : best), all[0] ?? new Series());
  const key = all.map(({ n, y }) => `${n} ${y[n - 1]}`).join(" ");
  const cached = known.get(guide);
  if (cached?.key === key) return cached.band;
  const band = { middle: new Series(), low: new Series(), high: new Series() };
  for (let i = 0; i < guide.n; i++) {
    const step = guide.step[i];
    const hits = all.flatMap((own) => {
      const hit = own.n && own.step[own.n - 1] >= step ? own.at(step) : null; // a run that ended has no say any more
      return hit && hit.step <= step ? [hit.value] : [];
    });
    const sorted = hits.filter((value) => !Number.isNaN(value)).sort((a, b) => a - b);
    const half = sorted.length >> 1;
    const middle = sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
    const put = (series: Series, value: number) => series.push(guide.x[i], value, step);
    put(band.middle, sorted.length ? middle : Number.NaN);
    put(band.low, sorted[0] ?? Number.NaN);
    put(band.high, sorted.at(-1) ?? Number.NaN);
  }
  for (const series of Object.values(band)) series.extremes.extend(series.y, series.n);
  known.set(guide, { key, band });
  return band;
}
