import { type Context, type ShownRun, type Verdict, valueAt } from "../contract/panel.ts";
import { curvePanel } from "./_curves.ts";

function judge(ctx: Context, run: ShownRun): Verdict | null {
  const value = valueAt(ctx, run, "AlphaOwnBatch")?.value;
  if (value === undefined || !Number.isFinite(value)) return null;
  if (value > 1)
    return { text: "Beyond the opposite wall: the step raised the loss of its own batch.", short: "overshoots" };
  if (value < -0.9)
    return { text: "The step covers a small part of the way to the floor of its own batch.", short: "short steps" };
  return { text: "The step lands inside the valley of its own batch.", short: "inside" };
}

export default curvePanel({
  id: "alpha_own_batch",
  title: "Alpha on its own batch",
  group: "step",
  order: 12,
  height: 170,
  shown: [{ name: "AlphaOwnBatch", label: "alpha, own batch" }],
  also: ["AlphaOwnBatch/loss_end"],
  ylabel: "alpha",
  rules: () => [
    { value: 0, label: "valley floor" },
    { value: 1, label: "edge of stability" },
  ],
  verdict: judge,
  help: [
    "Where the step lands on the loss of the very samples it was made from: −1 stands still, 0 is the valley floor, +1 the opposite wall. It is free of the noise of a second batch, which makes the paper's alpha positive at any learning rate where gradients are noisy.",
    "For plain SGD it is the learning rate times the batch sharpness, minus 1. At +1 lies the edge of stochastic stability: runs hover there, and beyond it each step raises the loss of its own batch.",
    "Above 0 is no illness: small batches are overshot where all the data are not.",
  ],
});
