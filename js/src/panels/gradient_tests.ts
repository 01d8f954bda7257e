// Norm, inner product and orthogonality test: is the batch too small, or wastefully large?
import { lineScene } from "../charts/line.ts";
import { type TestsGroup, THRESHOLDS, testsScene } from "../charts/tests.ts";
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
import { formatNumber } from "../data/format.ts";
import { messageScene, type Scene } from "../draw/scene.ts";
import { readable } from "../draw/theme.ts";
import { judged } from "../judge/judging.ts";
import { joinGroups, usesLog } from "./_curves.ts";

const tests = [
  { key: "norm", name: "NormTest" },
  { key: "inner", name: "InnerTest" },
  { key: "ortho", name: "OrthoTest" },
] as const;
const names = tests.map(({ name }) => name) as string[];

const layerOf = (ctx: Context, run: ShownRun, name: string) =>
  ctx.state.layer && run.data.columns.get(name)?.has(ctx.state.layer) ? ctx.state.layer : "";

function colorsOf(ctx: Context, run: ShownRun): TestsGroup["colors"] {
  if (ctx.runs.length > 1) return { norm: run.color, inner: run.color, ortho: run.color };
  const [norm, inner, ortho] = ctx.theme.series;
  return { norm, inner, ortho };
}

function valuesOf(ctx: Context, run: ShownRun): TestsGroup["values"] {
  const at = (name: string) => valueAt(ctx, run, name, layerOf(ctx, run, name))?.value ?? null;
  return { norm: at("NormTest"), inner: at("InnerTest"), ortho: at("OrthoTest") };
}

function readings(ctx: Context): Reading[] {
  const several = ctx.runs.length > 1;
  return ctx.runs.flatMap((run) =>
    tests.flatMap(({ key, name }): Reading[] => {
      const hit = valueAt(ctx, run, name, layerOf(ctx, run, name));
      if (!hit) return [];
      const label = several ? `${run.label} ${key}` : key;
      const minor = several && key !== "norm";
      return [{ label, value: hit.value, step: hit.step, run: run.run, color: colorsOf(ctx, run)[key], minor }];
    }),
  );
}

function judge(ctx: Context, run: ShownRun): Verdict | null {
  const level = judged(ctx, run, "NormTest", layerOf(ctx, run, "NormTest"));
  const batch = run.data.header?.batch_size;
  const size = batch ? ` (batch ${formatNumber(batch)})` : "";
  if (!level) return null;
  const { low, high, at } = level;
  const say = (text: string, short: string) => ({ text: at + text, short: `${short}${size}` });
  if (low > THRESHOLDS.norm)
    return say(`The noise is above the usual limit 0.9${size}: a larger batch would point more reliably.`, "noisy");
  if (high > THRESHOLDS.norm) return say(`The noise is about at the usual limit 0.9${size}.`, "noise around 0.9");
  if (high < 0.25) return say(`Hardly any noise${size}: a smaller batch would do.`, "hardly any noise");
  return say(`The noise is below the usual limit 0.9${size}: the batch is large enough.`, "large enough");
}

function draw(ctx: Context, size: Size): Scene {
  const runs = ctx.runs.filter((run) => names.some((name) => run.data.has(name)));
  if (!runs.length) return messageScene(size.width, size.height, waitingFor(ctx, names), ctx.theme.quiet);
  if (ctx.state.layer) for (const run of runs) for (const name of names) ctx.wantLayers(run, name);
  const side = size.width > 330;
  const width = side ? Math.min(size.width * 0.62, size.height - 10) : size.width;
  const height = side ? size.height : Math.min(size.height * 0.56, size.width);
  const box = { x: 22, y: 6, width: width - 30, height: height - 42 };
  const groups = runs.map((run) => ({ values: valuesOf(ctx, run), colors: colorsOf(ctx, run) }));
  const scene = testsScene(size, box, groups, ctx.theme);
  const area = side
    ? { x: width, y: 0, width: size.width - width, height: size.height }
    : { x: 0, y: height, width: size.width, height: size.height - height };
  for (const [i, test] of tests.entries()) addHistory(ctx, size, runs, scene, test, i, area);
  return scene;
}

function addHistory(
  ctx: Context,
  size: Size,
  runs: ShownRun[],
  scene: Scene,
  test: (typeof tests)[number],
  index: number,
  area: { x: number; y: number; width: number; height: number },
): void {
  const { theme, axis, domain, state } = ctx;
  const last = index === tests.length - 1;
  const bottom = 30;
  const each = (area.height - bottom) / 3;
  const top = area.y + each * index;
  const chart = lineScene({
    ...size,
    theme,
    axis,
    domain,
    xlog: state.xlog,
    ylog: usesLog(ctx, "gradient_tests", true),
    smoothing: state.smoothing,
    curves: joinGroups(
      ctx,
      runs,
      test.key,
      (run) => run.data.series(test.name, layerOf(ctx, run, test.name), axis),
      (run) => colorsOf(ctx, run)[test.key],
    ),
    guides: [{ value: THRESHOLDS[test.key], label: "", color: theme.quiet }],
    cursor: ctx.step,
    cursorAt: playhead(ctx),
    box: { x: area.x, y: top + 14, width: area.width, height: each - 14 + (last ? bottom : 0) },
    bare: !last,
    ticks: 2,
  });
  scene.marks.push(...chart.marks);
  scene.marks.push({
    type: "text",
    x: area.x + 42,
    y: top + 10,
    text: test.key,
    color: runs.length > 1 ? theme.text : readable(colorsOf(ctx, runs[0])[test.key], theme),
    bold: true,
  });
  const limit = `– – ${THRESHOLDS[test.key]}`;
  const right = area.x + area.width - 12;
  scene.marks.push({ type: "text", x: right, y: top + 10, text: limit, anchor: "end", color: theme.quiet });
  scene.frames.push(...chart.frames);
}

const panel: Panel = {
  id: "gradient_tests",
  title: "Gradient tests",
  group: "gradients",
  order: 10,
  height: 320,
  names,
  needs: names,
  canSplit: false,
  help: [
    "Each sample of the batch has a gradient of its own. Shown is how far they scatter around their mean (the arrow), in units of its length: in total (norm: the ball), along it (inner) and across it (ortho). Dashed: their usual limits 0.9, 0.9 and 5.84.",
    "Everything inside the dashed lines: the batch is large enough for this gradient. Far outside: the direction is mostly noise, and a larger batch or a smaller learning rate helps. Tiny compared with the dashed ball: the batch is wastefully large.",
    "Noise normally grows relative to the gradient as training goes on.",
  ],
  shows: (ctx) => isTracked(ctx, names),
  readings,
  verdict: judge,
  draw,
  csv: (ctx) => columnsCsv(ctx, names),
};
export default panel;
