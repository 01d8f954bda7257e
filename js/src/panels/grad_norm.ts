import { curvePanel } from "./_curves.ts";

export default curvePanel({
  id: "grad_norm",
  title: "Gradient norm",
  group: "step",
  order: 30,
  shown: [
    { name: "GradNorm", label: "before clipping" },
    { name: "GradNormClipped", label: "as the optimizer saw it" },
    { name: "TopSampleNorm", label: "largest sample" },
  ],
  ylabel: "L2 norm",
  ylog: true,
  split: true,
  help: [
    "The length of the mini-batch gradient, as measured and as the optimizer saw it after your own clipping; beside it the largest gradient of a single sample.",
    "Two curves that coincide: nothing was clipped. A clipped curve that is flat all the time: clipping, not the learning rate, sets the step.",
    "A largest sample far above the rest points at an outlier in the data.",
  ],
});
