import { curvePanel } from "./_curves.ts";

export default curvePanel({
  id: "tic",
  title: "TIC",
  group: "curvature",
  order: 30,
  shown: [
    { name: "TICDiag", label: "from the diagonal" },
    { name: "TICTrace", label: "from the traces" },
  ],
  ylabel: "TIC",
  ylog: true,
  help: [
    "The Takeuchi information criterion: how noisy the gradients are in the directions where the loss is flat. It estimates the gap between training and test loss.",
    "Rising while the training loss still falls is a sign of overfitting. Compare runs, not absolute values: one sharp, nearly zero curvature can dominate the diagonal form.",
  ],
});
