import { valueAt } from "../contract/panel.ts";
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
  guides: () => [{ value: 0, label: "0: stop above" }],
  verdict: (ctx, run) => {
    const value = valueAt(ctx, run, "EarlyStopping")?.value;
    if (value === undefined || !Number.isFinite(value)) return null;
    if (value > 0) return { text: "Above 0: the gradient cannot be told from noise.", short: "only noise left" };
    return { text: "Below 0: the gradient still carries information.", short: "still informative" };
  },
  note: (ctx) => sgdNote(ctx, "EarlyStopping"),
  help: [
    "Compares the gradient with its own noise, without a validation set.",
    "Below 0 the gradient still carries information; above 0 it cannot be told from noise, and further training mostly fits that noise.",
  ],
});
