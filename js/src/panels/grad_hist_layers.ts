// All layers at once, in network order: a layer whose gradients vanish is coloured without a click.

import { median } from "../charts/density.ts";
import { gridShape, histogramBoxes, largest } from "../charts/histogram.ts";
import { csvLines } from "../export.ts";
import { formatNumber, formatTick, shorten } from "../format.ts";
import { type Context, isTracked, type Panel, type ShownRun, type Size, valueAt } from "../panel.ts";
import { type Box, emptyScene, type Mark, messageScene, type Scene } from "../scene.ts";
import type { HistogramData } from "../wire.ts";
import { missingWords } from "./grad_hist_2d.ts";

const NAME = "GradHist1d";
const MOST = 60;

interface Cell {
  layer: string;
  shown: { run: ShownRun; histogram: HistogramData }[];
}

function cells(ctx: Context): Cell[] {
  const order = ctx.runs[0]?.data.header?.layers ?? [];
  const measured = order.filter(({ method }) => !["no gradient", "not covered", "not selected"].includes(method));
  return measured.slice(0, MOST).map(({ name }) => ({
    layer: name,
    shown: ctx.runs.slice(0, 3).flatMap((run) => {
      const step = ctx.heavyStep(run, NAME, name);
      const histogram = step === null ? null : ctx.histogram(run, NAME, step, name);
      return histogram?.counts.length ? [{ run, histogram }] : [];
    }),
  }));
}

/** Root mean square gradient of each layer relative to the median layer; small = learns slowly. */
export function relativeGradients(ctx: Context, run: ShownRun): Map<string, number> {
  ctx.wantLayers(run, "GradNorm");
  const sizes = new Map(run.data.header?.layers.map((layer) => [layer.name, layer.size]) ?? []);
  const scale = new Map<string, number>();
  for (const [layer, size] of sizes) {
    const norm = valueAt(ctx, run, "GradNorm", layer)?.value;
    if (norm !== undefined && Number.isFinite(norm) && size > 0) scale.set(layer, norm / Math.sqrt(size));
  }
  const middle = median([...scale.values()]);
  return new Map([...scale].map(([layer, value]) => [layer, value === 0 ? 0 : middle > 0 ? value / middle : 1]));
}

const SLOW = 1 / 30;

function slowLayers(ctx: Context): { run: ShownRun; layer: string; times: number }[] {
  return ctx.runs
    .slice(0, 3)
    .flatMap((run) =>
      [...relativeGradients(ctx, run)]
        .filter(([, part]) => part < SLOW)
        .map(([layer, part]) => ({ run, layer, times: 1 / part })),
    );
}

function draw(ctx: Context, size: Size): Scene {
  const all = cells(ctx);
  if (!all.some((cell) => cell.shown.length))
    return messageScene(size.width, size.height, missingWords(ctx, NAME), ctx.theme.quiet);
  const slow = new Set(slowLayers(ctx).map(({ layer }) => layer));
  const { columns, rows } = gridShape(all.length, size.width, size.height);
  const scene = emptyScene(size.width, size.height);
  const [w, h] = [size.width / columns, size.height / rows];
  all.forEach((cell, i) => {
    const outer = { x: (i % columns) * w + 4, y: Math.floor(i / columns) * h, width: w - 10, height: h - 4 };
    scene.marks.push(...cellMarks(ctx, cell, outer, slow.has(cell.layer)));
    scene.spots.push({
      ...outer,
      hint: `${shorten(cell.layer, 60)}${slow.has(cell.layer) ? ": its gradients are far smaller than those of the other layers" : ""}. Click: all panels show this layer.`,
      layer: cell.layer,
    });
  });
  return scene;
}

