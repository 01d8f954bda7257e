// From numbers to pixels and back. "log1p" is logarithmic from 1 on and holds 0: step 0 has a place on a log axis.
import { formatTick } from "./format.ts";

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

export function makeScale(kind: ScaleKind, domain: [number, number], range: [number, number]): Scale {
  const low = forward[kind](domain[0]);
  const high = forward[kind](domain[1]);
  const slope = high === low ? 0 : (range[1] - range[0]) / (high - low);
  const to = slope ? mapping[kind](slope, range[0] - low * slope) : () => (range[0] + range[1]) / 2;
  const from = (pixel: number) => backward[kind](slope ? low + (pixel - range[0]) / slope : low);
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

// Values may be as large and as close together as floating point allows: no loop ends by them alone.
const MOST_TICKS = 200;

function tickValues(kind: ScaleKind, [a, b]: [number, number], count: number): number[] {
  if (!(b > a)) return [a];
  if (!Number.isFinite(b - a) || (kind === "log" && !(a > 0))) return [];
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
      if (value >= low * (1 - 1e-9) && value <= b * (1 + 1e-9)) values.push(value);
    }
  }
  return values;
}

function linearTicks(a: number, b: number, count: number): number[] {
  const raw = (b - a) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999) ?? 10 * power;
  const values: number[] = [];
  const first = Math.ceil(a / step - 1e-9);
  for (let k = 0; k < MOST_TICKS && (first + k) * step <= b + step * 1e-9; k++)
    values.push(Number(((first + k) * step).toPrecision(12)));
  return values;
}

const LARGEST = Number.MAX_VALUE / 8; // with air on both sides, the length of an axis is still a number
const clamp = (value: number, low: number, high: number) => Math.min(Math.max(value, low), high);

/** A domain that holds [low, high] with a little air, and is never empty; what is beyond any axis is drawn at its end. */
export function padDomain(low: number, high: number, log: boolean): [number, number] {
  if (!Number.isFinite(low) || !Number.isFinite(high)) return log ? [0.1, 10] : [0, 1];
  const [a, b] = [clamp(low, -LARGEST, LARGEST), clamp(high, -LARGEST, LARGEST)];
  if (log) {
    const air = a === b ? 3 : 10 ** ((Math.log10(b) - Math.log10(a)) * 0.05);
    return [Math.max(a / air, Number.MIN_VALUE), Math.min(b * air, LARGEST)];
  }
  if (a === b) return a === 0 ? [-1, 1] : [a - Math.abs(a) * 0.1, b + Math.abs(b) * 0.1];
  const air = (b - a) * 0.06;
  return [a - (a === 0 ? 0 : air), b + air];
}
