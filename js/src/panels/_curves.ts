// Most panels are curves over the shared axis. This makes one from a few words; what needs a picture of its own draws itself.

import { GUIDE_DASH, type Guide } from "../charts/axes.ts";
import { type Curve, hasSigns, lineScene } from "../charts/line.ts";
import { columnsCsv } from "../contract/export.ts";
import { playhead } from "../contract/navigation.ts";
import {
  type Context,
  isTracked,
  type Panel,
  type Reading,
  type RunGroup,
  type ShownRun,
  type Size,
  waitingFor,
} from "../contract/panel.ts";
import { makeBand } from "../data/bands.ts";
import { ratio } from "../data/derive.ts";
import { formatNumber, shorten, shortNames } from "../data/format.ts";
import type { Axis, Series } from "../data/series.ts";
import { type Box, type LegendItem, messageScene, type Scene } from "../draw/scene.ts";
import { seriesColor } from "../draw/theme.ts";

export interface Shown {
  name: string;
  label: string;
  over?: string; // divided by this column
  dash?: number[];
}
export interface CurvesSpec {
  id: string;
  title: string;
  group: Panel["group"];
  order: number;
  height?: number;
  shown: Shown[];
  also?: string[]; // further names that this panel takes care of
  ylabel?: string;
  ylog?: boolean | ((ctx: Context) => boolean);
  split?: boolean; // has layer-wise values
  exact?: boolean; // never smoothed
  aside?: boolean;
  holds?(ctx: Context): number[]; // values that are always on the axis
  least?: number; // the least relative height of the picture: noise is not drawn larger than that
  help: string[];
  guides?(ctx: Context): Guide[];
  extra?(ctx: Context): { curves: Curve[]; legend: LegendItem[] };
  note?(ctx: Context): string;
  verdict?: Panel["verdict"];
}

const LEAST = 0.02; // of the value: what varies by less is drawn flat
export const dashes: (number[] | undefined)[] = [undefined, [6, 3], [2, 2], [8, 3, 2, 3], [1, 3]];

/** Log or linear: the panel's own choice, then the bar's, then what suits the quantity. */
export function usesLog(ctx: Context, id: string, natural: boolean): boolean {
  const own = ctx.state.ylog[id];
  if (own !== undefined) return own;
  return ctx.state.yscale === "auto" ? natural : ctx.state.yscale === "log";
}

/** One run: colours tell its series apart. Several: colours tell the runs apart, dashes the series. */
export function curveStyle(ctx: Context, run: ShownRun, index: number): { color: string; dash?: number[] } {
  if (ctx.runs.length > 1) return { color: run.color, dash: dashes[index % dashes.length] };
  return { color: index === 0 ? run.color : seriesColor(run.color, index, ctx.theme) };
}

function seriesOf(run: ShownRun, { name, over }: Shown, layer: string, axis: Axis): Series {
  return over ? ratio(run.data, name, over, layer, axis) : run.data.series(name, layer, axis);
}

function layerName(ctx: Context, run: ShownRun, name: string): string {
  const { layer } = ctx.state;
  return layer && run.data.columns.get(name)?.has(layer) ? layer : "";
}

/** What is shown of a run: if one of the columns has the chosen layer, only those that have it. Never both in one chart. */
function presentOf(ctx: Context, run: ShownRun, shown: Shown[]): Shown[] {
  const own = shown.filter(({ name }) => layerName(ctx, run, name));
  return own.length ? own : shown;
}

/** With a layer chosen: whose values these are. */
function layerWords(ctx: Context, spec: CurvesSpec): string {
  const { layer } = ctx.state;
  if (!layer || ctx.state.split[spec.id]) return "";
  const own = ctx.runs.filter((run) => spec.shown.some(({ name }) => layerName(ctx, run, name)));
  if (!own.length) return "Whole network: there are no values per layer.";
  const left = spec.shown.filter(
    ({ name }) => own.some(({ data }) => data.has(name)) && !own.some((run) => layerName(ctx, run, name)),
  );
  const rest = left.length ? ` Not known per layer: ${left.map(({ label }) => label).join(", ")}.` : "";
  const others = own.length < ctx.runs.length ? " Runs without this layer show the whole network." : "";
  return `${shorten(layer, 40)}.${rest}${others}`;
}

