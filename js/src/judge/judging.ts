// What a sentence is about: the last part of a run with its spread, or the one step that the user points at.
import type { Context, ShownRun } from "../contract/panel.ts";

export interface Judged {
  value: number; // the median of the window, or the value at the step
  low: number; // quartiles of the window
  high: number;
  at: string; // "" or "At step 87: "
}

const FEWEST = 8;
const PART = 0.1; // of the values, as much as the panel of Alpha sets apart

/** The values that a sentence without a step is about: the last tenth, at least eight. */
export function quartiles(values: ArrayLike<number>): [number, number, number] | null {
  const sorted = Float64Array.from(Array.from(values).filter(Number.isFinite)).sort();
  if (!sorted.length) return null;
  const at = (share: number) => sorted[Math.round(share * (sorted.length - 1))];
  return [at(0.25), at(0.5), at(0.75)];
}

/** Measured only in the first half of what is shown of the run: that says nothing about how it is now. */
export function isOld(ctx: Context, { data }: ShownRun, step: number): boolean {
  return step < Math.min(ctx.step ?? 0, data.lastStep ?? 0) / 2;
}

export const isPointed = (ctx: Context) => ctx.state.step !== null || ctx.hover !== null;

export function judged(ctx: Context, run: ShownRun, name: string, layer = ""): Judged | null {
  const series = run.data.series(name, layer, "step");
  if (!series.n || ctx.step === null) return null;
  if (isPointed(ctx) || isOld(ctx, run, series.step[series.n - 1])) {
    const hit = series.at(ctx.step);
    if (!hit || !Number.isFinite(hit.value)) return null;
    return { value: hit.value, low: hit.value, high: hit.value, at: `At step ${hit.step}: ` };
  }
  const from = Math.max(0, series.n - Math.max(FEWEST, Math.ceil(series.n * PART)));
  const range = quartiles(series.y.subarray(from, series.n));
  return range && { low: range[0], value: range[1], high: range[2], at: "" };
}
