// Alpha: does the step end before, at, or beyond the floor of the local valley?

import { visibleRange } from "../charts/decimate.ts";
import { type Curve, lineScene } from "../charts/line.ts";
import { parabolaScene, standardize } from "../charts/parabola.ts";
import { columnsCsv } from "../contract/export.ts";
import { playhead } from "../contract/navigation.ts";
import {
  type Context,
  isTracked,
  type Panel,
  type Reading,
  type ShownRun,
  type Size,
  type Verdict,
  valueAt,
  waitingFor,
} from "../contract/panel.ts";
import { median } from "../data/density.ts";
import { clamp } from "../data/derive.ts";
import { formatNumber } from "../data/format.ts";
import type { AlphaFit } from "../data/wire.ts";
import { type LegendItem, type Mark, messageScene, type Scene } from "../draw/scene.ts";
import { seriesColor } from "../draw/theme.ts";
import { judgeAlpha, OWN, silentBecause, splitRecent } from "../judge/alpha.ts";
import { isPointed } from "../judge/judging.ts";

const STRIP = 2.1; // alpha over time is drawn from -2.1 to 2.1

function fitAt(ctx: Context, run: ShownRun): AlphaFit | null {
  const hit = valueAt(ctx, run, "Alpha");
  return hit ? run.data.alphaAt(hit.step) : null;
}

function readings(ctx: Context): Reading[] {
  const several = ctx.runs.length > 1;
  return ctx.runs.flatMap((run): Reading[] => {
    const { all, recent } = splitRecent(run, ctx.state.recent, nameOf(run));
    if (!all.length) return [];
    const name = several ? `${run.label} ` : "";
    const now = valueAt(ctx, run, nameOf(run));
    const own = run.data.has("Alpha") ? valueAt(ctx, run, OWN) : null;
    const percent = Math.round(ctx.state.recent * 100);
    const reading = (label: string, short: string, value: number, more: Partial<Reading>): Reading => ({
      label: name + label,
      value,
      run: run.run,
      text: several ? undefined : `${short} ${formatNumber(value)}`,
      color: several ? run.color : undefined,
      ...more,
    });
    const out = now ? [reading("alpha", "α", now.value, { step: now.step })] : [];
    const which = run.data.decimated.has("Alpha") ? `${all.length} fits, evenly chosen` : "all";
    const last = `last ${percent} %`;
    if (all.length > 1)
      out.push(
        reading(`median of ${which}`, "median", median(all), { minor: several }),
        reading(`median of the ${last}`, last, median(recent), { minor: several, color: run.color }),
      );
    if (own)
      out.push(
        reading("alpha of its own batch", "own batch", own.value, {
          step: own.step,
          minor: several,
          color: ownColor(ctx, run),
        }),
      );
    return out;
  });
}

function judge(ctx: Context, run: ShownRun): Verdict | null {
  const fit = isPointed(ctx) && !run.data.has(OWN) ? fitAt(ctx, run) : null;
  const verdict = judgeAlpha(ctx, run);
  if (!verdict || !fit || standardize(fit, 1)) return verdict;
  return { ...verdict, text: `Step ${fit.step}: the fit has no floor ahead.` };
}

/** The runs' alphas, by the name whose densities are drawn: the paper's, or those of the own batch if only these were tracked. */
const nameOf = (run: ShownRun) => (run.data.has("Alpha") ? "Alpha" : OWN);
const isShown = (ctx: Context, run: ShownRun) => splitRecent(run, ctx.state.recent, nameOf(run)).all.length > 0;

/** Colour of the own batch's alpha: another one beside the paper's, the run's own with several runs. */
const ownColor = (ctx: Context, run: ShownRun) =>
  ctx.runs.length > 1 || !run.data.has("Alpha") ? run.color : seriesColor(run.color, 1, ctx.theme);

