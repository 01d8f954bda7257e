// What a network that knows nothing would reach: the line that the loss must leave.

import type { Context, ShownRun } from "../contract/panel.ts";
import { formatNumber } from "../data/format.ts";
import { isAccuracy, stemOf } from "../data/pairs.ts";
import { endsOf, scoreOf } from "./metrics.ts";

interface Guess {
  value: number;
  label: string;
}

function mean(run: ShownRun, name: string, change = (value: number) => value): number | null {
  const { y, n } = run.data.series(name, "", "step");
  let [sum, count] = [0, 0];
  for (let i = 0; i < n; i++)
    if (Number.isFinite(y[i])) {
      sum += change(y[i]);
      count++;
    }
  return count ? sum / count : null;
}

/** The loss that the user handed over, else what the graph of one tells. */
const lossOf = ({ data: { header } }: ShownRun) => header?.loss || header?.options["loss function"] || "";

/** Outputs of the last tensor: the number of classes, where the loss is one over classes. */
export function countClasses(run: ShownRun): number | null {
  const { header } = run.data;
  if (!header || !/^(CrossEntropy|NLL)Loss/.test(lossOf(run))) return null;
  const classes = header.layers.at(-1)?.shape[0] ?? 0;
  return classes > 1 ? classes : null;
}

/** With few labels the entropy is too small, by about (kinds - 1) / (2 labels) (Miller and Madow, 1955): that is added. As
 * many kinds as would have this entropy if all were alike. */
function labelEntropy(run: ShownRun, classes: number): number | null {
  const [entropy, labels] = ["entropy", "count"].map((name) => mean(run, `signal/label_${name}`));
  if (entropy === null) return null;
  const missing = labels ? (Math.exp(entropy) - 1) / (2 * labels) : 0;
  return Math.min(Math.log(classes), entropy + missing);
}

/** Cross-entropy: the entropy of the labels if they were counted, else ln of the number of classes. Squares: the variance. */
export function guessLoss(run: ShownRun): Guess | null {
  const classes = countClasses(run);
  if (classes) {
    const entropy = labelEntropy(run, classes);
    const value = entropy ?? Math.log(classes);
    const why = entropy === null ? `ln(${classes})` : "label entropy";
    return plausible(run, value) ? { value, label: `guessing ${formatNumber(value)} (${why})` } : null;
  }
  const variance = /^MSELoss/.test(lossOf(run)) ? mean(run, "signal/target_std", (value) => value * value) : null;
  return variance ? { value: variance, label: `guessing ${formatNumber(variance)} (target variance)` } : null;
}

// The last tensor need not be the output. A network begins near guessing, or falls back to it; else nothing is claimed.
function plausible(run: ShownRun, value: number): boolean {
  const { y, n } = run.data.series("Loss", "", "step");
  return [y[0], y[n - 1]].some((loss) => n > 0 && loss > 0.3 * value && loss < 5 * value);
}

const ALIKE = 1.05; // labels were counted on a few batches: what is this close is one line

/** One line per value that chosen runs have in common. */
export function guessGuides({ runs }: Pick<Context, "runs">, of: (run: ShownRun) => Guess | null): Guess[] {
  const guesses = runs.flatMap((run) => of(run) ?? []).sort((a, b) => a.value - b.value);
  const groups: Guess[][] = [];
  for (const guess of guesses) {
    const last = groups.at(-1);
    if (last && guess.value <= ALIKE * last[0].value) last.push(guess);
    else groups.push([guess]);
  }
  return groups.length <= 2 ? groups.map((group) => group[group.length >> 1]) : [];
}

/** A score that nobody gets by guessing, nor by always naming the most common label. */
export function beatsGuessing(run: ShownRun): boolean {
  const [guess, score] = [guessAccuracy(run), scoreOf([run])];
  if (!guess || !score || !isAccuracy(stemOf(score.name))) return false;
  const now = endsOf(run, score)[0] ?? 0;
  const most = Math.max(guess.value, mean(run, "signal/label_top_share") ?? 0);
  return (now > 1 ? now / 100 : now) > most + (1 - most) / 10;
}

export function guessAccuracy(run: ShownRun): Guess | null {
  const classes = countClasses(run);
  return classes && guessLoss(run) ? { value: 1 / classes, label: `guessing 1 of ${classes}` } : null;
}
