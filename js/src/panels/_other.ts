// Whatever has no panel of its own: a curve, layer-wise if it has layers. A user's quantity shows up unasked.

import { type Context, type Panel, quantityInfo } from "../contract/panel.ts";
import { shorten } from "../data/format.ts";
import { groupNames, isAccuracy, isScore, stemOf } from "../data/pairs.ts";
import { guessAccuracy, guessGuides } from "../judge/guessing.ts";
import { isLoss } from "../judge/metrics.ts";
import { curvePanel } from "./_curves.ts";
import { panels } from "./index.ts";

const silent = /^(cost|error|signal)\//; // signals are the evidence of findings

let claimed: Set<string> | null = null;
const isClaimed = (name: string) => {
  claimed ??= new Set(panels.flatMap((panel) => panel.names));
  return claimed.has(name) || silent.test(name) || isLoss(name) || /^LearningRate\/\d+$/.test(name);
};

export function otherPanels(ctx: Context): Panel[] {
  const names = new Set<string>();
  for (const { data } of ctx.runs) {
    for (const { name, kind } of data.header?.quantities ?? [])
      if (kind === "scalar" && !isClaimed(name)) names.add(name);
    for (const name of data.columns.keys()) if (!isClaimed(name)) names.add(name);
  }
  return groupNames([...names].slice(0, 200)).map((group, i) => otherPanel(ctx, group, i));
}

const allBelow = (ctx: Context, names: string[], limit: number) =>
  ctx.runs.every(({ data }) =>
    names.every((name) => {
      const { y, n } = data.series(name, "", "step");
      return y.subarray(0, n).every((value) => value <= limit);
    }),
  );

/** Only where the values are shares, not percentages; for runs that have some. */
function accuracyGuides(ctx: Context, names: string[]) {
  const runs = ctx.runs.filter(({ data }) => names.some((name) => data.has(name)));
  return allBelow(ctx, names, 1)
    ? guessGuides({ runs }, guessAccuracy).map((guide) => ({ ...guide, color: ctx.theme.quiet }))
    : [];
}

// "train_accuracy", "valid_accuracy" -> "accuracy"
function commonEnding(names: string[]): string {
  const [first] = names;
  let size = 0;
  while (size < first.length && names.every((name) => name.endsWith(first.slice(first.length - size - 1)))) size++;
  return first.slice(first.length - size).replace(/^[_\-./ ]+/, "") || first;
}

function otherPanel(ctx: Context, names: string[], index: number): Panel {
  const [name] = names;
  const info = quantityInfo(ctx, name);
  const logged = name.startsWith("log/");
  const plain = (own: string) => shorten(own.startsWith("log/") ? own.slice(4) : own, 60);
  const own = names.length > 1 ? shorten(commonEnding(names), 60) : plain(name);
  const split = Boolean(info?.layerwise) || ctx.runs.some(({ data }) => data.layersOf(name).length > 0);
  const help = [
    info?.description || (logged ? "Values that run.log() sent." : "A quantity without a panel of its own."),
  ];
  if (info?.schedule) help.push(`Measured ${info.schedule}.`);
  const stem = stemOf(name);
  const first = isScore(stem);
  const title = names.length > 1 ? own[0].toUpperCase() + own.slice(1) : own;
  return curvePanel({
    id: `other:${names.length > 1 ? `group ${own}` : name.slice(0, 200)}`,
    title,
    group: first ? "first" : "training",
    order: (first ? 2 : logged ? 15 : 100) + index / 1000,
    height: first ? 150 : undefined,
    least: first ? 0.1 : undefined,
    holds: isAccuracy(stem) ? (own) => (allBelow(own, names, 0.5) ? [0] : []) : undefined, // near chance a per cent is noise
    guides: isAccuracy(stem) ? (own) => accuracyGuides(own, names) : undefined,
    shown: names.map((own) => ({ name: own, label: plain(own) })),
    ylabel: info?.unit ? shorten(info.unit, 16) : undefined,
    split,
    help,
  });
}
