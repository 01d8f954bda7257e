// Whatever has no panel of its own: a curve, layer-wise if it has layers. A user's quantity shows up unasked.
import { shorten } from "../format.ts";
import { type Context, type Panel, quantityInfo } from "../panel.ts";
import { curvePanel } from "./_curves.ts";
import { panels } from "./index.ts";

const silent = /^(cost|error)\//;

let claimed: Set<string> | null = null;
const isClaimed = (name: string) => {
  claimed ??= new Set(panels.flatMap((panel) => panel.names));
  return claimed.has(name) || silent.test(name) || /^LearningRate\/\d+$/.test(name);
};

export function otherPanels(ctx: Context): Panel[] {
  const names = new Set<string>();
  for (const { data } of ctx.runs) {
    for (const { name, kind } of data.header?.quantities ?? [])
      if (kind === "scalar" && !isClaimed(name)) names.add(name);
    for (const name of data.columns.keys()) if (!isClaimed(name)) names.add(name);
  }
  return [...names].slice(0, 200).map((name, i) => otherPanel(ctx, name, i));
}

function otherPanel(ctx: Context, name: string, index: number): Panel {
  const info = quantityInfo(ctx, name);
  const logged = name.startsWith("log/");
  const title = shorten(logged ? name.slice(4) : name, 60);
  const split = Boolean(info?.layerwise) || ctx.runs.some(({ data }) => data.layersOf(name).length > 0);
  const help = [
    info?.description || (logged ? "A value that run.log() sent." : "A quantity without a panel of its own."),
  ];
  if (info?.schedule) help.push(`Measured ${info.schedule}.`);
  return curvePanel({
    id: `other:${name.slice(0, 200)}`,
    title,
    group: "training",
    order: (logged ? 15 : 100) + index / 1000,
    shown: [{ name, label: title }],
    ylabel: info?.unit ? shorten(info.unit, 16) : undefined,
    split,
    help,
  });
}
