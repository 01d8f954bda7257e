// Gradient elements against parameter values, for the network or the chosen layer, run beside run or as a difference.
import { scaleMarks } from "../charts/colorscale.ts";
import { differencePixels, heatmapScene, outsideShares } from "../charts/heatmap.ts";
import { csvLines } from "../export.ts";
import { formatCount, formatShare, shorten } from "../format.ts";
import { type Context, isTracked, type Panel, type Reading, type ShownRun, type Size, waitingFor } from "../panel.ts";
import { emptyScene, messageScene, type Scene } from "../scene.ts";
import type { HistogramData } from "../wire.ts";

const NAME = "GradHist2d";
const MOST_RUNS = 3;

interface Shown {
  run: ShownRun;
  histogram: HistogramData;
}

export function histogramsAt(ctx: Context, name: string, layer = ctx.state.layer): Shown[] {
  return ctx.runs.slice(0, MOST_RUNS).flatMap((run) => {
    const step = ctx.heavyStep(run, name, layer);
    const histogram = step === null ? null : ctx.histogram(run, name, step, layer);
    return histogram?.counts.length ? [{ run, histogram }] : [];
  });
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
    const text = several ? `step ${histogram.step}` : `${formatCount(total)} · step ${histogram.step}`;
    return {
      label: several ? run.label : "elements",
      value: total,
      step: histogram.step,
      run: run.run,
      text,
      color: several ? run.color : undefined,
    };
  });
}

function note(ctx: Context): string {
  const shown = histogramsAt(ctx, NAME);
  const words = shown.map(({ run, histogram }) => {
    const { gradient, parameter, broken } = outsideShares(histogram);
    const name = ctx.runs.length > 1 ? `${run.label}: ` : "";
    const parts = [
      `${formatShare(gradient)} of the gradient elements and ${formatShare(parameter)} of the parameters lie outside`,
    ];
    if (broken) parts.push(`${formatShare(broken)} are NaN or infinite`);
    return `${name}${parts.join("; ")}.`;
  });
  if (ctx.runs.length > MOST_RUNS) words.push(`The first ${MOST_RUNS} runs are shown.`);
  return words.join(" ");
}

function draw(ctx: Context, size: Size): Scene {
  const shown = histogramsAt(ctx, NAME);
  if (!shown.length) return messageScene(size.width, size.height, missingWords(ctx, NAME), ctx.theme.quiet);
  const difference = pair(ctx, shown);
  const most = Math.max(...shown.map(({ histogram }) => histogram.counts.reduce((a, b) => Math.max(a, b), 0)));
  const scene = emptyScene(size.width, size.height);
  const cells = difference ? 1 : shown.length;
  const stacked = cells > 1 && size.width / cells < 170;
  const [w, h] = stacked ? [size.width, (size.height - 18) / cells] : [size.width / cells, size.height - 18];
  for (let i = 0; i < cells; i++) {
    const own = difference ? difference[1] : shown[i];
    const outer = { x: stacked ? 0 : i * w, y: 18 + (stacked ? i * h : 0), width: w, height: h };
    const part = heatmapScene({
      ...size,
      outer,
      theme: ctx.theme,
      histogram: own.histogram,
      minus: difference?.[0].histogram,
      most,
      color: own.run.color,
      labels: (stacked || i === 0) && w > 190,
    });
    scene.marks.push(...part.marks);
  }
  const scale = { x: Math.max(60, size.width - 190), y: 3, width: 90, height: 8 };
  const change = difference ? differencePixels(difference[0].histogram, difference[1].histogram).most : null;
  scene.marks.push(...scaleMarks(scale, most, ctx.theme, change));
  const where = ctx.state.layer ? shorten(ctx.state.layer, 26) : "whole network";
  const title = difference
    ? `${shorten(difference[1].run.label, 12)} − ${shorten(difference[0].run.label, 12)}`
    : where;
  scene.marks.push({ type: "text", x: 4, y: 7, text: title, color: ctx.theme.quiet });
  if (!difference && cells > 1) scene.legend = shown.map(({ run }) => ({ label: run.label, color: run.color }));
  return scene;
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
  timeless: true,
  help: [
    "Every element of every sample's gradient, placed by its own value (up) and by the value of its parameter (right). Colour is the number of elements, on a log scale; the bars are the two histograms by themselves. Axes are fixed, so steps, layers and runs compare.",
    "The dashed rim sets the outermost bins apart: they also hold everything beyond the range, and turn red when something is there.",
    "Healthy: one cloud around the middle. A thin horizontal line: gradients of this layer vanish. A cloud pressed against the upper and lower rim: gradients explode or the data is not scaled. With two runs, the ⋯ menu shows their difference.",
  ],
  shows: (ctx) => isTracked(ctx, [NAME]) || ctx.runs.some(({ data }) => data.heavy.has(NAME)),
  readings,
  note,
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
