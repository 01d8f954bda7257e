import type { Context, Panel } from "../contract/panel.ts";
import { type CurvesSpec, curvePanel } from "./_curves.ts";

const spec = (groups: number): CurvesSpec => ({
  id: "learning_rate",
  title: "Learning rate",
  group: "training",
  order: 30,
  shown: Array.from({ length: groups }, (_, i) => ({
    name: i ? `LearningRate/${i}` : "LearningRate",
    label: i ? `group ${i}` : groups > 1 ? "group 0" : "learning rate",
  })),
  ylabel: "learning rate",
  ylog: true,
  exact: true,
  help: [
    "The learning rate that the optimizer used at each tracked step, one curve per parameter group.",
    "Read it beside Alpha: overshooting after a warm-up says that the peak is too high.",
  ],
});

// As many curves as the chosen runs have parameter groups.
function ownPanel(ctx: Context): Panel {
  let groups = 1;
  while (groups < 12 && ctx.runs.some(({ data }) => data.has(`LearningRate/${groups}`))) groups++;
  return curvePanel(spec(groups));
}

const base = curvePanel(spec(1));
const panel: Panel = {
  ...base,
  readings: (ctx) => ownPanel(ctx).readings(ctx),
  draw: (ctx, size) => ownPanel(ctx).draw!(ctx, size),
  csv: (ctx) => ownPanel(ctx).csv(ctx),
};
export default panel;
