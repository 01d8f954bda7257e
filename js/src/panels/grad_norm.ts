import type { Context } from "../contract/panel.ts";
import { ROW } from "../data/store.ts";
import { lowerBound } from "../data/table.ts";
import { curvePanel } from "./_curves.ts";

/** Where in the batch the largest gradients were, so that the data can be looked at. */
function nameSamples(ctx: Context): string {
  if (ctx.runs.length !== 1 || ctx.step === null) return "";
  const { data } = ctx.runs[0];
  const { rows } = data;
  const end = lowerBound(rows.columns[ROW.step], rows.n, ctx.step + 1);
  for (let row = end - 1; row >= Math.max(0, end - 4); row--) {
    const samples = data.topSamplesAt(rows.seq[row]);
    const largest = data.series("TopSampleNorm", "", "step").at(rows.columns[ROW.step][row]);
    if (largest && !Number.isFinite(largest.value)) return ""; // an order of NaNs is none
    if (samples.length) return `Largest gradients: places ${samples.join(", ")} in this batch (counted from 0).`;
  }
  return "";
}

export default curvePanel({
  id: "grad_norm",
  title: "Gradient norm",
  group: "step",
  order: 30,
  shown: [
    { name: "GradNorm", label: "before clipping" },
    { name: "GradNormClipped", label: "as the optimizer saw it" },
    { name: "TopSampleNorm", label: "largest sample" },
  ],
  ylabel: "L2 norm",
  ylog: true,
  split: true,
  note: nameSamples,
  help: [
    "The length of the mini-batch gradient, as measured and as the optimizer saw it after your own clipping; beside it the largest gradient of a single sample.",
    "Two curves that coincide: nothing was clipped. A clipped curve that is flat all the time: clipping, not the learning rate, sets the step.",
    "A largest sample far above the rest points at an outlier in the data.",
  ],
});
