import { type Context, quantityInfo } from "../contract/panel.ts";
import { formatNumber } from "../data/format.ts";
import { judged } from "../judge/judging.ts";
import { curvePanel } from "./_curves.ts";

const batchSizes = (ctx: Context) =>
  [...new Set(ctx.runs.map(({ data }) => data.header?.batch_size ?? 0))].filter((size) => size > 0);

/** CABS and early stopping are derived for plain SGD; elsewhere they are a hint at best. */
export function sgdNote(ctx: Context, name: string): string {
  const other = ctx.runs
    .map(({ data }) => data.header?.optimizers[0]?.name)
    .find((optimizer) => optimizer && optimizer !== "SGD");
  return other && quantityInfo(ctx, name)?.defined_for_sgd ? `Its derivation assumes plain SGD, not ${other}.` : "";
}

export default curvePanel({
  id: "cabs",
  title: "CABS batch size",
  group: "gradients",
  order: 50,
  height: 140,
  shown: [{ name: "CABS", label: "suggested batch size" }],
  ylabel: "samples",
  ylog: true,
  guides: (ctx) => batchSizes(ctx).map((size) => ({ value: size, label: `actual batch size ${formatNumber(size)}` })),
  note: (ctx) => sgdNote(ctx, "CABS"),
  verdict: (ctx, run) => {
    const advised = judged(ctx, run, "CABS");
    const size = run.data.header?.batch_size;
    if (!advised?.value || !size) return null;
    const { low, high, at } = advised;
    if (low > 2 * size) return { text: `${at}The batch is smaller than this rule asks for.`, short: "batch too small" };
    if (high < size / 2) return { text: `${at}The batch is larger than this rule asks for.`, short: "batch too large" };
    if (low < size / 2 || high > 2 * size) return null; // it cannot decide
    return { text: `${at}The batch size suits this rule.`, short: "batch suits" };
  },
  help: [
    "The batch size that balances gradient noise against the cost of computing it, for the current learning rate and loss. The dashed line is the batch size in use.",
    "It normally grows during training: late gradients are small and noisy.",
  ],
});
