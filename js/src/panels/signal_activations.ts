import { curvePanel } from "./_curves.ts";

export default curvePanel({
  id: "signal_activations",
  title: "Activations",
  group: "training",
  order: 73,
  aside: true,
  shown: [
    { name: "signal/dead", label: "dead, in the worst module" },
    { name: "signal/saturated", label: "saturated, in the worst module" },
    { name: "signal/activation_first", label: "scale of the first" },
    { name: "signal/activation_last", label: "scale of the last" },
  ],
  also: ["signal/dead_where", "signal/saturated_where"],
  help: [
    "What the activations do: the share of units with the same output for every sample of the batch, and the share of outputs at the flat ends of sigmoid or tanh, each in the worst module; and the root mean square of the first and the last activation.",
    "A share near 1 in one module: nothing passes it, neither forward nor back. A last scale far below the first: the signal fades on its way.",
  ],
});
