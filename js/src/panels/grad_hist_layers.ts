// All layers at once, in network order: a layer whose gradients vanish is coloured without a click.

import { alignLog } from "../charts/align.ts";
import { outsideShares } from "../charts/heatmap.ts";
import { largest, spread } from "../charts/histogram.ts";
import {
  allLayers,
  type Context,
  isTracked,
  type Panel,
  type Reading,
  type ShownRun,
  type Size,
  type Verdict,
  valueAt,
} from "../contract/panel.ts";
import { median } from "../data/density.ts";
import { formatNumber, formatShare, shortNames } from "../data/format.ts";
import { messageScene, type Scene } from "../draw/scene.ts";
import { type Cell, rowScene } from "./_hist_rows.ts";
import { fewWords, histogramCsv, histogramsAt, missingWords } from "./grad_hist_2d.ts";

const NAME = "GradHist1d";
const MOST = 60;

/** All of them, or some from the first to the last one: of a deep network its weights, else every other one might be a bias. */
function chooseLayers(ctx: Context): string[] {
  const measured = allLayers(ctx, ({ method }) => !["no gradient", "not covered", "not selected"].includes(method));
  if (measured.length <= MOST) return measured;
  const flat = new Set(
    ctx.runs.flatMap(({ data }) =>
      (data.header?.layers ?? []).filter(({ shape }) => shape.length < 2).map(({ name }) => name),
    ),
  );
  const weights = measured.filter((layer) => !flat.has(layer));
  const some = weights.length >= MOST / 3 ? weights : measured;
  const count = Math.min(MOST, some.length);
  return Array.from({ length: count }, (_, i) => some[Math.round((i * (some.length - 1)) / (count - 1))]);
}

function cells(ctx: Context): Cell[] {
  const strips = chooseLayers(ctx).map((layer) => ({ layer, shown: histogramsAt(ctx, NAME, layer) }));
  const fitted = alignLog(strips.flatMap(({ shown }) => shown.map(({ histogram }) => histogram)));
  let at = 0;
  return strips.map(({ layer, shown }) => ({
    layer,
    shown: shown.map(({ run }) => ({ run, histogram: fitted[at++] })),
  }));
}

const known = new WeakMap<ShownRun["data"], { key: string; parts: Map<string, number> }>();

/** Root mean square gradient of each layer relative to the usual one; small = learns slowly. */
export function relativeGradients(ctx: Context, run: ShownRun): Map<string, number> {
  ctx.wantLayers(run, "GradNorm");
  const key = `${run.data.version} ${ctx.step}`;
  const cached = known.get(run.data);
  if (cached?.key === key) return cached.parts;
  const scale = new Map<string, number>();
  const layers = run.data.header?.layers ?? [];
  for (const [i, { name, size, module }] of layers.entries()) {
    // A bias whose mean a BatchNorm takes out again has no gradient in any healthy network.
    if (/bias$/.test(name) && !/Norm/.test(module) && /BatchNorm/.test(layers[i + 1]?.module)) continue;
    const norm = valueAt(ctx, run, "GradNorm", name)?.value;
    if (norm !== undefined && Number.isFinite(norm) && size > 0) scale.set(name, norm / Math.sqrt(size));
  }
  // Most layers may have vanished, and the median with them: then the largest one, less what layers differ by anyhow.
  const usual = Math.max(median([...scale.values()]), Math.max(0, ...scale.values()) / 300);
  const parts = new Map([...scale].map(([layer, value]) => [layer, value === 0 ? 0 : usual > 0 ? value / usual : 1]));
  known.set(run.data, { key, parts });
  return parts;
}

const SLOW = 1 / 30;

interface Slow {
  layer: string;
  times: number;
}

function slowLayers(ctx: Context, run: ShownRun): Slow[] {
  return [...relativeGradients(ctx, run)]
    .filter(([, part]) => part < SLOW)
    .map(([layer, part]) => ({ layer, times: 1 / part }));
}

/** The runs in which a layer is slow. */
function slowRuns(ctx: Context): Map<string, ShownRun[]> {
  const runsOf = new Map<string, ShownRun[]>();
  for (const run of ctx.runs)
    for (const { layer } of slowLayers(ctx, run)) runsOf.set(layer, [...(runsOf.get(layer) ?? []), run]);
  return runsOf;
}

