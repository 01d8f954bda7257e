import { curvePanel } from "./_curves.ts";

export default curvePanel({
  id: "effective_rank",
  title: "Directions of the samples",
  group: "gradients",
  order: 18,
  height: 150,
  shown: [{ name: "EffectiveRank", label: "directions" }],
  also: ["EffectiveRank/largest"],
  ylabel: "directions",
  holds: () => [0],
  help: [
    "In how many different directions the samples of a batch pull: 1 where all individual gradients are parallel, the batch size where all are orthogonal and equally long.",
    "On handwritten digits with ten classes it begins at about 12, and falls to 6 as they are learned. A fall to 1 or 2: a few samples, or one class, decide every step.",
  ],
});
