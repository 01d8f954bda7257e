// Alpha: does the step end before, at, or beyond the floor of the local valley?

import { lineScene } from "../charts/line.ts";
import { parabolaScene, standardize } from "../charts/parabola.ts";
import { columnsCsv } from "../contract/export.ts";
import { stepToAxis } from "../contract/navigation.ts";
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
import { lowerBound } from "../data/table.ts";
import type { AlphaFit } from "../data/wire.ts";
import { type Mark, messageScene, type Scene } from "../draw/scene.ts";
import { isPointed, quartiles } from "../judge/judging.ts";

const STRIP = 2.1; // alpha over time is drawn from -2.1 to 2.1

interface Parts {
  all: Float64Array;
  recent: Float64Array;
}
const known = new WeakMap<ShownRun["data"], { version: number; part: number; parts: Parts }>();

/** Alpha of all steps, and of the last part of the run. */
export function splitRecent(run: ShownRun, part: number): Parts {
  const cached = known.get(run.data);
  if (cached?.version === run.data.version && cached.part === part) return cached.parts;
  const { y, step, n } = run.data.series("Alpha", "", "step");
  const steps = step.subarray(0, n).filter((_, i) => Number.isFinite(y[i]));
  const [first, last] = [steps[0] ?? 0, steps.at(-1) ?? 0];
  const all = y.subarray(0, n).filter(Number.isFinite);
  const from = last - (last - first) * part;
  const parts = { all, recent: all.subarray(lowerBound(steps, steps.length, from)) };
  known.set(run.data, { version: run.data.version, part, parts });
  return parts;
}

function fitAt(ctx: Context, run: ShownRun): AlphaFit | null {
  const hit = valueAt(ctx, run, "Alpha");
  return hit ? run.data.alphaAt(hit.step) : null;
}

function readings(ctx: Context): Reading[] {
  const several = ctx.runs.length > 1;
  return ctx.runs.flatMap((run): Reading[] => {
    const { all, recent } = splitRecent(run, ctx.state.recent);
    if (!all.length) return [];
    const name = several ? `${run.label} ` : "";
    const now = valueAt(ctx, run, "Alpha");
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
    out.push(reading(`median of ${which}`, "median", median(all), { minor: several }));
    const last = `last ${percent} %`;
    out.push(reading(`median of the ${last}`, last, median(recent), { minor: several, color: run.color }));
    return out;
  });
}

const opinion = (middle: number): Verdict =>
  middle < -0.25
    ? { text: "Steps end before the floor: the learning rate could be larger.", short: "ends before the floor" }
    : middle <= 0.25
      ? { text: "Steps end near the valley floor.", short: "near the valley floor" }
      : middle <= 0.8
        ? { text: "Overshoots a little, as good runs of deep networks often do.", short: "overshoots a little" }
        : {
            text: "Steps end high on the opposite wall: the learning rate is probably too large.",
            short: "high on the opposite wall",
            fault: true,
          };

function judge(ctx: Context, run: ShownRun): Verdict | null {
  if (isPointed(ctx)) return judgeStep(ctx, run);
  const found = quartiles(splitRecent(run, ctx.state.recent).recent);
  if (!found) return null;
  const [low, middle, high] = found;
  if (low < -0.25 && high > 0.25) {
    const spread = `half of them from ${formatNumber(low, 2)} to ${formatNumber(high, 2)}`;
    return { text: `Steps end on either side of the valley floor, ${spread}.`, short: "around the floor" };
  }
  return opinion(middle);
}

/** Of one step only what it did, not what follows for the learning rate: single steps are noisy. */
function judgeStep(ctx: Context, run: ShownRun): Verdict | null {
  const hit = valueAt(ctx, run, "Alpha");
  if (!hit || !Number.isFinite(hit.value)) return null;
  const { short } = opinion(hit.value);
  const found = { text: `Step ${hit.step}: ${short}.`, short };
  const fit = fitAt(ctx, run);
  if (!fit || standardize(fit, 1)) return found;
  return { ...found, text: `Step ${fit.step}: the fit has no floor ahead.` };
}

function draw(ctx: Context, size: Size): Scene {
  const runs = ctx.runs.filter((run) => splitRecent(run, ctx.state.recent).all.length);
  if (!runs.length) return messageScene(size.width, size.height, waitingFor(ctx, ["Alpha"]), ctx.theme.quiet);
  const lower = Math.max(88, Math.round(size.height * 0.3));
  const box = { x: 42, y: 6, width: size.width - 54, height: size.height - lower - 28 };
  const groups = runs.map((run) => {
    const fit = fitAt(ctx, run);
    const standard = fit ? standardize(fit, run.data.header?.batch_size ?? 1) : null;
    return { color: run.color, ...splitRecent(run, ctx.state.recent), fit: standard };
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
    curves: runs.map((run) => ({
      series: clamp(run.data.series("Alpha", "", axis), STRIP),
      color: run.color,
      label: "alpha",
      dots: true,
    })),
    rules: [{ value: 0, label: "", color: theme.faint }],
    cursor: ctx.step,
    cursorAt: ctx.step === null ? null : stepToAxis(ctx, ctx.step),
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
  return scene;
}

// Values beyond the strip sit at its edge as ticks, so that none is silently missing.
function offScale(ctx: Context, runs: ShownRun[], strip: Scene): Mark[] {
  const [frame] = strip.frames;
  return runs.map((run) => {
    const series = run.data.series("Alpha", "", ctx.axis);
    const boxes: number[] = [];
    for (let i = 0; i < series.n && boxes.length < 1600; i++) {
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
  names: ["Alpha"],
  timeless: true,
  help: [
    "Each step is compared with the valley it moves in, a parabola fitted to losses and slopes at both ends. −1: it stood still. 0: it ended on the floor. +1: it ended on the opposite wall, as high as it began. Above 1 the loss went up.",
    "Grey: all steps. Colour: the last part of the run (View menu). Triangles: medians. The two circles are the chosen step's measured losses with their slopes and one standard error; they come from two different batches, so one may lie outside the picture, and then a triangle at its edge points to it.",
    "Mostly negative: the learning rate is too small. Around 0 to 0.5 is typical of good runs; the greedy optimum 0 is not always the best in the long run. Near 1 or beyond: too large.",
  ],
  shows: (ctx) => isTracked(ctx, ["Alpha"]),
  readings,
  verdict: judge,
  draw,
  csv: (ctx) => columnsCsv(ctx, ["Alpha"]),
};
export default panel;
