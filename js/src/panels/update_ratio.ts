import { curvePanel } from "./_curves.ts";

export default curvePanel({
  id: "update_ratio",
  title: "Update-to-weight ratio",
  group: "step",
  order: 40,
  shown: [{ name: "UpdateSize", over: "ParamNorm", label: "‖Δθ‖ / ‖θ‖" }],
  also: ["ParamNorm"],
  ylabel: "ratio",
  ylog: true,
  split: true,
  rules: () => [{ value: 1e-3, label: "1e−3, a common value" }],
  help: [
    "The length of one step relative to the length of the weights.",
    "Around 1e−3 is a common healthy value. Much more: the step rewrites the weights, lower the learning rate. Much less: nothing moves.",
    "One line per layer (⋯ menu) finds the layer that moves too fast or not at all.",
  ],
});
