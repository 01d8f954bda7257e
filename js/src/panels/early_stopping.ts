import { curvePanel } from "./_curves.ts";
import { sgdNote } from "./cabs.ts";

export default curvePanel({
  id: "early_stopping",
  title: "Early stopping criterion",
  group: "gradients",
  order: 60,
  height: 140,
  shown: [{ name: "EarlyStopping", label: "criterion" }],
  ylabel: "criterion",
  rules: () => [{ value: 0, label: "stop above 0" }],
  note: (ctx) => sgdNote(ctx, "EarlyStopping"),
  help: [
    "Compares the gradient with its own noise, without a validation set.",
    "Below 0 the gradient still carries information; above 0 it cannot be told from noise, and further training mostly fits that noise.",
  ],
});
