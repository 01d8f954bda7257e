import type { Context, ShownRun, Verdict } from "../contract/panel.ts";
import { inverse, ratio } from "../data/derive.ts";
import { formatNumber, formatShare } from "../data/format.ts";
import type { Axis, Series } from "../data/series.ts";
import { judged } from "../judge/judging.ts";
import { optimizerOf, stabilityFactor } from "../judge/stability.ts";
import { curvePanel, dashes } from "./_curves.ts";

const PRECONDITIONED = "PreconditionedSharpness";
const RATE = "learning rate";

interface Limit {
  name: string; // of the eigenvalue that it is for
  words: string;
  series(axis: Axis): Series;
}

/** The limit of the eigenvalue that decides whether this optimizer's steps grow; null where none is known, or that eigenvalue is not tracked. */
function limitOf(run: ShownRun): Limit | null {
  const factor = stabilityFactor(run);
  if (factor !== null) {
    const words = `${formatNumber(factor)} / ${RATE}`;
    return { name: "HessMaxEV", words, series: (axis) => inverse(run.data, "LearningRate", factor, axis) };
  }
  if (!run.data.has(`${PRECONDITIONED}/ratio`)) return null;
  // The value over its ratio to the limit is the limit, as it was when it was measured.
  const series = (axis: Axis) => ratio(run.data, PRECONDITIONED, `${PRECONDITIONED}/ratio`, "", axis);
  return { name: PRECONDITIONED, words: `limit of ${optimizerOf(run) ?? "the optimizer"}`, series };
}

function stability(ctx: Context) {
  const several = ctx.runs.length > 1;
  const curves = ctx.runs.flatMap((run) => {
    const limit = limitOf(run);
    if (!limit || !run.data.has(limit.name)) return [];
    const color = several ? run.color : ctx.theme.warn;
    const curve = { series: limit.series(ctx.axis), color, label: limit.words, dash: dashes[1], exact: true };
    return curve.series.n ? [curve] : [];
  });
  const color = several ? ctx.theme.quiet : ctx.theme.warn;
  const labels = [...new Set(curves.map((curve) => curve.label))];
  return { curves, legend: labels.map((label) => ({ label, color, dash: dashes[1] })) };
}

function judge(ctx: Context, run: ShownRun): Verdict | null {
  const limit = limitOf(run);
  if (!limit || ctx.step === null) return null;
  const level = judged(ctx, run, limit.name);
  const edge = limit.series("step").at(ctx.step)?.value;
  if (!level || !edge) return null;
  const { value, low, high, at } = level;
  if (!(value > 1e-6 * edge)) return null; // flat: there is no curvature that a step could be judged by
  const fault = low > edge;
  const verdict = `${fault ? "beyond" : high > edge ? "at" : "below"} the edge of stability`;
  const whose = limit.name === PRECONDITIONED ? "" : "limit ";
  const text = `${at}${formatShare(value / edge)} of the ${whose}${limit.words} (${formatNumber(edge)}): ${verdict}.`;
  return { text, short: verdict, fault };
}

/** What is missing where the picture has no line. */
function note(ctx: Context): string {
  const without = ctx.runs.filter((run) => run.data.has("HessMaxEV") && !limitOf(run));
  const names = [...new Set(without.map((run) => optimizerOf(run)).filter(Boolean))];
  if (!names.length) return "";
  const who = names.join(", ");
  const adaptive = without.some((run) => /^(Adam|AdamW|RMSprop|Adagrad)$/.test(optimizerOf(run) ?? ""));
  return adaptive
    ? `No line: ${who} rescales the directions, so λ max has no limit of its own. PreconditionedSharpness has one.`
    : `No line: no limit of λ max is known for ${who} with these settings.`;
}

export default curvePanel({
  id: "hess_max_ev",
  title: "Largest Hessian eigenvalue",
  group: "curvature",
  order: 10,
  height: 240,
  shown: [
    { name: "HessMaxEV", label: "λ max" },
    { name: PRECONDITIONED, label: "λ max as the optimizer sees it" },
  ],
  also: [`${PRECONDITIONED}/ratio`],
  ylabel: "λ max",
  ylog: true,
  extra: stability,
  verdict: judge,
  note,
  help: [
    "The curvature in the steepest direction, of the Hessian and, where PreconditionedSharpness is tracked, of the Hessian as the optimizer's own denominators scale it. The band is the error of the estimate where it is one.",
    "Dashed: the largest eigenvalue at which steps do not grow. For SGD it is 2 / learning rate, with momentum β 2 (1 + β) / learning rate. For the preconditioned Hessian of Adam and AdamW it is (2 + 2 β₁) / ((1 − β₁) learning rate), 38 / learning rate with their defaults, of RMSprop and Adagrad 2 / learning rate. Many runs hover right at their line, the edge of stability; far above it the loss soon explodes.",
    "Far below the line, a larger learning rate may be possible.",
  ],
});