function cellMarks(ctx: Context, { layer, shown }: Cell, outer: Box, slow: boolean): Mark[] {
  const { theme, state } = ctx;
  const letters = Math.max(4, Math.floor(outer.width / 6.1));
  const color = slow ? theme.warn : state.layer === layer ? theme.accent : theme.quiet;
  const marks: Mark[] = [
    {
      type: "text",
      x: outer.x,
      y: outer.y + 8,
      text: shorten(layer, letters),
      title: layer.slice(0, 400),
      color,
      bold: slow || state.layer === layer,
    },
  ];
  const ticks = outer.height > 52;
  const box = {
    x: outer.x,
    y: outer.y + 17,
    width: outer.width,
    height: Math.max(6, outer.height - 17 - (ticks ? 16 : 3)),
  };
  const bottom = box.y + box.height;
  marks.push({ type: "line", xs: [box.x, box.x + box.width], ys: [bottom, bottom], stroke: theme.faint });
  const most = Math.max(1, ...shown.map(({ histogram }) => largest(histogram.counts)));
  for (const { run, histogram } of shown) {
    const fill = slow && shown.length === 1 ? theme.warn : run.color;
    marks.push({
      type: "bars",
      boxes: histogramBoxes(histogram.counts, most, box),
      fill,
      alpha: shown.length > 1 ? 0.5 : 0.85,
    });
  }
  if (!shown.length) marks.push({ type: "text", x: box.x, y: box.y + box.height / 2, text: "…", color: theme.quiet });
  const edges = shown[0]?.histogram.edges;
  if (ticks && edges) {
    marks.push({ type: "text", x: box.x, y: bottom + 8, text: formatTick(edges[0]), color: theme.quiet, size: 10 });
    marks.push({
      type: "text",
      x: box.x + box.width,
      y: bottom + 8,
      text: formatTick(edges[edges.length - 1]),
      anchor: "end",
      color: theme.quiet,
      size: 10,
    });
  }
  return marks;
}

function note(ctx: Context): string {
  const layers = ctx.runs[0]?.data.header?.layers.length ?? 0;
  const words = slowLayers(ctx)
    .slice(0, 3)
    .map(({ run, layer, times }) => {
      const name = ctx.runs.length > 1 ? `${run.label}: ` : "";
      return `${name}${shorten(layer, 30)} has ${formatNumber(times, 2)} × smaller gradients than the median layer.`;
    });
  if (layers > MOST) words.push(`The first ${MOST} of ${layers} tensors; the layer chooser shows any of them.`);
  return words.join(" ");
}

function csv(ctx: Context): string {
  const rows: (string | number)[][] = [["run", "step", "layer", "low", "high", "count"]];
  for (const { shown } of cells(ctx))
    for (const { run, histogram } of shown)
      histogram.counts.forEach((count, i) => {
        rows.push([run.run, histogram.step, histogram.layer, histogram.edges[i], histogram.edges[i + 1], count]);
      });
  return csvLines(rows);
}

const panel: Panel = {
  id: "grad_hist_layers",
  title: "Gradient elements by layer",
  group: "gradients",
  order: 30,
  height: 250,
  names: [],
  timeless: true,
  help: [
    "One small histogram per parameter tensor, in the order of the network, all on the same axes with log counts. A click chooses that layer for all panels; a second click returns to the whole network.",
    "Healthy: all are of similar width. A layer that is a needle while others are wide learns next to nothing (a saturated activation, a wrong initialisation). Red: its gradients are more than 30 times smaller than the median layer's.",
  ],
  shows: (ctx) =>
    (isTracked(ctx, [NAME]) || ctx.runs.some(({ data }) => data.heavy.has(NAME))) &&
    ctx.runs.some(({ data }) => (data.header?.layers.length ?? 0) > 1),
  readings: (ctx) => {
    const slow = slowLayers(ctx);
    const text = slow.length ? `${slow.length} slow ${slow.length === 1 ? "layer" : "layers"}` : "";
    return text ? [{ label: "slow layers", value: slow.length, text, color: ctx.theme.warn }] : [];
  },
  note,
  draw,
  csv,
};
export default panel;