/** One curve per run, or per group where the user wants those as one. */
export function joinGroups(
  ctx: Context,
  runs: ShownRun[],
  label: string,
  series: (run: ShownRun) => Series,
  color: (run: ShownRun) => string,
): Curve[] {
  const grouped = new Set(ctx.groups.flatMap((group) => group.runs.map(({ run }) => run)));
  const single = runs.filter(({ run }) => !grouped.has(run));
  const bands = ctx.groups.map((group) => {
    const { middle, low, high } = makeBand(group.runs.map(series).filter(({ n }) => n));
    return { series: middle, color: group.color, label, band: { low, high } };
  });
  return [...bands, ...single.map((run) => ({ series: series(run), color: color(run), label }))];
}

/** One curve per group: the median of its runs, with a band from the lowest to the highest. */
function groupCurves(ctx: Context, group: RunGroup, spec: CurvesSpec): Curve[] {
  return spec.shown.flatMap((shown, index) => {
    const all = group.runs.map((run) => seriesOf(run, shown, layerName(ctx, run, shown.name), ctx.axis));
    const { middle, low, high } = makeBand(all.filter(({ n }) => n));
    const dash = dashes[index % dashes.length];
    return middle.n ? [{ series: middle, label: shown.label, color: group.color, dash, band: { low, high } }] : [];
  });
}

export function makeCurves(ctx: Context, spec: CurvesSpec): Curve[] {
  const split = spec.split && ctx.state.split[spec.id];
  const groups = split ? [] : ctx.groups;
  const single = ctx.runs.filter(({ run }) => !groups.some((group) => group.runs.some((own) => own.run === run)));
  const curves: Curve[] = groups.flatMap((group) => groupCurves(ctx, group, spec));
  for (const run of single)
    spec.shown.forEach((shown, index) => {
      const { name, label, over } = shown;
      if (spec.split && (ctx.state.split[spec.id] || ctx.state.layer))
        for (const wanted of [name, over ?? name]) ctx.wantLayers(run, wanted);
      const style = curveStyle(ctx, run, index);
      if (spec.split && ctx.state.split[spec.id] && run.data.layersOf(spec.shown[0].name).length) {
        if (index === 0) curves.push(...layerCurves(ctx, run, shown));
        return;
      }
      if (!presentOf(ctx, run, spec.shown).includes(shown)) return;
      const layer = layerName(ctx, run, name);
      const series = seriesOf(run, shown, layer, ctx.axis);
      const error = run.data.series(`error/${name}`, layer, ctx.axis);
      if (series.n) curves.push({ series, label, error: error.n ? error : null, ...style });
    });
  return curves;
}

/** One thin line per layer, dark to light in network order; the chosen layer stands out. */
function layerCurves(ctx: Context, run: ShownRun, shown: Shown): Curve[] {
  const { name } = shown;
  const order = run.data.header?.layers.map((layer) => layer.name) ?? run.data.layersOf(name);
  return order
    .filter((layer) => run.data.columns.get(name)?.has(layer))
    .map((layer, i, all) => {
      const series = seriesOf(run, shown, layer, ctx.axis);
      const color = ctx.runs.length > 1 ? run.color : ctx.theme.series[i % ctx.theme.series.length];
      const dash = dashes[Math.floor(i / ctx.theme.series.length) % dashes.length];
      return { series, label: layer, color, dash, thin: ctx.state.layer ? layer !== ctx.state.layer : all.length > 1 };
    });
}

function makeLegend(ctx: Context, spec: CurvesSpec, curves: Curve[]): LegendItem[] {
  if (spec.split && ctx.state.split[spec.id]) {
    if (ctx.runs.length > 1) return []; // colours tell the runs apart then
    const seen = [...new Map(curves.map((curve) => [curve.label, curve])).values()].slice(0, 24);
    const names = shortNames(
      seen.map(({ label }) => label),
      26,
    );
    return seen.map(({ label, color, dash }) => ({ label: names.get(label) ?? "", title: label, color, dash }));
  }
  const present = spec.shown.filter(({ name }) => ctx.runs.some((run) => run.data.has(name)));
  if (spec.shown.length < 2) return [];
  return present.map(({ name, label }) => {
    const style = curveStyle(
      ctx,
      ctx.runs[0],
      spec.shown.findIndex((own) => own.name === name),
    );
    return { label, color: ctx.runs.length > 1 ? ctx.theme.quiet : style.color, dash: style.dash };
  });
}

