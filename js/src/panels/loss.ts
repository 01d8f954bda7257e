import type { Context, Panel } from "../contract/panel.ts";
import { median } from "../data/density.ts";
import type { RunStore } from "../data/store.ts";
import { guessGuides, guessLoss } from "../judge/guessing.ts";
import { isLoss } from "../judge/metrics.ts";
import { type CurvesSpec, curvePanel } from "./_curves.ts";

const SPIKE = 100; // times the median: on a linear axis everything else would be a line at 0

const known = new WeakMap<RunStore, { version: number; spike: boolean }>(); // asked for with every frame

function hasSpike({ runs }: Context): boolean {
  return runs.some(({ data }) => {
    const cached = known.get(data);
    if (cached?.version === data.version) return cached.spike;
    const { y, n, extremes } = data.series("Loss", "", "step");
    const [least, most] = extremes.range(y, 0, n);
    const spike = least > 0 && most > SPIKE * median(y.subarray(0, n));
    known.set(data, { version: data.version, spike });
    return spike;
  });
}

const spec = (logged: string[]): CurvesSpec => ({
  id: "loss",
  title: "Loss",
  group: "first",
  order: 1,
  height: 150,
  shown: [
    { name: "Loss", label: logged.length ? "mini-batch" : "loss" },
    ...logged.map((name) => ({ name, label: name.slice(4) })),
  ],
  ylabel: "loss",
  ylog: hasSpike,
  least: 0.2,
  guides: (ctx) => guessGuides(ctx, guessLoss).map((guide) => ({ ...guide, color: ctx.theme.quiet })),
  help: [
    "The mean loss of each tracked mini-batch, before the step that followed it, with what run.log() sent as valid_loss, val_loss, test_loss or train_loss.",
    "Dashed: what a network that only guesses would reach, where that is known. A loss that stays there is not learning.",
    "Healthy: falls fast, then slowly, with noise. If the validation loss rises while the training loss falls, the network memorises. A cross at the upper edge is a value that was NaN or infinite; a bar is a stretch of them.",
  ],
});

function ownPanel(ctx: Context): Panel {
  const names = new Set(ctx.runs.flatMap(({ data }) => [...data.columns.keys()].filter(isLoss)));
  return curvePanel(spec([...names].slice(0, 6)));
}

const base = curvePanel(spec([]));
const panel: Panel = {
  ...base,
  needs: undefined,
  shows: (ctx) => ownPanel(ctx).shows(ctx),
  readings: (ctx) => ownPanel(ctx).readings(ctx),
  note: (ctx) => ownPanel(ctx).note!(ctx),
  draw: (ctx, size) => ownPanel(ctx).draw!(ctx, size),
  csv: (ctx) => ownPanel(ctx).csv(ctx),
};
export default panel;
