import { curvePanel } from "./_curves.ts";

export default curvePanel({
  id: "units",
  title: "Dead, dormant and saturated units",
  group: "training",
  order: 60,
  shown: [
    { name: "DeadUnits", label: "dead" },
    { name: "DeadUnits/dormant", label: "dormant" },
    { name: "Saturation", label: "saturated" },
  ],
  ylabel: "share",
  split: true,
  help: [
    "Dead: units of a ReLU that are zero for every sample of the batch; without a gradient they do not come back. Dormant: units whose activation is below a fortieth of their layer's mean. Saturated: outputs of tanh or sigmoid at their flat ends, where hardly any gradient passes.",
    "A few percent are normal. A layer that is half dead has lost half of its width: look for a learning rate that is too high, or inputs that are not scaled.",
  ],
});