function draw(ctx: Context, size: Size): Scene {
  const runs = ctx.runs.filter((run) => isShown(ctx, run));
  if (!runs.length) return messageScene(size.width, size.height, waitingFor(ctx, ["Alpha"]), ctx.theme.quiet);
  const lower = Math.max(88, Math.round(size.height * 0.3));
  const box = { x: 42, y: 6, width: size.width - 54, height: size.height - lower - 28 };
  const groups = runs.map((run) => {
    const fit = fitAt(ctx, run);
    const standard = fit ? standardize(fit, run.data.header?.batch_size ?? 1) : null;
    return { color: run.color, ...splitRecent(run, ctx.state.recent, nameOf(run)), fit: standard };
  });
  const scene = parabolaScene({ ...size, box, theme: ctx.theme, groups });
  const { theme, axis, domain, state } = ctx;
  const strip = lineScene({
    ...size,
    theme,
    axis,
    domain,
    xlog: state.xlog,
    ylog: false,
    smoothing: state.smoothing,
    curves: [
      ...runs.map((run) => stripCurve(ctx, run, "Alpha")),
      ...runs.map((run) => stripCurve(ctx, run, OWN)),
    ].filter(({ series }) => series.n),
    guides: [{ value: 0, label: "", color: theme.faint }],
    cursor: ctx.step,
    cursorAt: playhead(ctx),
    box: { x: 0, y: size.height - lower, width: size.width, height: lower },
    yrange: [-STRIP, STRIP],
    ticks: 3,
  });
  scene.marks.push(...strip.marks, ...offScale(ctx, runs, strip));
  scene.marks.push({
    type: "text",
    x: 12,
    y: size.height - lower + 8 + (lower - 40) / 2,
    text: "α",
    anchor: "middle",
    color: theme.quiet,
  });
  scene.frames = strip.frames;
  scene.legend = legend(ctx, runs);
  return scene;
}

/** The paper's as dots, because they are noisy; those of the own batch as a line. */
const stripCurve = (ctx: Context, run: ShownRun, name: string): Curve => ({
  series: clamp(run.data.series(name, "", ctx.axis), STRIP),
  color: name === OWN ? ownColor(ctx, run) : run.color,
  label: name === OWN ? "own batch" : "alpha",
  dots: name !== OWN,
});

function legend(ctx: Context, runs: ShownRun[]): LegendItem[] {
  const [both] = runs.filter(({ data }) => data.has("Alpha") && data.has(OWN));
  if (!both) return [];
  const several = ctx.runs.length > 1;
  const color = (own: string) => (several ? ctx.theme.quiet : own);
  return [
    { label: "two batches (the paper's)", color: color(both.color), dash: [2, 2] },
    { label: "own batch", color: color(ownColor(ctx, both)) },
  ];
}

// Values beyond the strip sit at its edge as ticks, so that none is silently missing.
function offScale(ctx: Context, runs: ShownRun[], strip: Scene): Mark[] {
  const [frame] = strip.frames;
  return runs.map((run) => {
    const series = run.data.series(nameOf(run), "", ctx.axis);
    const boxes: number[] = [];
    const [from, to] = visibleRange(series, ctx.domain);
    for (let i = from; i < to && boxes.length < 1600; i++) {
      const x = frame.xscale.to(series.x[i]);
      if (Math.abs(series.y[i]) <= STRIP || x < frame.x || x > frame.x + frame.width) continue;
      boxes.push(x - 1, series.y[i] > 0 ? frame.y : frame.y + frame.height - 4, 2, 4);
    }
    return { type: "bars", boxes, fill: ctx.theme.warn };
  });
}

const panel: Panel = {
  id: "alpha",
  title: "Alpha",
  group: "step",
  order: 10,
  height: 320,
  names: ["Alpha", OWN, `${OWN}/loss_end`],
  needs: ["Alpha", OWN],
  timeless: true,
  help: [
    "Each step is compared with the valley it moves in, a parabola fitted to losses and slopes at both ends. −1: it stood still. 0: it ended on the floor. +1: it ended on the opposite wall, as high as it began. Above 1 the loss went up.",
    "Grey: all steps. Colour: the last part of the run (View menu). Triangles: medians. Circles: the chosen step's losses with slopes and one standard error; of two batches, so one may lie outside, where a triangle points.",
    "The paper's alpha has its two losses from two batches: noise moves it up. With little signal in the gradient it is positive at any learning rate; then there is no verdict. AlphaOwnBatch (the line) has both ends on the samples that made the step; where it was tracked, it gives the verdict, and values above 0 are no problem.",
    "Mostly negative: the learning rate is too small. Around 0 to 0.5 is typical of good runs; the greedy optimum 0 is not always the best in the long run. Near 1 or beyond: too large.",
  ],
  shows: (ctx) => isTracked(ctx, ["Alpha", OWN]),
  readings,
  verdict: judge,
  note: silentBecause,
  draw,
  csv: (ctx) => columnsCsv(ctx, ["Alpha", OWN]),
};
export default panel;
