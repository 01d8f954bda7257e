// From steps to places on the shared axis and back, and where a key press leads.

import { ROW } from "../data/store.ts";
import { lowerBound } from "../data/table.ts";
import type { Context, ShownRun } from "./panel.ts";

/** The chosen runs, with those that reached this step first: the others ended before it and know nothing about it. */
export function runsReaching(ctx: Context, step: number): ShownRun[] {
  const began = ctx.runs.filter(({ data }) => data.rows.n);
  const far = began.filter(({ data }) => (data.lastStep ?? -1) >= step);
  const near = began.filter(({ data }) => (data.lastStep ?? -1) < step);
  return [...far, ...near.sort((a, b) => (b.data.lastStep ?? 0) - (a.data.lastStep ?? 0))];
}

/** The row of a run that holds a step, or the last one before it. */
export function rowAt({ data: { rows } }: ShownRun, step: number): number {
  return Math.max(0, lowerBound(rows.columns[ROW.step], rows.n, step + 1) - 1);
}

/** Where a step stands on the shared axis, by the first chosen run that came so far. */
export function stepToAxis(ctx: Context, step: number): number | null {
  if (ctx.axis === "step") return step;
  for (const run of runsReaching(ctx, step)) {
    const x = run.data.axis(ctx.axis)[rowAt(run, step)];
    if (Number.isFinite(x)) return x;
  }
  return null;
}

/** Where the step in question stands. */
export const playhead = (ctx: Context) => (ctx.step === null ? null : stepToAxis(ctx, ctx.step));

export function axisToStep(ctx: Context, x: number): number | null {
  let best: number | null = null;
  let distance = Number.POSITIVE_INFINITY;
  for (const { data } of ctx.runs) {
    const { rows } = data;
    const xs = data.axis(ctx.axis);
    const at = lowerBound(xs, rows.n, x);
    for (const row of [at - 1, at]) {
      if (row < 0 || row >= rows.n || Math.abs(xs[row] - x) >= distance) continue;
      distance = Math.abs(xs[row] - x);
      best = rows.columns[ROW.step][row];
    }
  }
  return best;
}

/** The chosen run with the most records: keys and playing move along it. */
export function longest(ctx: Context): ShownRun | null {
  return ctx.runs.reduce<ShownRun | null>(
    (best, run) => (run.data.rows.n > (best?.data.rows.n ?? 0) ? run : best),
    null,
  );
}

/** The step so many records away from the current one; rows that share a step (run.log) count once. */
export function neighbourStep(ctx: Context, records: number): number | null {
  const run = longest(ctx);
  if (!run || ctx.step === null) return null;
  const { rows } = run.data;
  const steps = rows.columns[ROW.step];
  const sign = Math.sign(records);
  let row = Math.min(lowerBound(steps, rows.n, ctx.step), rows.n - 1);
  for (let left = Math.abs(records); left > 0; left--) {
    const from = steps[row];
    while (row + sign >= 0 && row + sign < rows.n && steps[row] === from) row += sign;
  }
  return steps[row];
}

const onScale = {
  linear: { to: (x: number) => x, from: (t: number) => t },
  log1p: { to: (x: number) => Math.log1p(Math.max(x, 0)), from: (t: number) => Math.expm1(t) },
};

/** The visible part made smaller or larger around a place that stays where it is on the screen; null = the whole. */
export function zoomAround(
  view: [number, number],
  full: [number, number],
  factor: number,
  x: number,
  log: boolean,
): [number, number] | null {
  const { to, from } = onScale[log ? "log1p" : "linear"];
  const [low, high, middle] = [to(view[0]), to(view[1]), to(Math.max(view[0], Math.min(view[1], x)))];
  const ends = [middle - (middle - low) * factor, middle + (high - middle) * factor].map(from);
  const [a, b] = [Math.max(full[0], ends[0]), Math.min(full[1], ends[1])];
  if (a <= full[0] && b >= full[1]) return null;
  return b > a && b - a > 1e-9 * (full[1] - full[0]) ? [a, b] : view;
}

/** The visible part moved by a share of its width, to the right if positive, but never beyond what there is. */
export function panBy(view: [number, number], full: [number, number], share: number, log: boolean): [number, number] {
  const { to, from } = onScale[log ? "log1p" : "linear"];
  const [low, high, first, last] = [...view, ...full].map(to);
  const shift = Math.max(first - low, Math.min(last - high, share * (high - low)));
  return [from(low + shift), from(high + shift)];
}
