// Curves that follow from two columns by one division. They are remembered, and extended while the run goes on.
import { type Axis, Series } from "./series.ts";
import type { RunStore } from "./store.ts";

const known = new WeakMap<Series, Map<string, { out: Series; used: number }>>();

function derived(base: Series, key: string, value: (index: number) => number | null): Series {
  let own = known.get(base);
  if (!own) known.set(base, (own = new Map()));
  let entry = own.get(key);
  if (!entry || entry.used > base.n) own.set(key, (entry = { out: new Series(), used: 0 }));
  for (; entry.used < base.n; entry.used++) {
    const y = value(entry.used);
    if (y !== null) entry.out.push(base.x[entry.used], y, base.step[entry.used]);
  }
  entry.out.extremes.extend(entry.out.y, entry.out.n);
  return entry.out;
}

/** above / below, at the steps that have both. */
export function ratio(run: RunStore, above: string, below: string, layer: string, axis: Axis): Series {
  const base = run.series(above, layer, axis);
  const other = run.series(below, layer, axis);
  if (!other.n) return new Series();
  return derived(base, `over ${below} ${other.n >= base.n}`, (i) => {
    const hit = other.at(base.step[i]);
    return hit && hit.step === base.step[i] ? base.y[i] / hit.value : null;
  });
}

/** The same curve held inside [-edge, edge], for an average that outliers would otherwise carry off. */
export function clamp(base: Series, edge: number): Series {
  return derived(base, `clamp ${edge}`, (i) => Math.max(-edge, Math.min(edge, base.y[i])));
}

/** factor / column: 2 / learning rate. */
export function inverse(run: RunStore, name: string, factor: number, axis: Axis): Series {
  const base = run.series(name, "", axis);
  return derived(base, `inverse ${factor}`, (i) => (base.y[i] > 0 ? factor / base.y[i] : null));
}

/** The same curve with each value changed; `key` names the change. */
export function change(base: Series, key: string, by: (value: number) => number): Series {
  return derived(base, `change ${key}`, (i) => by(base.y[i]));
}
