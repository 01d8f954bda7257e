// From which curvature on the steps of an optimizer grow.
import type { ShownRun } from "../contract/panel.ts";

/** The only optimizer of a run; null where there are several, or none is known. */
export function optimizerOf(run: ShownRun): string | null {
  const optimizers = run.data.header?.optimizers ?? [];
  return optimizers.length === 1 ? optimizers[0].name : null;
}

/** 2, or 2 (1 + β) with heavy-ball momentum β; null where no such limit is known (as `stability_limit` in the core). */
export function stabilityFactor(run: ShownRun): number | null {
  const groups = run.data.header?.optimizers[0]?.groups ?? [];
  if (optimizerOf(run) !== "SGD") return null;
  if (groups.some((group) => group.nesterov === "True" || Number(group.dampening ?? 0) > 0)) return null;
  if (new Set(groups.map((group) => group.lr)).size > 1) return null;
  return 2 * (1 + (Number(groups[0]?.momentum ?? 0) || 0));
}
