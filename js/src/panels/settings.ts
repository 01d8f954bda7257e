// Which setting is best, and what is different about it? A hyperparameter against the final metric, instruments below.
import { type Dot, type Strip, settingsScene } from "../charts/settings.ts";
import { csvLines } from "../contract/export.ts";
import type { Context, Panel, ShownRun, Size } from "../contract/panel.ts";
import { ratio } from "../data/derive.ts";
import { formatNumber, shorten } from "../data/format.ts";
import type { Series } from "../data/series.ts";
import { messageScene, type Scene } from "../draw/scene.ts";
import { signalShare } from "../judge/alpha.ts";
import { groupLabel } from "../judge/facts.ts";
import { quartiles } from "../judge/judging.ts";
import { endsOf } from "../judge/metrics.ts";
import { axisName, describeBest, type Setting, type Settings, settingsOf } from "../judge/settings.ts";

const FEWEST = 3; // runs
const PART = 0.1; // of a run, at its end

/** The median over the last tenth of a run. */
function late({ y, n }: Series): number | null {
  return quartiles(y.subarray(Math.max(0, n - Math.max(8, Math.ceil(n * PART))), n))?.[1] ?? null;
}

const instruments: { label: string; guide?: number; of(run: ShownRun, ctx: Context): number | null }[] = [
  { label: "alpha of its own batch", guide: 1, of: ({ data }) => late(data.series("AlphaOwnBatch", "", "step")) },
  {
    label: "share of signal",
    of: (run, ctx) => signalShare({ ...ctx, hover: null, state: { ...ctx.state, step: null } }, run),
  },
  { label: "update / weight", of: ({ data }) => late(ratio(data, "UpdateSize", "ParamNorm", "", "step")) },
  {
    label: "learning rate × λ max / 2",
    guide: 1,
    of: ({ data }) => {
      const [value, rate] = ["HessMaxEV", "LearningRate"].map((name) => late(data.series(name, "", "step")));
      return value === null || rate === null ? null : (value * rate) / 2;
    },
  },
];

/** What settings differ in besides the axis: dots of one such series have one colour. */
const seriesOf = ({ facts }: Setting, axis: string) =>
  [...facts]
    .filter(([name]) => name !== axis)
    .map(([name, value]) => (name === "optimizer" ? value : `${name}=${value}`))
    .join(" ");

function dotsOf(ctx: Context, { all }: Settings, axis: string, of: (run: ShownRun) => number | null): Dot[] {
  const series = [...new Set(all.map((setting) => seriesOf(setting, axis)))].sort();
  return all.flatMap((setting) => {
    const own = seriesOf(setting, axis);
    const color = ctx.theme.series[series.indexOf(own) % ctx.theme.series.length];
    return setting.runs.flatMap((run) => {
      const value = of(run);
      const hint = `${shorten(setting.name, 60)}, ${run.label}: ${formatNumber(value ?? Number.NaN)}`;
      const act = () => ctx.set({ runs: [run.run] });
      return value === null ? [] : [{ at: setting.facts.get(axis) ?? "–", value, color, series: own, hint, act }];
    });
  });
}

function stripsOf(ctx: Context, settings: Settings, axis: string): Strip[] {
  return instruments.flatMap(({ label, guide, of }) => {
    const dots = dotsOf(ctx, settings, axis, (run) => of(run, ctx));
    return dots.length ? [{ label, guide, dots }] : [];
  });
}

function draw(ctx: Context, size: Size): Scene {
  const settings = settingsOf(ctx);
  const axis = settings && axisName(settings, ctx.state.settings);
  if (!settings || axis === null)
    return messageScene(size.width, size.height, "These runs have the same settings.", ctx.theme.quiet);
  const { title, least } = settings.metric;
  const dots = dotsOf(ctx, settings, axis, (run) => endsOf(run, settings.metric)[0]);
  if (!dots.length) return messageScene(size.width, size.height, `No ${title} yet.`, ctx.theme.quiet);
  const outcome = { label: `final ${title} (${least ? "less" : "more"} is better)`, dots };
  const scene = settingsScene({
    ...size,
    theme: ctx.theme,
    name: axis,
    outcome,
    strips: stripsOf(ctx, settings, axis),
  });
  const named = new Map(dots.map(({ series, color }) => [series, color]));
  const runsOf = (series: string) =>
    settings.all.filter((own) => seriesOf(own, axis) === series).flatMap(({ runs }) => runs.map(({ label }) => label));
  if (named.size > 1)
    scene.legend = [...named].map(([title, color]) => {
      const label = title.length > 28 ? groupLabel(runsOf(title)) : title; // the middle of a long one is not what differs
      return { label: shorten(label, 28), title, color };
    });
  return scene;
}

const panel: Panel = {
  id: "settings",
  title: "Settings",
  group: "first",
  order: 5,
  height: 350,
  names: [],
  timeless: true,
  help: [
    "The hyperparameter that differs (⋯ chooses another) against the final score: a dot per run, a line through the medians. What else differs has a colour. A cross at the top is a run that ended as NaN. A click on a dot shows that run alone.",
    "Below, of the last tenth of each run: alpha on its own batch (+1 is the edge of stability), the share of signal, the step relative to the weights, and the learning rate times the largest eigenvalue over 2 (from 1 on, SGD without momentum is unstable).",
    "The sentence names the best setting, and the quantity in which the next best one first differs from it: the first step at which the two are further apart than seeds of one setting. What differs first may be the cause; it is no proof.",
  ],
  shows: (ctx) => {
    const settings = ctx.runs.length >= FEWEST ? settingsOf(ctx) : null;
    return settings !== null && settings.differing.length > 0 && settings.all.length > 1;
  },
  readings: (ctx) => {
    const best = settingsOf(ctx)?.all[0];
    if (!best || !Number.isFinite(best.final)) return [];
    return [{ label: `best: ${best.name}`, value: best.final, text: `best ${shorten(best.name, 40)}` }];
  },
  details: (ctx) =>
    (settingsOf(ctx)?.all ?? []).map(({ name, final, runs }) => ({
      label: `${name}, ${runs.length} ${runs.length === 1 ? "run" : "runs"}`,
      value: final,
    })),
  note: (ctx) => {
    const settings = settingsOf(ctx);
    return settings ? describeBest(settings) : "";
  },
  draw,
  csv: (ctx) => {
    const settings = settingsOf(ctx);
    const axis = (settings && axisName(settings, ctx.state.settings)) ?? "";
    const rows = (settings?.all ?? []).flatMap((setting) =>
      setting.runs.map((run): (string | number)[] => [
        ...[setting.name, run.run, setting.facts.get(axis) ?? ""],
        endsOf(run, (settings as Settings).metric)[0] ?? "",
        ...instruments.map(({ of }) => of(run, ctx) ?? ""),
      ]),
    );
    const head = ["setting", "run", axis, settings?.metric.title ?? "", ...instruments.map(({ label }) => label)];
    return csvLines([head, ...rows]);
  },
  actions: (ctx) => {
    const settings = settingsOf(ctx);
    if (!settings) return [];
    const now = axisName(settings, ctx.state.settings);
    return settings.differing.slice(0, 8).map((name) => ({
      label: `Along ${shorten(name, 24)}`,
      pressed: name === now,
      act: () => ctx.set({ settings: name }),
    }));
  },
};
export default panel;
