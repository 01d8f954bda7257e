import { curvePanel } from "./_curves.ts";

export default curvePanel({
  id: "class_interference",
  title: "Interference of classes",
  group: "gradients",
  order: 18,
  shown: [
    { name: "ClassInterference", label: "between classes" },
    { name: "ClassInterference/same", label: "within a class" },
    { name: "ClassInterference/worst", label: "worst pair" },
  ],
  ylabel: "cosine",
  rules: () => [{ value: 0, label: "no effect" }],
  help: [
    "Mean cosine of the gradients of two samples: of different classes, of the same class, and of the pair of classes that disagrees most.",
    "Above 0 a step for one helps the other, below 0 it harms it. Classes that are confused harm each other.",
  ],
});
