import { curvePanel } from "./_curves.ts";

export default curvePanel({
  id: "signal_targets",
  title: "Labels and targets",
  group: "training",
  order: 71,
  aside: true,
  shown: [
    { name: "signal/label_top_share", label: "share of the most common label" },
    { name: "signal/label_entropy", label: "entropy of the labels" },
    { name: "signal/target_scale", label: "scale of the targets" },
    { name: "signal/target_std", label: "their standard deviation" },
  ],
  also: ["label_min", "label_max", "label_count", "target_min", "target_max", "target_mean", "target_variance"].map(
    (name) => `signal/${name}`,
  ),
  help: [
    "The targets of the loss. For classes: the share of the most common label in each batch, and the entropy of the labels in nats. For numbers: their usual size and standard deviation.",
    "A share near 1 and an entropy near 0: a batch of one class; the data are sorted or not shuffled. Entropy far below ln of the number of classes: classes are unbalanced. Targets much larger or smaller than 1 make gradients equally large or small.",
  ],
});
