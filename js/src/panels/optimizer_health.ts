import { curvePanel } from "./_curves.ts";

export default curvePanel({
  id: "optimizer_health",
  title: "Optimizer's health",
  group: "step",
  order: 47,
  shown: [
    { name: "EpsilonShare", label: "eps in Adam's denominator" },
    { name: "EpsilonShare/rms", label: "step / learning rate" },
  ],
  ylabel: "share",
  split: true,
  holds: () => [0],
  help: [
    "For Adam and similar optimizers: how much of the denominator √v + eps is eps, averaged over the parameters, and the root mean square of the step in units of the learning rate.",
    "Healthy: little eps, and steps of 0.1 to 1 learning rates. Near 1, eps decides: Adam acts like SGD with the rate lr / eps, because gradients are below eps (a loss scaled down, or gradients that vanish). A step far below the learning rate: gradients change their sign from step to step.",
  ],
});
