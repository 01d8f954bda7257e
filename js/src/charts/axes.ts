// Grid, ticks, labels and decision lines around a time chart.

import type { Axis } from "../data/series.ts";
import type { Scale, Tick } from "../draw/scale.ts";
import type { Box, Mark } from "../draw/scene.ts";
import { readable, type Theme } from "../draw/theme.ts";

export interface Guide {
  value: number;
  label: string; // stands in the legend, where no curve can cross it
  color?: string;
}
export const GUIDE_DASH = [5, 3];
/** The title beside an axis, read upwards. */
export const upright = (x: number, y: number, text: string, theme: Theme): Mark => ({
  type: "text",
  x,
  y,
  text,
  anchor: "middle",
  turned: true,
  color: theme.quiet,
});
const axisLabel: Record<Axis, string> = { step: "step", epoch: "epoch", time: "time (s)" };

export interface AxisOptions {
  theme: Theme;
  axis: Axis;
  xlog: boolean;
  ylabel?: string;
  bare?: boolean; // no labels on the x axis: another chart below has them
  ticks?: number;
}

/** Ticks of the shared axis; there is no half step. */
function timeTicks(xscale: Scale, width: number, axis: Axis): Tick[] {
  const ticks = xscale.ticks(Math.max(2, Math.floor(width / 64)));
  return axis === "step" ? ticks.filter(({ value }) => Number.isInteger(value)) : ticks;
}

export function axisMarks(chart: AxisOptions, box: Box, xscale: Scale, yscale: Scale): Mark[] {
  const { theme } = chart;
  const marks: Mark[] = [];
  const right = box.x + box.width;
  const bottom = box.y + box.height;
  const yticks = yscale.ticks(chart.ticks ?? Math.max(2, Math.floor(box.height / 44)));
  let labelled = Number.NEGATIVE_INFINITY; // in a low chart ticks come closer than their labels are high
  for (const tick of yticks) {
    marks.push({ type: "line", xs: [box.x, right], ys: [tick.at, tick.at], stroke: theme.line });
    if (Math.abs(tick.at - labelled) < 11) continue;
    labelled = tick.at;
    marks.push({ type: "text", x: box.x - 6, y: tick.at, text: tick.label, anchor: "end", color: theme.quiet });
  }
  if (chart.ylabel) marks.push(upright(box.x - 48, box.y + box.height / 2, chart.ylabel, theme));
  if (chart.bare) return marks;
  for (const { at } of timeTicks(xscale, box.width, chart.axis))
    marks.push({ type: "line", xs: [at, at], ys: [bottom, bottom + 3], stroke: theme.faint });
  return [...marks, ...timeMarks(chart, box, xscale)];
}

/** What stands below a picture over time: numbers, and what they count. */
export function timeMarks(chart: Pick<AxisOptions, "theme" | "axis" | "xlog">, box: Box, xscale: Scale): Mark[] {
  const right = box.x + box.width;
  const bottom = box.y + box.height;
  const text = { type: "text", color: chart.theme.quiet } as const;
  const ticks = timeTicks(xscale, box.width, chart.axis).map(({ at, label }): Mark => {
    const anchor = at > right - 12 ? "end" : at < box.x + 8 ? "start" : "middle";
    return { ...text, x: at, y: bottom + 11, text: label, anchor };
  });
  const label = axisLabel[chart.axis] + (chart.xlog ? " (log)" : "");
  return [...ticks, { ...text, x: box.x + box.width / 2, y: bottom + 25, text: label, anchor: "middle" }];
}

export function guideMarks(guide: Guide, theme: Theme, box: Box, yscale: Scale): Mark[] {
  const stroke = guide.color ?? theme.warn;
  const color = readable(stroke, theme);
  const [low, high] = yscale.domain;
  const right = box.x + box.width;
  if (!(guide.value >= low && guide.value <= high)) {
    const above = guide.value > high;
    const text = `${guide.label} ${above ? "↑" : "↓"}`.trim();
    return [{ type: "text", x: right - 2, y: above ? box.y + 6 : box.y + box.height - 7, text, anchor: "end", color }];
  }
  const y = yscale.to(guide.value);
  return [{ type: "line", xs: [box.x, right], ys: [y, y], stroke, weight: 1.2, dash: GUIDE_DASH }];
}
