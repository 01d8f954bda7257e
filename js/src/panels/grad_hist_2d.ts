// Gradient elements against parameter values, for the network or the chosen layer, run beside run or as a difference.
import { binAxis, zeroShare } from "../charts/bins.ts";
import { scaleMarks } from "../charts/colorscale.ts";
import { differencePixels, heatmapScene, outsideShares } from "../charts/heatmap.ts";
import { gridShape } from "../charts/histogram.ts";
import { csvLines } from "../contract/export.ts";
import {
  type Context,
  isTracked,
  type Panel,
  type Reading,
  type ShownRun,
  type Size,
  type Verdict,
  waitingFor,
} from "../contract/panel.ts";
import { formatCount, formatNumber, formatShare, shorten } from "../data/format.ts";
import type { HistogramData } from "../data/wire.ts";
import { emptyScene, type Mark, messageScene, type Scene } from "../draw/scene.ts";
import { readable } from "../draw/theme.ts";

const NAME = "GradHist2d";
export const MOST_RUNS = 6; // beside each other; the note says how to see others

interface Shown {
  run: ShownRun;
  histogram: HistogramData;
}

export function histogramOf(ctx: Context, run: ShownRun, name: string, layer = ctx.state.layer): HistogramData | null {
  const { header } = run.data;
  if (layer && header && !header.layers.some((own) => own.name === layer)) return null; // another network
  const step = ctx.heavyStep(run, name, layer);
  const histogram = step === null ? null : ctx.histogram(run, name, step, layer);
  return histogram?.counts.length ? histogram : null;
}

export const runsWith = (ctx: Context, name: string) =>
  ctx.runs.filter(({ data }) => data.heavy.get(name)?.length).slice(0, MOST_RUNS);

export function histogramsAt(ctx: Context, name: string, layer = ctx.state.layer): Shown[] {
  return runsWith(ctx, name).flatMap((run) => {
    const histogram = histogramOf(ctx, run, name, layer);
    return histogram ? [{ run, histogram }] : [];
  });
}

/** One row per bin. */
export function histogramCsv(shown: Shown[]): string {
  const rows: (string | number)[][] = [["run", "step", "layer", "low", "high", "count"]];
  for (const { run, histogram } of shown)
    histogram.counts.forEach((count, i) => {
      rows.push([run.run, histogram.step, histogram.layer, histogram.edges[i], histogram.edges[i + 1], count]);
    });
  return csvLines(rows);
}

const sameAxes = (a: HistogramData, b: HistogramData) =>
  a.counts.length === b.counts.length &&
  String(a.edges) === String(b.edges) &&
  String(a.parameter_edges) === String(b.parameter_edges);

function pair(ctx: Context, shown: Shown[]): [Shown, Shown] | null {
  return ctx.state.difference && shown.length > 1 && sameAxes(shown[0].histogram, shown[1].histogram)
    ? [shown[0], shown[1]]
    : null;
}

function readings(ctx: Context): Reading[] {
  const several = ctx.runs.length > 1;
  return histogramsAt(ctx, NAME).map(({ run, histogram }) => {
    const total = histogram.counts.reduce((sum, count) => sum + count, 0);
    const text = `${formatCount(total)} elements`;
    const own = { step: histogram.step, run: run.run };
    if (!several) return { label: "elements", value: total, text, ...own };
    const axis = binAxis(histogram.edges);
    const [word, value] = axis.log
      ? ["near 0", zeroShare(histogram.counts, axis, histogram.shape[1])]
      : ["outside", outsideShares(histogram).gradient];
    return { label: `${run.label} ${word}`, value, text: formatShare(value), color: run.color, ...own };
  });
}

function judge(ctx: Context, run: ShownRun): Verdict | null {
  const histogram = histogramOf(ctx, run, NAME);
  if (!histogram) return null;
  const { gradient, parameter, broken } = outsideShares(histogram);
  const axis = binAxis(histogram.edges);
  if (axis.log && !broken && !parameter) {
    const none = zeroShare(histogram.counts, axis, histogram.shape[1]);
    const below = `below ${formatNumber(axis.smallest, 1)}`;
    const text = `Nothing is outside; ${formatShare(none)} of the gradient elements are ${below}.`;
    return { text, short: `${formatShare(none)} ${below}` };
  }
  const where = `${formatShare(gradient)} of the gradient elements and ${formatShare(parameter)} of the parameters`;
  const rest = broken ? `; ${formatShare(broken)} are NaN or infinite` : "";
  const bad = broken ? "NaN or infinite elements" : Math.max(gradient, parameter) > 0.01 ? "over 1 % outside" : "";
  return { text: `${where} lie outside${rest}.`, short: bad || "inside the range", fault: bad !== "" };
}

/** Which runs a picture of a few shows, if not all. */
export function fewWords(ctx: Context): string {
  if (ctx.runs.length <= MOST_RUNS) return "";
  return `The first ${MOST_RUNS} of ${ctx.runs.length} chosen runs; hide some (a click on their names above) to see others.`;
}

