import { curvePanel } from "./_curves.ts";

export default curvePanel({
  id: "signal_outputs",
  title: "Outputs",
  group: "training",
  order: 72,
  aside: true,
  shown: [
    { name: "signal/output_rms", label: "root mean square" },
    { name: "signal/output_spread", label: "spread over samples" },
    { name: "signal/guess_top_share", label: "share of the most common answer" },
  ],
  also: ["output_min", "output_max", "accuracy", "row_sum_error", "column_sum_error", "loss_std", "loss_max"].map(
    (name) => `signal/${name}`,
  ),
  ylog: true,
  help: [
    "What the network answers: the size of its outputs, how much they differ from sample to sample, and how often it gives the most common answer.",
    "A spread near 0: the network gives the same answer whatever it sees. A share of the most common answer near 1: it has settled on one class. Outputs that grow without end: nothing limits them, and the loss will soon be infinite or NaN.",
  ],
});
