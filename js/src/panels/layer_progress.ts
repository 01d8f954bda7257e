import { type Context, type ShownRun, valueAt } from "../contract/panel.ts";
import { formatShare, shorten } from "../data/format.ts";
import { curvePanel } from "./_curves.ts";

const NAME = "LayerProgress";

/** The tensor with the largest part of what the step gains. */
function hardest(ctx: Context, run: ShownRun): { layer: string; part: number } | null {
  ctx.wantLayers(run, NAME);
  const layers = run.data.layersOf(NAME).flatMap((layer) => {
    const value = layer ? valueAt(ctx, run, NAME, layer)?.value : undefined;
    return value !== undefined && Number.isFinite(value) ? [{ layer, value }] : [];
  });
  const gained = layers.reduce((sum, { value }) => sum + Math.max(0, value), 0);
  if (layers.length < 2 || !(gained > 0)) return null;
  const { layer, value } = layers.reduce((a, b) => (b.value > a.value ? b : a));
  return { layer, part: value / gained };
}

function note(ctx: Context): string {
  const most = ctx.runs.length === 1 && !ctx.state.layer ? hardest(ctx, ctx.runs[0]) : null;
  return most ? `Most of it by ${shorten(most.layer, 40)}: ${formatShare(most.part)}.` : "";
}

export default curvePanel({
  id: "layer_progress",
  title: "Progress of a step",
  group: "step",
  order: 46,
  shown: [{ name: NAME, label: "expected fall of the loss" }],
  ylabel: "loss",
  split: true,
  guides: () => [{ value: 0, label: "no progress" }],
  note,
  help: [
    "How much the loss of the batch should fall in this step, according to its gradient: the step times the negative gradient. One line per layer (⋯ menu), or the map of the network, shows which layer does the work.",
    "Healthy: above 0, and shared by many layers. Below 0 the step goes uphill (momentum, weight decay). Far more than the loss falls: the valley is curved, and the step too long for it.",
  ],
});
