import { type Context, isIdle, type Panel, valueAt } from "../contract/panel.ts";
import { formatNumber } from "../data/format.ts";
import { type CurvesSpec, curvePanel } from "./_curves.ts";

const NAME = "UpdateRatio";
const label = "‖Δθ‖ / ‖θ‖";

function note(ctx: Context): string {
  const hit = ctx.runs.length === 1 && !ctx.state.layer ? valueAt(ctx, ctx.runs[0], `${NAME}/angle`) : null;
  return hit && Number.isFinite(hit.value) ? `A step turns the weights by ${formatNumber(hit.value, 2)}°.` : "";
}

const spec = (measured: boolean): CurvesSpec => ({
  id: "update_ratio",
  title: "Update-to-weight ratio",
  group: "step",
  order: 40,
  shown: [measured ? { name: NAME, label } : { name: "UpdateSize", over: "ParamNorm", label }],
  also: ["ParamNorm", NAME, `${NAME}/angle`],
  ylabel: "ratio",
  ylog: true,
  split: true,
  guides: () => [{ value: 1e-3, label: "1e−3, a common value" }],
  note,
  help: [
    "The length of one step relative to the length of the weights.",
    "Around 1e−3 is a common healthy value. Much more: the step rewrites the weights, lower the learning rate. Much less: nothing moves.",
    "One line per layer (⋯ menu) finds the layer that moves too fast or not at all.",
  ],
});

// From the two lengths, or as measured where those were not tracked.
const [own, measured] = [curvePanel(spec(false)), curvePanel(spec(true))];
const choose = (ctx: Context) => (isIdle(ctx, own) && !isIdle(ctx, measured) ? measured : own);
const panel: Panel = {
  ...own,
  needs: ["UpdateSize", NAME],
  shows: (ctx) => own.shows(ctx) || measured.shows(ctx),
  readings: (ctx) => choose(ctx).readings(ctx),
  note: (ctx) => choose(ctx).note!(ctx),
  draw: (ctx, size) => choose(ctx).draw!(ctx, size),
  csv: (ctx) => choose(ctx).csv(ctx),
};
export default panel;
