// Which runs are shown.
import type { UiState } from "./state.ts";

const DEFAULT_RUNS = 10;

export function chooseRuns(names: string[], state: UiState): string[] {
  if (state.runs) return names.filter((name) => state.runs?.includes(name));
  return names.slice(0, DEFAULT_RUNS);
}

/** A filter is a regular expression, as in TensorBoard; while it is not a valid one, it is plain text. */
export function matchesFilter(name: string, filter: string): boolean {
  if (!filter) return true;
  if (filter.length <= 200)
    try {
      return new RegExp(filter, "i").test(name.slice(0, 1000));
    } catch {
      // typed halfway
    }
  return name.includes(filter);
}
