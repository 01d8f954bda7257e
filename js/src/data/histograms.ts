// Histograms that are here already, the newest last; the oldest go when there are too many.
import type { HistogramData } from "./records.ts";
import { lowerBound } from "./table.ts";

const MOST_NUMBERS = 4_000_000; // 32 MB
const OBJECTS = 100; // what one histogram takes beside its arrays, in numbers

const placeOf = (quantity: string, layer: string) => JSON.stringify([quantity, layer]);

export class HistogramCache {
  private readonly known = new Map<string, HistogramData | null>(); // null: there is none
  private readonly steps = new Map<string, number[]>(); // increasing, of each quantity and layer
  private numbers = 0;

  get size(): number {
    return this.known.size;
  }

  get(quantity: string, step: number, layer: string): HistogramData | null | undefined {
    return this.known.get(JSON.stringify([quantity, step, layer]));
  }

  stepsOf(quantity: string, layer: string): readonly number[] {
    return this.steps.get(placeOf(quantity, layer)) ?? [];
  }

  keep(quantity: string, step: number, layer: string, histogram: HistogramData | null): void {
    const key = JSON.stringify([quantity, step, layer]);
    this.forget(key);
    this.known.set(key, histogram && this.shareEdges(histogram));
    if (histogram) {
      const place = placeOf(quantity, layer);
      const steps = this.steps.get(place) ?? [];
      steps.splice(lowerBound(steps, steps.length, step), 0, step);
      this.steps.set(place, steps);
      this.numbers += histogram.counts.length + OBJECTS;
    }
    for (const old of this.known.keys()) {
      if (this.numbers <= MOST_NUMBERS) break;
      this.forget(old);
    }
  }

  // The bins rarely change from one step to the next: then the numbers of the step before are held a second time, not stored.
  private shareEdges(histogram: HistogramData): HistogramData {
    const { quantity, layer, edges, parameter_edges } = histogram;
    const last = this.stepsOf(quantity, layer).at(-1);
    const before = last === undefined ? null : this.get(quantity, last, layer);
    return {
      ...histogram,
      edges: before && same(before.edges, edges) ? before.edges : edges,
      parameter_edges: same(before?.parameter_edges, parameter_edges)
        ? (before?.parameter_edges ?? null)
        : parameter_edges,
    };
  }

  private forget(key: string): void {
    const old = this.known.get(key);
    this.known.delete(key);
    if (!old) return;
    const [quantity, step, layer] = JSON.parse(key) as [string, number, string];
    const steps = this.steps.get(placeOf(quantity, layer)) ?? [];
    const index = lowerBound(steps, steps.length, step);
    if (steps[index] === step) steps.splice(index, 1);
    this.numbers -= old.counts.length + OBJECTS;
  }
}

function same(a: Float64Array | null | undefined, b: Float64Array | null | undefined): boolean {
  return Boolean(a && b && a.length === b.length && a.every((value, i) => Object.is(value, b[i])));
}
