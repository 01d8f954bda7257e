// What a sentence is about: the last part of a run with its spread, or the one step that the user points at.
import type { Context, ShownRun } from "../contract/panel.ts";

export interface Judged {
  value: number; // the median of the window, or the value at the step
  low: number; // quartiles of the window
  high: number;
  at: string; // "" or "At step 87: "
}

type Range = [number, number, number] | null;
const FEWEST = 8;
const THIN = 3; // values
const PART = 0.1; // of the values, as much as the panel of Alpha sets apart

const known = new WeakMap<object, { n: number; range: Range }>();

/** Of the finite values. Sorted once for a series of n values: a hand that moves along the axis asks with every frame. */
export function quartiles(values: Float64Array, series: object = values, n = values.length): Range {
  const cached = known.get(series);
  if (cached?.n === n) return cached.range;
  const sorted = values.filter(Number.isFinite).sort();
  const at = (share: number) => sorted[Math.round(share * (sorted.length - 1))];
  const range: Range = sorted.length ? [at(0.25), at(0.5), at(0.75)] : null;
  known.set(series, { n, range });
  return range;
}

/** Measured only in the first half of what is shown of the run: that says nothing about how it is now. */
export function isOld(ctx: Context, { data }: ShownRun, step: number): boolean {
  return step < Math.min(ctx.step ?? 0, data.lastStep ?? 0) / 2;
}

export const isPointed = (ctx: Context) => ctx.state.step !== null || ctx.hover !== null;

/** Too little, or too long ago, to say anything of the run as it is now; a step that is pointed at is its own matter. */
export function isThin(ctx: Context, run: ShownRun, name: string, layer = ""): boolean {
  const { n, step } = run.data.series(name, layer, "step");
  return !isPointed(ctx) && (n < THIN || isOld(ctx, run, step[n - 1]));
}

export const judged = (ctx: Context, run: ShownRun, name: string, layer = "") =>
  isThin(ctx, run, name, layer) ? null : levelAt(ctx, run, name, layer);

/** The same, however little it rests on. */
export function levelAt(ctx: Context, run: ShownRun, name: string, layer = ""): Judged | null {
  const series = run.data.series(name, layer, "step");
  if (!series.n || ctx.step === null) return null;
  if (isPointed(ctx) || isOld(ctx, run, series.step[series.n - 1])) {
    const hit = series.at(ctx.step);
    if (!hit || !Number.isFinite(hit.value)) return null;
    return { value: hit.value, low: hit.value, high: hit.value, at: `At step ${hit.step}: ` };
  }
  // The values that a sentence without a step is about: the last tenth, at least eight.
  const from = Math.max(0, series.n - Math.max(FEWEST, Math.ceil(series.n * PART)));
  const range = quartiles(series.y.subarray(from, series.n), series, series.n);
  return range && { low: range[0], value: range[1], high: range[2], at: "" };
}
