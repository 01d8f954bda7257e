// How well a run did: the score that everybody looks at, at its end and at its best.
import type { ShownRun } from "../contract/panel.ts";
import { isScore, stemOf } from "../data/pairs.ts";

export interface Metric {
  name: string; // of the column
  title: string;
  least: boolean; // less is better
}

/** The loss of the mini-batches, and every loss that run.log() sent. */
export const isLoss = (name: string) => stemOf(name) === "loss";
const isHeldOut = (name: string) => /val|test|eval/i.test(name);
const isWorseUp = (stem: string) => /err|loss|mae|mse|ppl|perplexity|wer|cer/i.test(stem);
const columnsOf = (runs: ShownRun[]) => [...new Set(runs.flatMap(({ data }) => [...data.columns.keys()]))];
const titleOf = (name: string) => name.replace("log/", "");

/** The score that is shown: of the validation set, if there is one. */
export function scoreOf(runs: ShownRun[]): Metric | null {
  const scores = columnsOf(runs).filter((name) => isScore(stemOf(name)));
  const name = scores.find(isHeldOut) ?? scores[0];
  return name ? { name, title: titleOf(name), least: isWorseUp(stemOf(name)) } : null;
}

export function lossOf(runs: ShownRun[]): Metric {
  const name = columnsOf(runs).filter(isLoss).find(isHeldOut) ?? "Loss";
  return { name, title: titleOf(name), least: true };
}

/** The last and the best finite value of a column. */
export function endsOf(run: ShownRun, { name, least }: Metric): [number | null, number | null] {
  const { y, n, extremes } = run.data.series(name, "", "step");
  const ends = extremes.range(y, 0, n);
  const best = (values: number[] | Float64Array) => values[least ? 0 : values.length - 1] ?? null;
  const all = ends.every(Number.isFinite) ? ends : y.subarray(0, n).filter(Number.isFinite).sort();
  return [n ? y[n - 1] : null, best(all)];
}
