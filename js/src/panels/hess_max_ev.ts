import { inverse } from "../derive.ts";
import { formatNumber } from "../format.ts";
import { type Context, type ShownRun, valueAt } from "../panel.ts";
import { curvePanel, dashes } from "./_curves.ts";

const isSgd = (run: ShownRun) => run.data.header?.optimizers.some((optimizer) => optimizer.name === "SGD") ?? false;

function stability(ctx: Context) {
  const runs = ctx.runs.filter(isSgd);
  const several = ctx.runs.length > 1;
  const curves = runs
    .map((run) => ({
      series: inverse(run.data, "LearningRate", 2, ctx.axis),
      color: several ? run.color : ctx.theme.warn,
      label: "2 / learning rate",
      dash: dashes[1],
      exact: true,
    }))
    .filter((curve) => curve.series.n);
  const color = several ? ctx.theme.quiet : ctx.theme.warn;
  return { curves, legend: curves.length ? [{ label: "2 / learning rate", color, dash: dashes[1] }] : [] };
}

function judge(ctx: Context): string {
  const run = ctx.runs.length === 1 ? ctx.runs[0] : null;
  if (!run || !isSgd(run) || ctx.step === null) return "";
  const value = valueAt(ctx, run, "HessMaxEV")?.value;
  const rate = valueAt(ctx, run, "LearningRate")?.value;
  if (value === undefined || !rate) return "";
  const limit = 2 / rate;
  const times = formatNumber(value / limit, 2);
  if (value > limit)
    return `${times} × the limit 2 / learning rate = ${formatNumber(limit)}: beyond the edge of stability.`;
  return `${times} × the limit 2 / learning rate = ${formatNumber(limit)}: stable.`;
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
  note: judge,
  help: [
    "The curvature in the steepest direction. The band is the error of the estimate where it is one.",
    "For SGD, a step along that direction overshoots for good once the eigenvalue is above 2 / learning rate (dashed). Many runs hover right at this line, the edge of stability; far above it the loss soon explodes. With momentum β the limit is 2 (1 + β) / learning rate.",
    "Far below the line, a larger learning rate may be possible.",
  ],
});