/** "2.31 ± 0.04", and "0.12 ± 0.17"; an error that is smaller than the last digit shown is not written out. */
export function withError(value: number, error: number): string | undefined {
  const shown = Number(value.toPrecision(3));
  if (error < Math.max(Math.abs(shown) * 5e-4, Number.MIN_VALUE)) return undefined;
  const digits = Math.abs(value) > 20 * error ? 1 : 2;
  const [size, least] = [Math.abs(value), error].map((own) => Math.floor(Math.log10(own)));
  const known = Math.max(1, Math.min(3, size - least + digits)); // of the value: down to the last one of the error
  return [value.toPrecision(known), error.toPrecision(digits)].map((own) => formatNumber(Number(own))).join(" ± ");
}

export function curveReadings(ctx: Context, shown: Shown[]): Reading[] {
  return ctx.runs.flatMap((run) =>
    shown.flatMap((own, index) => {
      const { name, label } = own;
      if (!presentOf(ctx, run, shown).includes(own)) return [];
      const layer = layerName(ctx, run, name);
      const hit = ctx.step === null ? null : seriesOf(run, own, layer, "step").at(ctx.step);
      if (!hit) return [];
      const words = [ctx.runs.length > 1 ? run.label : "", label, layer && shorten(layer, 24)];
      const style = curveStyle(ctx, run, index);
      const alone = shown.filter((one) => run.data.has(one.name)).length < 2; // nothing to tell apart by colour
      const color = ctx.runs.length > 1 || !alone ? style.color : undefined;
      const minor = ctx.runs.length > 1 && index > 0;
      const error = own.over ? null : run.data.series(`error/${name}`, layer, "step").at(hit.step);
      const several = ctx.runs.length > 1; // no room for errors then; the band shows them
      const exact = several || !error || error.step !== hit.step || !(error.value > 0);
      const text = exact ? undefined : withError(hit.value, error.value);
      return [
        { label: words.filter(Boolean).join(" "), value: hit.value, step: hit.step, run: run.run, color, minor, text },
      ];
    }),
  );
}

export function curvePanel(spec: CurvesSpec): Panel {
  const names = spec.shown.map(({ name }) => name);
  return {
    id: spec.id,
    title: spec.title,
    group: spec.group,
    order: spec.order,
    height: spec.height ?? 170,
    names: [...names, ...(spec.also ?? [])],
    needs: names,
    help: spec.help,
    canSplit: spec.split,
    aside: spec.aside,
    shows: (ctx) => isTracked(ctx, names),
    readings: (ctx) => curveReadings(ctx, spec.shown),
    verdict: spec.verdict,
    note: (ctx) => [layerWords(ctx, spec), spec.note?.(ctx)].filter(Boolean).join(" "),
    draw: (ctx, size) => drawCurves(ctx, size, spec),
    csv: (ctx) => columnsCsv(ctx, [...names, ...(spec.also ?? []), ...names.map((name) => `error/${name}`)]),
  };
}

/** The curves of a specification, in a part of the picture if one is given. */
export function drawCurves(ctx: Context, size: Size, spec: CurvesSpec, box?: Box): Scene {
  const curves = makeCurves(ctx, spec);
  const names = spec.shown.map(({ name }) => name);
  if (!curves.length) return messageScene(size.width, size.height, waitingFor(ctx, names), ctx.theme.quiet);
  const { theme, axis, domain, state } = ctx;
  const extra = spec.extra?.(ctx);
  const wantsLog = typeof spec.ylog === "function" ? spec.ylog(ctx) : (spec.ylog ?? false);
  const guides = spec.guides?.(ctx) ?? [];
  const named = guides.map(({ label, color }) => ({ label, color: color ?? theme.warn, dash: GUIDE_DASH }));
  return lineScene({
    ...size,
    box,
    theme,
    axis,
    domain,
    xlog: state.xlog,
    ylog: usesLog(ctx, spec.id, wantsLog && !hasSigns(curves, domain)),
    smoothing: spec.exact ? 0 : state.smoothing,
    curves: [...curves, ...(extra?.curves ?? [])],
    guides,
    ylabel: spec.ylabel,
    least: spec.least ?? LEAST,
    holds: spec.holds?.(ctx),
    cursor: ctx.step,
    cursorAt: playhead(ctx),
    legend: [...makeLegend(ctx, spec, curves), ...named, ...(extra?.legend ?? [])],
  });
}
