// Where values stand on an axis of bins. Bins are drawn equally wide: even in value, or even in magnitude, by sign.
import { formatTick } from "../data/format.ts";
import { makeScale } from "../draw/scale.ts";

export interface BinTick {
  share: number; // from 0, the lower end of the first bin, to 1
  label: string;
}
export interface BinAxis {
  log: boolean;
  zero: number | null; // the bin around 0 of a log axis
  smallest: number; // magnitudes below are in that bin
  ticks(count: number): BinTick[];
}

/** The bin that holds 0 with magnitudes that grow by one factor on at least one side of it; -1 for even bins. */
export function findZeroBin(edges: ArrayLike<number>): number {
  const last = edges.length - 1;
  for (let i = 0; i < last; i++) {
    if (!(edges[i] <= 0 && edges[i + 1] > 0)) continue;
    const [up, down] = [growth(edges, i + 1, last, 1), growth(edges, i, 0, -1)];
    const factors = [up, down].filter((factor) => factor !== null);
    return factors.length && factors.every((factor) => (factor as number) > 1.001) ? i : -1;
  }
  return -1;
}

/** The factor between neighbours from `from` to `to`; null for fewer than three, 0 where it is not one factor. */
function growth(edges: ArrayLike<number>, from: number, to: number, sign: 1 | -1): number | null {
  const logs: number[] = [];
  for (let i = from; sign * i <= sign * to; i += sign) {
    const size = sign * edges[i];
    if (!(size > 0)) return logs.length ? 0 : null; // an end at 0: this sign has no bins
    logs.push(Math.log(size));
  }
  if (logs.length < 3) return null;
  const step = (logs[logs.length - 1] - logs[0]) / (logs.length - 1);
  const even = logs.every((value, i) => Math.abs(value - logs[0] - i * step) < 1e-3 * Math.abs(step) * logs.length);
  return even ? Math.exp(step) : 0;
}

const axes = new WeakMap<Float64Array, BinAxis>();

export function binAxis(edges: Float64Array): BinAxis {
  let axis = axes.get(edges);
  if (!axis) axes.set(edges, (axis = makeAxis(edges)));
  return axis;
}

function makeAxis(edges: Float64Array): BinAxis {
  const zero = findZeroBin(edges);
  const last = edges.length - 1;
  if (zero < 0) {
    const scale = makeScale("linear", [edges[0], edges[last]], [0, 1]);
    const ticks = (count: number) => scale.ticks(count).map(({ at, label }) => ({ share: at, label }));
    return { log: false, zero: null, smallest: 0, ticks };
  }
  const smallest = Math.max(Math.abs(edges[zero]), edges[zero + 1]);
  return { log: true, zero, smallest, ticks: (count) => logTicks(edges, zero, count) };
}

const CROWDED = 0.8; // of the room that a label has

/** Powers of ten on both sides, as many as fit, and 0 in the middle of its bin. */
function logTicks(edges: Float64Array, zero: number, count: number): BinTick[] {
  const last = edges.length - 1;
  const side = (sign: 1 | -1): BinTick[] => {
    const [near, far] = sign > 0 ? [zero + 1, last] : [zero, 0];
    const [low, high] = [Math.log10(Math.abs(edges[near])), Math.log10(Math.abs(edges[far]))];
    if (!(high > low)) return [];
    const stride = Math.max(1, Math.ceil((high - low) / Math.max(1, (count - 1) / 2)));
    const ticks: BinTick[] = [];
    const add = (e: number) => {
      const bin = near + ((far - near) * (e - low)) / (high - low);
      const crowds = (Math.abs(bin - zero - 0.5) / last) * count < CROWDED; // it would run into the 0
      if (!crowds) ticks.push({ share: bin / last, label: formatTick(sign * 10 ** e) });
    };
    for (let e = Math.floor(high + 1e-9); e > low + 1e-9; e -= stride) add(e);
    if (ticks.length === 1) add(Math.round((low + high) / 2)); // one alone does not tell the scale
    return ticks;
  };
  return [...side(-1), { share: (zero + 0.5) / last, label: "0" }, ...side(1).reverse()];
}

/** The part of all counts that is in the bin around 0. */
export function zeroShare(counts: Float64Array, { zero }: BinAxis, width = 1): number {
  if (zero === null) return 0;
  const total = counts.reduce((sum, count) => sum + count, 0);
  const own = counts.subarray(zero * width, (zero + 1) * width).reduce((sum, count) => sum + count, 0);
  return total ? own / total : 0;
}
