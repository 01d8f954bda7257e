import { curvePanel } from "./_curves.ts";

export default curvePanel({
  id: "distance",
  title: "Distance and update size",
  group: "step",
  order: 20,
  shown: [
    { name: "Distance", label: "‖θ − θ₀‖ distance" },
    { name: "UpdateSize", label: "‖Δθ‖ update" },
    { name: "ParamNorm", label: "‖θ‖ weights" },
  ],
  ylabel: "L2 norm",
  ylog: true,
  split: true,
  help: [
    "How far the weights are from where they began, how long each step is, and how large the weights are.",
    "Distance that grows while updates stay the same size is progress. Distance that stalls while updates stay large means the steps cancel each other: the optimizer diffuses instead of moving. On a log axis pure diffusion has slope one half.",
    "The ⋯ menu shows one line per layer: a layer that does not move learns nothing.",
  ],
});
