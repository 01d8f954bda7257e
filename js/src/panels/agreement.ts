import { curvePanel } from "./_curves.ts";

export default curvePanel({
  id: "agreement",
  title: "Agreement of samples",
  group: "gradients",
  order: 17,
  shown: [
    { name: "Coherence", label: "coherence" },
    { name: "ConflictShare", label: "conflicting pairs" },
  ],
  also: ["ConflictShare/lowest"],
  ylabel: "share",
  split: true,
  guides: ({ runs }) =>
    runs.some(({ data }) => data.has("ConflictShare")) ? [{ value: 0.5, label: "half of the pairs" }] : [],
  help: [
    "Coherence: 1 where all individual gradients are the same, 1 / batch size where they are orthogonal, 0 where they cancel. Conflicting pairs: share of pairs of samples whose gradients point against each other.",
    "Agreement falls during training, because what samples have in common is learned first. With wrong labels it is low from the beginning, and about half of the pairs conflict.",
  ],
});
