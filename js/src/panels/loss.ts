import { curvePanel } from "./_curves.ts";

export default curvePanel({
  id: "loss",
  title: "Loss",
  group: "training",
  order: 10,
  shown: [{ name: "Loss", label: "loss" }],
  ylabel: "mini-batch loss",
  help: [
    "The mean loss of each tracked mini-batch, before the step that followed it.",
    "Healthy: falls fast, then slowly, with noise. A cross at the upper edge is a value that was NaN or infinite.",
    "It cannot say why it stalls: the panels above can.",
  ],
});
