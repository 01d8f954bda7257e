// What tracking cost.
import type { ShownRun } from "../contract/panel.ts";

// Sums of other columns: what the whole step took, and what tracking took since the run began.
export const costSums = ["cost/step", "cost/run"];

/** Seconds of tracking per second of training. */
export function trackingShare(run: ShownRun): number | null {
  const known = shares.get(run.data);
  if (known?.version === run.data.version) return known.share;
  const share = computeShare(run);
  shares.set(run.data, { version: run.data.version, share });
  return share;
}

const shares = new WeakMap<ShownRun["data"], { version: number; share: number | null }>();

function computeShare(run: ShownRun): number | null {
  const sofar = run.data.series("cost/run", "", "time");
  if (sofar.n && sofar.x[sofar.n - 1] > 0) return Math.min(1, sofar.y[sofar.n - 1] / sofar.x[sofar.n - 1]); // older logs bill more than passed
  const whole = run.data.series("cost/step", "", "step");
  if (!whole.n) return null;
  let [cost, total] = [0, 0];
  for (let i = 0; i < whole.n; i++) total += whole.y[i];
  for (const name of run.data.columns.keys()) {
    if (!name.startsWith("cost/") || costSums.includes(name)) continue;
    const part = run.data.series(name, "", "step");
    for (let i = 0; i < part.n; i++) cost += part.y[i];
  }
  return total > 0 ? cost / total : null;
}

/** The share of the time of training that tracking was allowed to take; null where nothing was promised. */
export function trackingBudget({ data }: ShownRun): number | null {
  const budget = Number.parseFloat(data.header?.options.budget ?? "");
  return budget > 0 && budget <= 1 ? budget : null;
}
