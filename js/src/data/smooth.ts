// The debiased exponential average that TensorBoard draws; values that are not finite pass through untouched.
import { Series } from "./series.ts";

export const SHORTEST = 50; // a short series (one value per epoch) is shown as it is: an average would only lag

interface State {
  weight: number;
  last: number;
  count: number;
  constant: boolean;
  out: Series;
}
const cache = new WeakMap<Series, State>();

export function smooth(series: Series, weight: number): Series {
  if (weight <= 0 || series.n < SHORTEST) return series;
  let state = cache.get(series);
  if (!state || state.weight !== weight || state.out.n > series.n) {
    state = { weight, last: 0, count: 0, constant: true, out: new Series() };
    cache.set(series, state);
  }
  const { out } = state;
  [out.x, out.step] = [series.x, series.step]; // the same places
  for (let i = out.n; i < series.n; i++) {
    const value = series.y[i];
    if (state.constant && value !== series.y[0]) state.constant = false;
    if (!Number.isFinite(value)) out.append(value);
    else {
      state.last = state.last * weight + (1 - weight) * value;
      state.count++;
      const debias = 1 - weight ** state.count;
      out.append(state.constant ? value : state.last / debias);
    }
  }
  out.extremes.extend(out.y, out.n);
  return out;
}
