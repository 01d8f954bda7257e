// Runs that belong together.
import type { RunGroup, ShownRun } from "../contract/panel.ts";
import { shorten } from "../data/format.ts";
import { groupKey, groupLabel } from "./facts.ts";

/** Runs that differ only in their seed, each with the colour of the first of them. */
export function groupRuns(runs: ShownRun[]): RunGroup[] {
  const groups = new Map<string, ShownRun[]>();
  for (const run of runs) {
    const key = groupKey(run.data.header) || run.run;
    groups.set(key, [...(groups.get(key) ?? []), run]);
  }
  return [...groups.values()].map((own) => {
    const label = shorten(groupLabel(own.map(({ run }) => run)), 28);
    return { label, color: own[0].color, runs: own };
  });
}
