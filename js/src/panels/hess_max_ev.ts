import { type Context, type ShownRun, type Verdict, valueAt } from "../contract/panel.ts";
import { inverse } from "../data/derive.ts";
import { formatNumber } from "../data/format.ts";
import { judged } from "../judge/judging.ts";
import { curvePanel, dashes } from "./_curves.ts";

const RATE = "learning rate";

/** 2, or 2 (1 + β) with heavy-ball momentum β; null where no such limit is known (as `stability_limit` in the core). */
export function stabilityFactor(run: ShownRun): number | null {
  const optimizers = run.data.header?.optimizers ?? [];
  const groups = optimizers[0]?.groups ?? [];
  if (optimizers.length !== 1 || optimizers[0].name !== "SGD") return null;
  if (groups.some((group) => group.nesterov === "True" || Number(group.dampening ?? 0) > 0)) return null;
  if (new Set(groups.map((group) => group.lr)).size > 1) return null;
  return 2 * (1 + (Number(groups[0]?.momentum ?? 0) || 0));
}

const words = (factor: number) => `${formatNumber(factor)} / ${RATE}`;

function stability(ctx: Context) {
  const runs = ctx.runs.flatMap((run) => {
    const factor = stabilityFactor(run);
    return factor === null ? [] : [{ run, factor }];
  });
  const several = ctx.runs.length > 1;
  const curves = runs
    .map(({ run, factor }) => ({
      series: inverse(run.data, "LearningRate", factor, ctx.axis),
      color: several ? run.color : ctx.theme.warn,
      label: words(factor),
      dash: dashes[1],
      exact: true,
    }))
    .filter((curve) => curve.series.n);
  const color = several ? ctx.theme.quiet : ctx.theme.warn;
  const labels = [...new Set(curves.map((curve) => curve.label))];
  return { curves, legend: labels.map((label) => ({ label, color, dash: dashes[1] })) };
}

function judge(ctx: Context, run: ShownRun): Verdict | null {
  const factor = stabilityFactor(run);
  if (!factor || ctx.step === null) return null;
  const found = judged(ctx, run, "HessMaxEV");
  const rate = valueAt(ctx, run, "LearningRate")?.value;
  if (!found || !rate) return null;
  const limit = factor / rate;
  const { value, low, high, at } = found;
  if (!(value > 1e-6 * limit)) return null; // flat: there is no curvature that a step could be judged by
  const fault = low > limit;
  const verdict = fault ? "beyond the edge of stability" : high > limit ? "at the edge of stability" : "below the edge";
  const text = `${at}${formatNumber(value / limit, 2)} × the limit ${words(factor)} = ${formatNumber(limit)}: ${verdict}.`;
  return { text, short: verdict, fault };
}

export default curvePanel({
  id: "hess_max_ev",
  title: "Largest Hessian eigenvalue",
  group: "curvature",
  order: 10,
  height: 240,
  shown: [{ name: "HessMaxEV", label: "λ max" }],
  ylabel: "λ max",
  ylog: true,
  extra: stability,
  verdict: judge,
  help: [
    "The curvature in the steepest direction. The band is the error of the estimate where it is one.",
    "For SGD, a step along that direction overshoots for good once the eigenvalue is above 2 / learning rate (dashed). Many runs hover right at this line, the edge of stability; far above it the loss soon explodes. With momentum β the limit is 2 (1 + β) / learning rate.",
    "Far below the line, a larger learning rate may be possible.",
  ],
});
