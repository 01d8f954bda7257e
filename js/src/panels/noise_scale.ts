import { type Context, type ShownRun, type Verdict, valueAt } from "../contract/panel.ts";
import { formatNumber } from "../data/format.ts";
import { isPointed, isThin } from "../judge/judging.ts";
import { curvePanel } from "./_curves.ts";

const batchSizes = (ctx: Context) =>
  [...new Set(ctx.runs.map(({ data }) => data.header?.batch_size ?? 0))].filter((size) => size > 0);

/** What doubling the batch would save: steps to a given loss are in proportion to 1 + scale / batch. */
function judge(ctx: Context, run: ShownRun): Verdict | null {
  const hit = valueAt(ctx, run, "NoiseScale");
  const batch = run.data.header?.batch_size;
  if (!batch || !hit || !(hit.value > 0) || isThin(ctx, run, "NoiseScale")) return null;
  const error = run.data.series("error/NoiseScale", "", "step").at(hit.step);
  if (error && error.value > hit.value / 2) return null; // half or twice as much is as likely
  const scale = hit.value;
  const saved = 1 - (1 + scale / (2 * batch)) / (1 + scale / batch);
  const about = formatNumber(scale, 2);
  const at = isPointed(ctx) ? `At step ${hit.step}: ` : "";
  if (scale > batch)
    return {
      text: `${at}Doubling the batch would help up to about ${about} samples; from ${formatNumber(batch)} it saves ${formatNumber(100 * saved, 2)} % of the steps.`,
      short: `a larger batch helps up to ${about}`,
    };
  return {
    text: `${at}The batch of ${formatNumber(batch)} is above the noise scale: doubling it would save only ${formatNumber(100 * saved, 2)} % of the steps.`,
    short: "batch large enough",
  };
}

export default curvePanel({
  id: "noise_scale",
  title: "Gradient noise scale",
  group: "gradients",
  order: 15,
  height: 170,
  shown: [{ name: "NoiseScale", label: "noise scale" }],
  ylabel: "samples",
  ylog: true,
  split: true,
  exact: true, // an average over tracked steps already
  guides: (ctx) => batchSizes(ctx).map((size) => ({ value: size, label: `batch size ${formatNumber(size)}` })),
  verdict: judge,
  help: [
    "Noise of the individual gradients over their signal, in samples, averaged over the tracked steps; the band is its standard error. The dashed line is the batch size in use.",
    "Far above the dashed line, doubling the batch nearly halves the steps to the same loss. Far below it, a larger batch costs samples and saves hardly any step.",
    "It normally grows by orders of magnitude as the loss falls. It assumes the same curvature in all directions, so trust its order of magnitude only.",
  ],
});
