// Elements of the individual gradients: their histogram at the chosen step, and how it changed over the run.

import { alignLog } from "../charts/align.ts";
import { timeMarks } from "../charts/axes.ts";
import { binAxis, zeroShare } from "../charts/bins.ts";
import { outsideShares } from "../charts/heatmap.ts";
import { binMarks, histogramMark, largest, type StripColumn, stripMarks, thinSteps } from "../charts/histogram.ts";
import { playhead, rowAt } from "../contract/navigation.ts";
import { type Context, isTracked, type Panel, type Reading, type ShownRun, type Size } from "../contract/panel.ts";
import { formatCount, formatNumber, formatShare, formatTick, shorten } from "../data/format.ts";
import { makeScale } from "../draw/scale.ts";
import { type Box, emptyScene, type Mark, messageScene, type Scene } from "../draw/scene.ts";
import { fewWords, histogramCsv, histogramsAt, missingWords, runsWith } from "./grad_hist_2d.ts";

const NAME = "GradHist1d";
const COLUMNS = 48;

function readings(ctx: Context): Reading[] {
  const several = ctx.runs.length > 1;
  return histogramsAt(ctx, NAME).map(({ run, histogram }) => {
    const { gradient, broken } = outsideShares(histogram);
    const axis = binAxis(histogram.edges);
    const [value, word] = broken
      ? [broken, "not finite"]
      : axis.log
        ? [zeroShare(histogram.counts, axis), `|g| < ${formatNumber(axis.smallest, 1)}`]
        : [gradient, "outside"];
    return {
      label: several ? `${run.label} ${word}` : word,
      value,
      step: histogram.step,
      run: run.run,
      text: several ? formatShare(value) : `${formatShare(value)} ${axis.log && !broken ? "near 0" : word}`,
      color: several ? run.color : undefined,
    };
  });
}

function draw(ctx: Context, size: Size): Scene {
  const runs = runsWith(ctx, NAME);
  const now = histogramsAt(ctx, NAME);
  const past = runs.map((run) => stripColumns(ctx, run, runs.length));
  const fitted = alignLog([...now, ...past.flat()].map(({ histogram }) => histogram)); // one axis for all of them
  const all = now.map((own, i) => ({ ...own, histogram: fitted[i] }));
  let at = now.length;
  const strips = past.map((columns) => columns.map((column) => ({ ...column, histogram: fitted[at++] })));
  const shown = all.filter(({ histogram }) => String(histogram.edges) === String(all[0].histogram.edges)); // one axis
  if (!shown.length) return messageScene(size.width, size.height, missingWords(ctx, NAME), ctx.theme.quiet);
  const scene = emptyScene(size.width, size.height);
  const upper = Math.round((size.height - 20) * 0.46);
  const box: Box = { x: 42, y: 16, width: size.width - 54, height: upper - 34 };
  const most = Math.max(...shown.map(({ histogram }) => largest(histogram.counts)));
  for (const { run, histogram } of shown)
    scene.marks.push(histogramMark(histogram.counts, most, box, run.color, shown.length));
  const { edges, step } = shown[0].histogram;
  const { theme } = ctx;
  scene.marks.push(...binMarks(edges, box, theme));
  const where = ctx.state.layer ? shorten(ctx.state.layer, 24) : "whole network";
  scene.marks.push({ type: "text", x: box.x, y: 6, text: `${where}, step ${step}`, color: theme.quiet });
  scene.marks.push({
    type: "text",
    x: box.x + box.width,
    y: 6,
    text: most > 0 ? `max ${formatCount(most)} (log)` : "every element is NaN or infinite",
    anchor: "end",
    color: theme.quiet,
  });
  addStrips(ctx, size, scene, upper, edges, strips);
  return scene;
}

