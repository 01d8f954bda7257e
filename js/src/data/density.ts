// Median and density of a list of numbers, remembered for the same list: new data makes a new list.

export const EDGE = 1.9; // of the drawn part; what lies outside is counted at the edge

type Values = number[] | Float64Array;

const orders = new WeakMap<Values, Float64Array>();

/** From the smallest to the largest. */
export function inOrder(values: Values): Float64Array {
  let sorted = orders.get(values);
  if (!sorted) orders.set(values, (sorted = Float64Array.from(values).sort()));
  return sorted;
}

export function median(values: Values): number {
  if (!values.length) return Number.NaN;
  const sorted = inOrder(values);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

const densities = new WeakMap<Values, number[]>();

/** Gaussian density estimate on a grid over [-EDGE, EDGE], its highest point 1. Remembered for the same list. */
export function density(values: Values, grid = 121): number[] {
  const known = densities.get(values);
  if (known?.length === grid) return known;
  const heights = estimate(values, grid);
  densities.set(values, heights);
  return heights;
}

function estimate(values: Values, grid: number): number[] {
  const inside = Float64Array.from(values).filter((value) => Math.abs(value) <= EDGE);
  if (!inside.length) return new Array(grid).fill(0);
  const mean = inside.reduce((sum, value) => sum + value, 0) / inside.length;
  const spread = Math.sqrt(inside.reduce((sum, value) => sum + (value - mean) ** 2, 0) / inside.length);
  const width = Math.max(0.06, 0.9 * spread * inside.length ** -0.2);
  // Counted into fine bins first: the cost does not grow with the run.
  const bins = new Float64Array(381);
  for (const value of inside) bins[Math.round(((value + EDGE) / (2 * EDGE)) * 380)]++;
  const heights = Array.from({ length: grid }, (_, i) => {
    const x = -EDGE + (2 * EDGE * i) / (grid - 1);
    let sum = 0;
    for (let b = 0; b < bins.length; b++) {
      const distance = (x - (-EDGE + (2 * EDGE * b) / 380)) / width;
      if (bins[b] && Math.abs(distance) < 5) sum += bins[b] * Math.exp(-0.5 * distance * distance);
    }
    return sum;
  });
  const most = Math.max(...heights);
  return heights.map((height) => height / most);
}