function draw(ctx: Context, size: Size): Scene {
  const shown = histogramsAt(ctx, NAME);
  if (!shown.length) return messageScene(size.width, size.height, missingWords(ctx, NAME), ctx.theme.quiet);
  const difference = pair(ctx, shown);
  const most = Math.max(...shown.map(({ histogram }) => histogram.counts.reduce((a, b) => Math.max(a, b), 0)));
  const scene = emptyScene(size.width, size.height);
  const cells = difference ? [difference[1].run] : runsWith(ctx, NAME);
  const { columns, rows } = gridShape(cells.length, size.width, size.height - 18, { width: 115, height: 100 });
  const [w, h] = [size.width / columns, (size.height - 18) / rows];
  const names = cells.length > 1 ? 15 : 0; // room for the name of the run above its map
  cells.forEach((run, i) => {
    const [x, y] = [(i % columns) * w, 18 + Math.floor(i / columns) * h];
    if (names) scene.marks.push(nameMark(run, x + (w > 230 ? 46 : 26), y + 8, w, ctx));
    const own = shown.find((one) => one.run === run);
    if (!own) {
      scene.marks.push({ type: "text", x: x + w / 2, y: y + h / 2, text: "…", color: ctx.theme.quiet });
      return;
    }
    const part = heatmapScene({
      ...size,
      outer: { x, y: y + names, width: w, height: h - names },
      theme: ctx.theme,
      histogram: own.histogram,
      minus: difference?.[0].histogram,
      most,
      color: own.run.color,
      labels: w > 230,
      plain: cells.length > 1 && (w < 180 || h < 170),
    });
    scene.marks.push(...part.marks);
  });
  const scale = { x: Math.max(60, size.width - 190), y: 3, width: 90, height: 8 };
  const change = difference ? differencePixels(difference[0].histogram, difference[1].histogram).most : null;
  scene.marks.push(...scaleMarks(scale, most, ctx.theme, change));
  const where = ctx.state.layer ? shorten(ctx.state.layer, 26) : "whole network";
  const letters = Math.max(10, Math.floor((size.width - 230) / 14)); // as many as the colour scale leaves room for
  const title = difference
    ? `${shorten(difference[1].run.label, letters)} − ${shorten(difference[0].run.label, letters)}`
    : where;
  scene.marks.push({ type: "text", x: 4, y: 7, text: title, color: ctx.theme.quiet });
  return scene;
}

function nameMark(run: ShownRun, x: number, y: number, width: number, ctx: Context): Mark {
  const text = shorten(run.label, Math.max(6, Math.floor((width - 30) / 6.8)));
  const color = readable(run.color, ctx.theme);
  return { type: "text", x, y, text, title: run.label, color, bold: true };
}

export function missingWords(ctx: Context, name: string): string {
  const { layer } = ctx.state;
  const known = ctx.runs.some(({ data }) => data.heavy.get(name)?.length);
  if (!known) return waitingFor(ctx, [name]);
  const absent = ctx.runs.every((run) => {
    const step = ctx.heavyStep(run, name, layer);
    return step === null || ctx.histogram(run, name, step, layer) === null;
  });
  if (absent) return layer ? `No histogram of ${shorten(layer, 30)} at this step.` : "No histogram at this step.";
  return "Fetching the histogram …";
}

function csv(ctx: Context): string {
  const rows: (string | number)[][] = [
    ["run", "step", "layer", "gradient_low", "gradient_high", "parameter_low", "parameter_high", "count"],
  ];
  for (const { run, histogram } of histogramsAt(ctx, NAME)) {
    const { edges, parameter_edges, shape, counts, step, layer } = histogram;
    if (!parameter_edges) continue;
    for (let i = 0; i < shape[0]; i++)
      for (let j = 0; j < shape[1]; j++)
        rows.push([
          run.run,
          step,
          layer,
          edges[i],
          edges[i + 1],
          parameter_edges[j],
          parameter_edges[j + 1],
          counts[i * shape[1] + j],
        ]);
  }
  return csvLines(rows);
}

const panel: Panel = {
  id: "grad_hist_2d",
  title: "Gradient × parameter",
  group: "gradients",
  order: 40,
  height: 330,
  names: [NAME],
  needs: [NAME],
  timeless: true,
  help: [
    "Every element of every sample's gradient, placed by its own value (up) and by the value of its parameter (right). Colour is the number of elements, on a log scale; the bars are the two histograms by themselves.",
    "The dashed rim sets the outermost bins apart: they also hold everything beyond the range, and turn red when something is there.",
    "Healthy: one cloud around the middle. A thin horizontal line: gradients of this layer vanish. A cloud pressed against the upper and lower rim: gradients explode or the data is not scaled. With two runs, the ⋯ menu shows their difference.",
  ],
  shows: (ctx) => isTracked(ctx, [NAME]) || ctx.runs.some(({ data }) => data.heavy.has(NAME)),
  readings,
  verdict: judge,
  note: fewWords,
  draw,
  csv,
  actions: (ctx) =>
    ctx.runs.length > 1
      ? [
          {
            label: "Second run minus first",
            pressed: ctx.state.difference,
            act: () => ctx.set({ difference: !ctx.state.difference }),
          },
        ]
      : [],
};
export default panel;
