import { type Context, valueAt } from "../contract/panel.ts";
import { formatNumber } from "../data/format.ts";
import { curvePanel } from "./_curves.ts";

const LOGIT = "AttentionEntropy/largest_logit";

function note(ctx: Context): string {
  const hit = ctx.runs.length === 1 ? valueAt(ctx, ctx.runs[0], LOGIT) : null;
  return hit ? `Largest logit: ${formatNumber(hit.value)}.` : "";
}

export default curvePanel({
  id: "attention",
  title: "Attention",
  group: "training",
  order: 62,
  shown: [{ name: "AttentionEntropy", label: "entropy" }],
  also: [LOGIT],
  ylabel: "nats",
  split: true,
  holds: () => [0],
  note,
  help: [
    "The mean entropy of the attention weights: 0 where each position looks at a single position, ln of the number of positions where it looks at all of them equally. The sentence names the largest logit, before the softmax.",
    "Healthy: falls slowly, and stays well above 0. A fall to 0 while logits grow is a collapse of attention, after which training is often unstable (Zhai et al. 2023). A lower learning rate helps, and so does normalising queries and keys.",
  ],
});