// One strip per run, one below the other: time to the right, gradient value upwards, colour the log count.
function addStrips(
  ctx: Context,
  size: Size,
  scene: Scene,
  top: number,
  edges: Float64Array,
  strips: StripColumn[][],
): void {
  const runs = runsWith(ctx, NAME);
  const { theme } = ctx;
  const each = (size.height - top - 36) / Math.max(1, runs.length);
  runs.forEach((run, i) => {
    const box: Box = { x: 42, y: top + 6 + i * each, width: size.width - 54, height: each - Math.min(6, each / 5) };
    const xscale = makeScale(ctx.state.xlog ? "log1p" : "linear", ctx.domain, [box.x, box.x + box.width]);
    scene.marks.push(...stripMarks(strips[i], box, xscale, theme));
    scene.marks.push(...stripLabels(edges, box, i === 0, i === runs.length - 1, theme));
    if (runs.length > 1)
      scene.marks.push({ type: "rect", x: box.x - 3, y: box.y, width: 3, height: box.height, fill: run.color });
    const at = playhead(ctx);
    if (at !== null && at >= ctx.domain[0] && at <= ctx.domain[1])
      scene.marks.push({
        type: "line",
        live: true,
        xs: [xscale.to(at), xscale.to(at)],
        ys: [box.y, box.y + box.height],
        stroke: theme.text,
        weight: 1.2,
      });
    scene.frames.push({ ...box, xscale });
    if (i === runs.length - 1)
      scene.marks.push(...timeMarks({ theme, axis: ctx.axis, xlog: ctx.state.xlog }, box, xscale));
  });
}

/** The ends of the values that a strip covers, and 0 where it has a bin of its own; low strips share their labels. */
function stripLabels(edges: Float64Array, box: Box, first: boolean, last: boolean, theme: Context["theme"]): Mark[] {
  const tall = box.height > 34;
  const { zero } = binAxis(edges);
  const label = (value: number, y: number, baseline: "top" | "middle" | "bottom"): Mark => ({
    ...{
      type: "text",
      x: box.x - 5,
      y,
      text: formatTick(Number(value.toPrecision(3))),
      anchor: "end",
      baseline,
      color: theme.quiet,
    },
  });
  const marks: Mark[] = [];
  if (tall || first) marks.push(label(edges[edges.length - 1], box.y, "top"));
  if (tall && zero !== null)
    marks.push(label(0, box.y + box.height * (1 - (zero + 0.5) / (edges.length - 1)), "middle"));
  if (tall || last) marks.push(label(edges[0], box.y + box.height, "bottom"));
  return marks;
}

function stripColumns(ctx: Context, run: ShownRun, runs: number): StripColumn[] {
  const { layer } = ctx.state;
  const stored = ctx.source.pushes ? run.data.cachedSteps(NAME, layer) : (run.data.heavy.get(NAME) ?? []);
  return thinSteps(stored, Math.max(16, COLUMNS / runs)).flatMap((step) => {
    const histogram = ctx.histogram(run, NAME, step, layer, true);
    const x = run.data.axis(ctx.axis)[rowAt(run, step)];
    return histogram?.counts.length && histogram.step === step && Number.isFinite(x) ? [{ x, histogram }] : [];
  });
}

const panel: Panel = {
  id: "grad_hist_1d",
  title: "Gradient elements",
  group: "gradients",
  order: 20,
  height: 250,
  names: [NAME],
  needs: [NAME],
  timeless: true,
  help: [
    "All elements of all individual gradients of the batch, counted by value; counts are on a log scale. Below, the same over the whole run: time to the right, value upwards, brighter means more.",
    "Bins are evenly spaced in value, or (with a 0 in the middle) in magnitude on either side of it. In the second case nothing is outside, and gradients of 1e−9 show as well as gradients of 1.",
    "Healthy: a bell around 0 that slowly narrows. Everything in one thin line at 0: the gradients vanish. Bright upper and lower edges: they explode, because values outside the range are counted in the outermost bins.",
  ],
  shows: (ctx) => isTracked(ctx, [NAME]) || ctx.runs.some(({ data }) => data.heavy.has(NAME)),
  readings,
  note: fewWords,
  draw,
  csv: (ctx) => histogramCsv(histogramsAt(ctx, NAME)),
};
export default panel;