function draw(ctx: Context, size: Size): Scene {
  const all = cells(ctx);
  if (!all.some((cell) => cell.shown.length))
    return messageScene(size.width, size.height, missingWords(ctx, NAME), ctx.theme.quiet);
  if (all.every((cell) => cell.shown.every(({ histogram }) => !largest(histogram.counts))))
    return messageScene(size.width, size.height, "Every element is NaN or infinite at this step.", ctx.theme.quiet);
  return rowScene(ctx, size, all, slowRuns(ctx));
}

function judge(ctx: Context, run: ShownRun): Verdict | null {
  const slow = slowLayers(ctx, run);
  if (!slow.length) return null;
  const names = shortNames(
    slow.map(({ layer }) => layer),
    30,
  );
  const list = (some: Slow[]) => {
    const rest = some.length > 3 ? ` and ${some.length - 3} more` : "";
    return `${some
      .slice(0, 3)
      .map(({ layer }) => names.get(layer))
      .join(", ")}${rest}`;
  };
  const dead = slow.filter(({ times }) => !Number.isFinite(times));
  const weak = slow.filter(({ times }) => Number.isFinite(times));
  const most = Math.max(...weak.map(({ times }) => times));
  const upTo = weak.length > 1 ? "up to " : "";
  const words = [
    dead.length ? `No gradient: ${list(dead)}.` : "",
    weak.length ? `Gradients ${upTo}${formatNumber(most, 2)} × smaller than elsewhere: ${list(weak)}.` : "",
  ];
  return { fault: true, text: words.filter(Boolean).join(" "), short: `slow: ${list(slow)}` };
}

function note(ctx: Context): string {
  const layers = allLayers(ctx).length;
  const words = [fewWords(ctx)];
  if (layers > MOST)
    words.push(
      `${chooseLayers(ctx).length} of ${layers} tensors, from the first to the last; the layer chooser shows any of them.`,
    );
  return words.filter(Boolean).join(" ");
}

// What a bar chart of this size shows of a histogram: how wide it is, and how much lies outside.
function details(ctx: Context): Reading[] {
  const several = ctx.runs.length > 1;
  return cells(ctx).flatMap(({ layer, shown }) =>
    shown.map(({ run, histogram }) => {
      const value = spread(histogram);
      const outside = formatShare(outsideShares(histogram).gradient);
      return {
        label: several ? `${run.label} ${layer}` : layer,
        value,
        step: histogram.step,
        run: run.run,
        text: `standard deviation ${formatNumber(value)}, ${outside} outside`,
      };
    }),
  );
}

const panel: Panel = {
  id: "grad_hist_layers",
  title: "Gradient elements by layer",
  group: "gradients",
  order: 30,
  height: 250,
  names: [],
  needs: [NAME],
  timeless: true,
  help: [
    "One histogram per parameter tensor, in the order of the network, with log counts; many are folded by block, as on the map. A click chooses that layer for all panels, a second click the whole network; a click on a block unfolds it.",
    "Healthy: all are of similar width. A needle among wide ones learns next to nothing (a saturated activation, a wrong initialisation). Red: its gradients are more than 30 times smaller than those of the median layer, or than a 300th of the largest.",
  ],
  shows: (ctx) =>
    (isTracked(ctx, [NAME]) || ctx.runs.some(({ data }) => data.heavy.has(NAME))) &&
    ctx.runs.some(({ data }) => (data.header?.layers.length ?? 0) > 1),
  readings: (ctx) =>
    ctx.runs.flatMap((run) => {
      const { length } = slowLayers(ctx, run);
      if (!length) return [];
      const several = ctx.runs.length > 1;
      const label = several ? `${run.label} slow layers` : "slow layers";
      const text = several ? `${length} slow` : `${length} slow ${length === 1 ? "layer" : "layers"}`;
      return [{ label, value: length, text, run: run.run, color: several ? run.color : ctx.theme.warn }];
    }),
  details,
  verdict: judge,
  note,
  draw,
  csv: (ctx) => histogramCsv(cells(ctx).flatMap(({ shown }) => shown)),
};
export default panel;
