import type { Context } from "../contract/panel.ts";
import { inverse } from "../data/derive.ts";
import { stabilityFactor } from "../judge/stability.ts";
import { curvePanel, dashes } from "./_curves.ts";

/** 2 / learning rate, for runs of plain SGD: with momentum or Adam no such line is known for batches. */
function edge(ctx: Context) {
  const runs = ctx.runs.filter((run) => stabilityFactor(run) === 2);
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

export default curvePanel({
  id: "batch_sharpness",
  title: "Sharpness along the step",
  group: "curvature",
  order: 12,
  shown: [
    { name: "BatchSharpness", label: "along the gradient" },
    { name: "DirectionalSharpness", label: "along the step" },
  ],
  also: ["BatchSharpness/ratio", "DirectionalSharpness/share"],
  ylabel: "curvature",
  extra: edge,
  help: [
    "Curvature of the loss of a batch along its own gradient, and along the step that the optimizer took.",
    "With plain SGD, the curvature along the gradient settles at 2 / learning rate (dashed): the edge of stochastic stability. Where the curvature along the step is much lower, the optimizer finds flatter ways than the gradient.",
  ],
});
