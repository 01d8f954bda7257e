// From steps to places on the shared axis and back, and where a key press leads.
import type { Context, ShownRun } from "./panel.ts";
import { ROW } from "./store.ts";
import { lowerBound } from "./table.ts";

/** Where a step stands on the shared axis, by the first chosen run that has it. */
export function stepToAxis(ctx: Context, step: number): number | null {
  if (ctx.axis === "step") return step;
  for (const { data } of ctx.runs) {
    const { rows } = data;
    if (!rows.n) continue;
    const row = Math.max(0, lowerBound(rows.columns[ROW.step], rows.n, step + 1) - 1);
    const x = data.axis(ctx.axis)[row];
    if (Number.isFinite(x)) return x;
  }
  return null;
}

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

/** The visible part made smaller or larger around the current step; null = the whole. */
export function zoomRange(ctx: Context, factor: number, full: [number, number]): [number, number] | null {
  const [low, high] = ctx.domain;
  const middle = (ctx.step === null ? null : stepToAxis(ctx, ctx.step)) ?? (low + high) / 2;
  const from = Math.max(full[0], middle - (middle - low) * factor);
  const to = Math.min(full[1], middle + (high - middle) * factor);
  return to <= from || (from <= full[0] && to >= full[1]) ? null : [from, to];
}
