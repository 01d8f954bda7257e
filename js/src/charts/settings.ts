// Dots above the values of a setting: one chart with the outcome, and low strips below it on the same axis.
import { median } from "../data/density.ts";
import { formatNumber, shorten } from "../data/format.ts";
import { makeScale, padDomain, type Scale } from "../draw/scale.ts";
import { type Box, emptyScene, type Mark, type Scene } from "../draw/scene.ts";
import type { Theme } from "../draw/theme.ts";

export interface Dot {
  at: string; // the value on the axis
  value: number;
  color: string;
  series: string; // dots of one series are joined by a line through their medians
  hint: string;
  act?(): void;
}
export interface Strip {
  label: string;
  dots: Dot[];
  guide?: number;
}
export interface SettingsChart {
  width: number;
  height: number;
  theme: Theme;
  name: string; // of the axis
  outcome: Strip;
  strips: Strip[];
}

const LEFT = 56;
const RIGHT = 14;
const BOTTOM = 34;

/** Places for the values: numbers on their scale (log where they span much), anything else side by side. */
export function placeValues(values: string[], box: Box): Map<string, number> {
  const distinct = [...new Set(values)];
  const numbers = distinct.map(Number);
  const inner: [number, number] = [box.x + 18, box.x + box.width - 18];
  if (distinct.every((text, i) => text !== "" && Number.isFinite(numbers[i]))) {
    const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
    const scale = makeScale(low > 0 && high / low >= 5 ? "log" : "linear", [low, high], inner);
    return new Map(distinct.map((text, i) => [text, low === high ? (inner[0] + inner[1]) / 2 : scale.to(numbers[i])]));
  }
  const each = (inner[1] - inner[0]) / Math.max(1, distinct.length);
  return new Map([...distinct].sort().map((text, i) => [text, inner[0] + (i + 0.5) * each]));
}

export function settingsScene(chart: SettingsChart): Scene {
  const scene = emptyScene(chart.width, chart.height);
  const strips = chart.strips.slice(0, Math.max(0, Math.floor((chart.height - 130) / 40)));
  const low = strips.length ? Math.max(40, Math.min(76, (chart.height - 130) / strips.length)) : 0;
  const box: Box = {
    x: LEFT,
    y: 16,
    width: Math.max(40, chart.width - LEFT - RIGHT),
    height: Math.max(20, chart.height - 16 - BOTTOM - strips.length * low),
  };
  const places = placeValues(
    [chart.outcome, ...strips].flatMap(({ dots }) => dots.map(({ at }) => at)),
    box,
  );
  addStrip(scene, chart.outcome, box, places, chart.theme);
  strips.forEach((strip, i) => {
    const top = box.y + box.height + i * low + 16;
    addStrip(scene, strip, { ...box, y: top, height: low - 18 }, places, chart.theme);
  });
  scene.marks.push(...axisMarks(chart, places, box));
  return scene;
}

function addStrip(scene: Scene, strip: Strip, box: Box, places: Map<string, number>, theme: Theme): void {
  const finite = strip.dots.filter(({ value }) => Number.isFinite(value));
  const values = [...finite.map(({ value }) => value), ...(strip.guide === undefined ? [] : [strip.guide])];
  const log =
    strip.guide === undefined && values.every((value) => value > 0) && Math.max(...values) > 30 * Math.min(...values);
  const yscale = makeScale(log ? "log" : "linear", padDomain(Math.min(...values), Math.max(...values), log), [
    box.y + box.height,
    box.y,
  ]);
  const { marks } = scene;
  const room = Math.floor(box.width / 6); // letters; in a strip what stands in brackets is left out first
  const text = strip.label.length > room ? shorten(strip.label.replace(/ \(.*\)$/, ""), room) : strip.label;
  marks.push({ type: "text", x: box.x, y: box.y - 8, text, title: strip.label, color: theme.quiet });
  let labelled = Number.NEGATIVE_INFINITY; // in a low strip ticks come closer than their labels are high
  for (const tick of yscale.ticks(Math.max(2, Math.floor(box.height / 40)))) {
    if (Math.abs(tick.at - labelled) < 12) continue;
    labelled = tick.at;
    marks.push({ type: "line", xs: [box.x, box.x + box.width], ys: [tick.at, tick.at], stroke: theme.line });
    marks.push({ type: "text", x: box.x - 6, y: tick.at, text: tick.label, anchor: "end", color: theme.quiet });
  }
  if (strip.guide !== undefined) {
    const y = yscale.to(strip.guide);
    marks.push({ type: "line", xs: [box.x, box.x + box.width], ys: [y, y], stroke: theme.warn, dash: [5, 3] });
  }
  marks.push(...medianLines(finite, places, yscale));
  for (const dot of strip.dots) addDot(scene, dot, box, places.get(dot.at) ?? box.x, yscale, theme);
}

/** What is not finite is a cross at the upper edge: it has no height. */
function addDot(scene: Scene, dot: Dot, box: Box, x: number, yscale: Scale, theme: Theme): void {
  const fine = Number.isFinite(dot.value);
  const y = fine ? yscale.to(dot.value) : box.y + 4;
  if (fine)
    scene.marks.push({ type: "dots", xs: [x], ys: [y], radius: 3.5, fill: dot.color, stroke: theme.card, weight: 1 });
  else
    for (const slope of [-3, 3])
      scene.marks.push({
        type: "line",
        xs: [x - 3, x + 3],
        ys: [y - slope, y + slope],
        stroke: theme.warn,
        weight: 1.5,
      });
  scene.spots.push({ x: x - 6, y: y - 6, width: 12, height: 12, hint: dot.hint, act: dot.act });
}

function medianLines(dots: Dot[], places: Map<string, number>, yscale: Scale): Mark[] {
  const series = new Map<string, Dot[]>();
  for (const dot of dots) series.set(dot.series, [...(series.get(dot.series) ?? []), dot]);
  return [...series.values()].flatMap((own): Mark[] => {
    const columns = [...new Set(own.map(({ at }) => at))].sort((a, b) => (places.get(a) ?? 0) - (places.get(b) ?? 0));
    if (columns.length < 2) return [];
    const ys = columns.map((at) => yscale.to(median(own.filter((dot) => dot.at === at).map(({ value }) => value))));
    const xs = columns.map((at) => places.get(at) ?? 0);
    return [{ type: "line", xs, ys, stroke: own[0].color, weight: 1.5, alpha: 0.7 }];
  });
}

/** The values themselves as labels, as many as there is room for. */
function axisMarks({ theme, name, height }: SettingsChart, places: Map<string, number>, box: Box): Mark[] {
  const y = height - BOTTOM + 10;
  const marks: Mark[] = [];
  let free = Number.NEGATIVE_INFINITY;
  for (const [value, x] of [...places].sort((a, b) => a[1] - b[1])) {
    marks.push({ type: "line", xs: [x, x], ys: [y - 8, y - 5], stroke: theme.faint });
    const number = Number(value);
    const text = value !== "" && Number.isFinite(number) ? formatNumber(number) : shorten(value, 14);
    if (x - 3.2 * text.length < free) continue;
    free = x + 3.2 * text.length + 6;
    marks.push({ type: "text", x, y: y + 2, text, title: value, anchor: "middle", color: theme.quiet });
  }
  const label = shorten(name, 30);
  return [
    ...marks,
    { type: "text", x: box.x + box.width / 2, y: y + 16, text: label, anchor: "middle", color: theme.quiet },
  ];
}
