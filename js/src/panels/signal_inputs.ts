import { curvePanel } from "./_curves.ts";

export default curvePanel({
  id: "signal_inputs",
  title: "Inputs",
  group: "training",
  order: 70,
  aside: true,
  shown: [
    { name: "signal/input_rms", label: "root mean square" },
    { name: "signal/input_ratio", label: "largest feature / median" },
    { name: "signal/input_tail", label: "longest sample / median" },
  ],
  also: ["signal/input_zeros", "signal/input_constant", "signal/input_not_finite", "signal/batch_duplicates"],
  ylabel: "ratio",
  ylog: true,
  guides: () => [{ value: 1, label: "1, what initialisation expects" }],
  help: [
    "What goes into the network: the root mean square of the inputs, the scale of the largest feature relative to the median one, and the length of the longest sample relative to the median one.",
    "Initialisations and learning rates are made for inputs with a root mean square of about 1. Raw pixels (0 to 255) are a hundred times larger. One feature far above the others decides everything; one sample far above the others is an outlier.",
  ],
});
