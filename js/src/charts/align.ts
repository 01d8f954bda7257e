// Log bins of several histograms on one axis: each stores only the magnitudes that occur, and they may differ from one to the next.
import type { HistogramData } from "../data/wire.ts";
import { binAxis } from "./bins.ts";

/** Magnitudes low * factor^i, i = 0 .. count, in both signs around one bin for zero. */
interface Grid {
  low: number;
  factor: number;
  count: number;
}

const grids = new WeakMap<Float64Array, Grid | null>();
const axes = new Map<string, Float64Array>(); // the same edges again for the same grid: caches go by these arrays
const aligned = new WeakMap<HistogramData, WeakMap<Float64Array, HistogramData>>();

function gridOf(edges: Float64Array): Grid | null {
  const known = grids.get(edges);
  if (known !== undefined) return known;
  const { zero } = binAxis(edges);
  const count = edges.length - 2 - (zero ?? 0);
  const low = zero === null ? 0 : edges[zero + 1];
  const grid = zero === count ? { low, count, factor: (edges[edges.length - 1] / low) ** (1 / count) } : null;
  grids.set(edges, grid);
  return grid;
}

/** How many bins lie between two magnitudes; NaN where that is no whole number. */
function distance(from: number, to: number, factor: number): number {
  const bins = Math.log(to / from) / Math.log(factor);
  return Math.abs(bins - Math.round(bins)) < 0.01 ? Math.round(bins) : Number.NaN;
}

/** The smallest grid that holds all; null where they are not parts of one. */
function joinGrids(all: Grid[]): Grid | null {
  const [{ factor }] = all;
  if (all.some((grid) => Math.abs(Math.log(grid.factor) / Math.log(factor) - 1) > 1e-4)) return null;
  const low = Math.min(...all.map((grid) => grid.low));
  const ends = all.map((grid) => distance(low, grid.low, factor) + grid.count);
  return ends.every(Number.isInteger) ? { low, factor, count: Math.max(...ends) } : null;
}

function edgesOf({ low, factor, count }: Grid): Float64Array {
  const key = `${low} ${count} ${factor.toPrecision(6)}`;
  let edges = axes.get(key);
  if (!edges) {
    const sizes = Array.from({ length: count + 1 }, (_, i) => low * factor ** i);
    edges = Float64Array.from([...sizes.map((size) => -size).reverse(), ...sizes]);
    if (axes.size > 50) axes.clear();
    axes.set(key, edges);
  }
  return edges;
}

function move(histogram: HistogramData, own: Grid, grid: Grid, edges: Float64Array): HistogramData {
  let known = aligned.get(histogram);
  if (!known) aligned.set(histogram, (known = new WeakMap()));
  const before = known.get(edges);
  if (before) return before;
  const counts = new Float64Array(2 * grid.count + 1);
  const offset = distance(grid.low, own.low, grid.factor);
  histogram.counts.forEach((count, i) => {
    const away = i - own.count; // from the bin around zero
    counts[grid.count + away + Math.sign(away) * offset] += count;
  });
  const moved = { ...histogram, shape: [counts.length], counts, edges };
  known.set(edges, moved);
  return moved;
}

/** The same histograms with the same edges, if they are log bins of one kind; else as they are. */
export function alignLog(histograms: HistogramData[]): HistogramData[] {
  const all = histograms.map(({ edges, shape }) => (shape.length === 1 ? gridOf(edges) : null));
  if (all.length < 2 || all.some((grid) => grid === null)) return histograms;
  const first = histograms[0].edges; // as they were recorded, if they are the same: computed ones are a rounding off
  const same = ({ edges }: HistogramData) =>
    edges.length === first.length && edges.every((edge, i) => edge === first[i]);
  if (histograms.every(same)) return histograms;
  const grid = joinGrids(all as Grid[]);
  if (!grid) return histograms;
  const edges = edgesOf(grid);
  return histograms.map((histogram, i) => move(histogram, all[i] as Grid, grid, edges));
}
