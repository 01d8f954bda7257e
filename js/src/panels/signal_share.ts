import { curvePanel } from "./_curves.ts";

export default curvePanel({
  id: "signal_share",
  title: "Share of signal",
  group: "gradients",
  order: 16,
  height: 150,
  shown: [{ name: "SignalShare", label: "signal" }],
  ylabel: "share",
  split: true,
  exact: true,
  holds: () => [0],
  guides: () => [{ value: 0, label: "nothing but noise" }],
  help: [
    "How much of the squared batch gradient is the gradient of all the data, averaged over the tracked steps; the band is its standard error. 1 is all signal, 0 nothing but noise; below 0 no signal was found.",
    "Where it is small, single steps say little: the paper's alpha is positive there at any learning rate.",
  ],
});
