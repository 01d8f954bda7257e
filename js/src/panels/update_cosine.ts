import { curvePanel } from "./_curves.ts";

export default curvePanel({
  id: "update_cosine",
  title: "Direction of the step",
  group: "step",
  order: 45,
  shown: [
    { name: "UpdateCosine", label: "with −gradient" },
    { name: "UpdateCosine/last", label: "with the step before" },
  ],
  ylabel: "cosine",
  split: true,
  holds: () => [0],
  guides: () => [{ value: 0, label: "across" }],
  help: [
    "The cosine between the step and the negative gradient: 1 for plain SGD, less with momentum, Adam or weight decay. Below 0 the step goes uphill on this batch.",
    "Cosine with the step before (if that one was tracked too): near 1 the steps add up; near −1 each step undoes the last one and bounces between two walls.",
  ],
});
