import { curvePanel } from "./_curves.ts";

export default curvePanel({
  id: "adam_edge",
  title: "Adam's edge of stability",
  group: "curvature",
  order: 11,
  shown: [{ name: "PreconditionedSharpness/ratio", label: "sharpness / limit" }],
  also: ["PreconditionedSharpness"],
  ylabel: "ratio",
  ylog: true,
  rules: () => [{ value: 1, label: "limit" }],
  help: [
    "The largest eigenvalue of the curvature as the optimizer's denominators scale it, over the limit where its steps begin to grow: (2 + 2 beta1) / ((1 − beta1) learning rate) for Adam.",
    "Runs hover around 1. Far below it a larger learning rate may be possible; far above it the loss soon explodes.",
  ],
});
