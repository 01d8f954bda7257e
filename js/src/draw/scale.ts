// From numbers to pixels and back. "log1p" is logarithmic from 1 on and holds 0: step 0 has a place on a log axis.
import { formatTick } from "../data/format.ts";

export type ScaleKind = "linear" | "log" | "log1p";
export interface Tick {
  value: number;
  at: number;
  label: string;
}
export interface Scale {
  kind: ScaleKind;
  domain: [number, number];
  range: [number, number];
  to(value: number): number;
  from(pixel: number): number;
  ticks(count: number): Tick[];
}

const forward = { linear: (v: number) => v, log: Math.log10, log1p: (v: number) => Math.log10(1 + Math.max(v, 0)) };
const backward = { linear: (t: number) => t, log: (t: number) => 10 ** t, log1p: (t: number) => 10 ** t - 1 };

// One small function per kind: it runs a million times while a user zooms.
const mapping = {
  linear: (slope: number, start: number) => (value: number) => start + value * slope,
  log: (slope: number, start: number) => (value: number) => start + Math.log10(value) * slope,
  log1p: (slope: number, start: number) => (value: number) => start + Math.log10(1 + Math.max(value, 0)) * slope,
};

const [SMALLEST, LARGEST] = [Number.MIN_VALUE, Number.MAX_VALUE];
const MOST_TICKS = 64;
const hold = (value: number, low: number, high: number) => Math.max(low, Math.min(high, value));

/** Whatever was measured, a scale has two finite ends; on a log scale both are above 0. */
function finiteDomain(kind: ScaleKind, [a, b]: [number, number]): [number, number] {
  if (Number.isNaN(a) || Number.isNaN(b)) return kind === "log" ? [0.1, 10] : [0, 1];
  const least = kind === "log" ? SMALLEST : -LARGEST;
  return [hold(a, least, LARGEST), hold(b, least, LARGEST)];
}

export function makeScale(kind: ScaleKind, wanted: [number, number], range: [number, number]): Scale {
  const domain = finiteDomain(kind, wanted);
  const low = forward[kind](domain[0]);
  const high = forward[kind](domain[1]);
  const width = high / 2 - low / 2; // halves: the whole may be more than the largest number
  const slope = width === 0 ? 0 : hold((range[1] - range[0]) / 2 / width, -LARGEST, LARGEST);
  const start = range[0] - low * slope;
  const flat = !slope || !Number.isFinite(start);
  const to = flat ? () => (range[0] + range[1]) / 2 : mapping[kind](slope, start);
  const from = (pixel: number) =>
    hold(backward[kind](flat ? low : low + (pixel - range[0]) / slope), kind === "log" ? SMALLEST : -LARGEST, LARGEST);
  const ticks = (count: number) =>
    enoughTicks(kind, domain, count).map((value) => ({ value, at: to(value), label: formatTick(value) }));
  return { kind, domain, range, to, from, ticks };
}

// One label alone says nothing about a scale: there are two at least.
function enoughTicks(kind: ScaleKind, domain: [number, number], count: number): number[] {
  let values = tickValues(kind, domain, count);
  for (let more = count * 2; values.length < 2 && more <= 32 && domain[1] > domain[0]; more *= 2)
    values = tickValues(kind, domain, more);
  return values;
}

function tickValues(kind: ScaleKind, [a, b]: [number, number], count: number): number[] {
  if (!(b > a)) return [a];
  if (kind === "linear") return linearTicks(a, b, count);
  const low = kind === "log" ? a : Math.max(a, 0);
  const decades = Math.log10(b) - Math.log10(Math.max(low, kind === "log" ? low : 0.5));
  if (decades < 0.7) return linearTicks(low, b, count);
  const values: number[] = kind === "log1p" && low === 0 ? [0] : [];
  const start = Math.floor(Math.log10(Math.max(low, kind === "log" ? low : 1)));
  const stride = Math.max(1, Math.ceil(decades / count));
  const inner = decades * 2 < count ? (decades * 3 < count ? [1, 2, 5] : [1, 3]) : [1];
  for (let e = start; e <= Math.log10(b) + 1e-9; e++) {
    if (stride > 1 && e % stride !== 0) continue;
    for (const m of inner) {
      const value = Number((m * 10 ** e).toPrecision(12));
      if (value >= low * (1 - 1e-9) && value <= b * (1 + 1e-9) && value <= LARGEST) values.push(value);
    }
  }
  return values;
}

// Where the values differ by a few units of rounding only, no step of a round number leads from one to the next.
function linearTicks(a: number, b: number, count: number): number[] {
  const raw = (b / 2 - a / 2) / (Math.max(1, count) / 2);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999) ?? 10 * power;
  const size = Math.max(Math.abs(a), Math.abs(b));
  if (!(step > size * 1e-14) || !Number.isFinite(step)) return [a, b];
  const first = Math.ceil(a / step - 1e-9);
  const values: number[] = [];
  for (let i = 0; i < MOST_TICKS && (first + i) * step <= b + step * 1e-9; i++)
    values.push(Number(((first + i) * step).toPrecision(12)));
  return values.filter(Number.isFinite);
}

const NOISE = 1e-9; // values that differ by less, relative to their size, are one value: rounding is not drawn large

/** A domain that holds [low, high] with a little air, and is never empty; `least` is the least relative width of it. */
export function padDomain(low: number, high: number, log: boolean, least = NOISE): [number, number] {
  if (!Number.isFinite(low) || !Number.isFinite(high)) return log ? [0.1, 10] : [0, 1];
  const size = Math.max(Math.abs(low), Math.abs(high));
  const flat = high - low <= NOISE * size;
  if (log) {
    const [a, b] = [Math.log10(low), Math.log10(high)];
    const air = flat ? 0.5 : Math.max(0.05 * (b - a), (Math.log10(1 + least) - (b - a)) / 2);
    return [hold(10 ** (a - air), SMALLEST, LARGEST), hold(10 ** (b + air), SMALLEST, LARGEST)];
  }
  if (flat)
    return size === 0
      ? [0, 1]
      : [hold(low - size * 0.1, -LARGEST, LARGEST), hold(high + size * 0.1, -LARGEST, LARGEST)];
  const air = Math.max((high / 2 - low / 2) * 0.12, least * (size / 2) - (high / 2 - low / 2));
  return [hold(low - (low === 0 ? 0 : air), -LARGEST, LARGEST), hold(high + air, -LARGEST, LARGEST)];
}
