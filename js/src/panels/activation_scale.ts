import { curvePanel } from "./_curves.ts";

export default curvePanel({
  id: "activation_scale",
  title: "Size of activations",
  group: "training",
  order: 61,
  shown: [
    { name: "ActivationScale", label: "root mean square" },
    { name: "ActivationScale/largest", label: "largest" },
  ],
  ylabel: "output",
  ylog: true,
  split: true,
  help: [
    "How large the outputs of the network are: their root mean square, and the largest of them. One line per layer (⋯ menu) shows the outputs of each layer.",
    "Healthy: of similar size in all layers, from the beginning. Falling from layer to layer: the signal fades on its way. Growing from step to step: outputs or logits run away, and precision below float32 overflows.",
  ],
});
