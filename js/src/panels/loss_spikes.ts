import { curvePanel } from "./_curves.ts";

export default curvePanel({
  id: "loss_spikes",
  title: "Loss spikes",
  group: "training",
  order: 65,
  shown: [{ name: "SpikeScore", label: "distance from the median" }],
  also: ["SpikeScore/share"],
  ylabel: "deviations",
  exact: true,
  holds: () => [0, 7],
  guides: () => [{ value: 7, label: "7: a spike" }],
  help: [
    "How far the loss is above the median of the tracked losses before it, in units of their usual deviation from it (1.4826 times the median deviation).",
    "Up to 3 is noise. Above 7 (dashed) the loss is out of line: look at the batch, the gradient norm and the learning rate of that step. Below 0 the loss falls.",
  ],
});
