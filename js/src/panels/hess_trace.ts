import { curvePanel } from "./_curves.ts";

export default curvePanel({
  id: "hess_trace",
  title: "Hessian trace",
  group: "curvature",
  order: 20,
  shown: [{ name: "HessTrace", label: "Tr H" }],
  ylabel: "Tr H",
  ylog: true,
  split: true,
  help: [
    "The sum of the curvatures in all directions; the band is the error where it is an estimate.",
    "It usually rises at first and then settles or falls: flat regions generalise better, sharp ones need small steps. Layer by layer it shows which part of the network is stiff.",
  ],
});
