// What alpha says about the length of the steps, and when it says nothing.
import { type Context, type ShownRun, type Verdict, valueAt } from "../contract/panel.ts";
import { formatNumber, formatShare } from "../data/format.ts";
import { lowerBound } from "../data/table.ts";
import { isPointed, isThin, levelAt, quartiles } from "./judging.ts";

export const OWN = "AlphaOwnBatch";
const ENOUGH_SIGNAL = 0.5; // of the squared gradient: below, noise decides where the paper's alpha lies

interface Parts {
  all: Float64Array;
  recent: Float64Array;
}
const known = new WeakMap<ShownRun["data"], Map<string, { version: number; part: number; parts: Parts }>>();

/** Alpha of all steps, and of the last part of the run. */
export function splitRecent(run: ShownRun, part: number, name = "Alpha"): Parts {
  let own = known.get(run.data);
  if (!own) known.set(run.data, (own = new Map()));
  const cached = own.get(name);
  if (cached?.version === run.data.version && cached.part === part) return cached.parts;
  const { y, step, n } = run.data.series(name, "", "step");
  const steps = step.subarray(0, n).filter((_, i) => Number.isFinite(y[i]));
  const [first, last] = [steps[0] ?? 0, steps.at(-1) ?? 0];
  const all = y.subarray(0, n).filter(Number.isFinite);
  const from = last - (last - first) * part;
  const parts = { all, recent: all.subarray(lowerBound(steps, steps.length, from)) };
  own.set(name, { version: run.data.version, part, parts });
  return parts;
}

/** Which share of the squared gradient is signal: as measured, else 1 - NormTest². Null where neither was. */
export function signalShare(ctx: Context, run: ShownRun): number | null {
  const share = levelAt(ctx, run, "SignalShare");
  if (share) return share.value;
  const noise = levelAt(ctx, run, "NormTest");
  return noise ? 1 - noise.value ** 2 : null;
}

/** Whether so much of the gradient is noise that the paper's alpha is positive at any learning rate. */
function isNoisy(ctx: Context, run: ShownRun): boolean {
  const share = signalShare(ctx, run);
  return share !== null && share < ENOUGH_SIGNAL;
}

const OPPOSITE = "high on the opposite wall";
const opinion = (middle: number): Verdict =>
  middle < -0.25
    ? { text: "Steps end before the floor: the learning rate could be larger.", short: "ends before the floor" }
    : middle <= 0.25
      ? { text: "Steps end near the valley floor.", short: "near the valley floor" }
      : middle <= 0.8
        ? { text: "Overshoots a little, as good runs of deep networks often do.", short: "overshoots a little" }
        : {
            text: "Steps end high on the opposite wall: the learning rate is probably too large.",
            short: OPPOSITE,
            fault: true,
          };

/** On the samples that a step was made from. Small batches are overshot where all the data are not: values up to 1 are no problem. */
const ownOpinion = (middle: number): Verdict =>
  middle < -0.75
    ? {
        text: "On their own batch steps cover a small part of the way to the floor: the learning rate could be larger.",
        short: "far before the floor",
      }
    : middle <= 0.25
      ? { text: "On their own batch steps end before or near the valley floor.", short: "up to the floor" }
      : middle <= 1
        ? {
            text: "On their own batch steps end beyond the floor, below the edge of stability.",
            short: "beyond the floor",
          }
        : {
            text: "Steps raise the loss of their own batch: beyond the edge of stability, the learning rate is too large.",
            short: "beyond the edge",
            fault: true,
          };

/** From the step's own batch where that was tracked; else from the paper's, if there is signal enough to judge by. */
export function judgeAlpha(ctx: Context, run: ShownRun): Verdict | null {
  const own = run.data.has(OWN);
  const name = own ? OWN : "Alpha";
  if (isPointed(ctx)) return judgeStep(ctx, run, name);
  if (isThin(ctx, run, name)) return null;
  const { recent } = splitRecent(run, ctx.state.recent, name);
  const range = quartiles(recent);
  if (!range) return null;
  const [low, middle, high] = range;
  if (own) return ownOpinion(middle);
  if (isNoisy(ctx, run)) return null;
  if (low < -0.25 && high > 0.25) {
    const spread = `half of them from ${formatNumber(low, 2)} to ${formatNumber(high, 2)}`;
    return { text: `Steps end on either side of the valley floor, ${spread}.`, short: "around the floor" };
  }
  return opinion(middle);
}

/** For one step only what it did, not what follows for the learning rate: single steps are noisy. */
function judgeStep(ctx: Context, run: ShownRun, name: string): Verdict | null {
  const hit = valueAt(ctx, run, name);
  if (!hit || !Number.isFinite(hit.value)) return null;
  const { short } = (name === OWN ? ownOpinion : opinion)(hit.value);
  return { text: `Step ${hit.step}: ${short}${name === OWN ? " of its own batch" : ""}.`, short };
}

/** Why there is no verdict: with one run, where the paper's alpha alone would mislead. */
export function silentBecause(ctx: Context): string {
  const [run] = ctx.runs;
  if (ctx.runs.length !== 1 || isPointed(ctx) || !run.data.has("Alpha") || run.data.has(OWN) || !isNoisy(ctx, run))
    return "";
  const share = formatShare(Math.max(0, signalShare(ctx, run) ?? 0));
  return `No verdict: only ${share} of the gradient is signal, and noise moves this alpha up at any learning rate. Track AlphaOwnBatch for one.`;
}
