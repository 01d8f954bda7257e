// The colour scale of a heat map with its two ends.
import { formatCount, formatNumber } from "../data/format.ts";
import { countColor, differenceColor, toHex } from "../draw/colors.ts";
import type { Box, Mark } from "../draw/scene.ts";
import type { Theme } from "../draw/theme.ts";

/** The colour scale with its ends, as a legend line inside the picture. */
export function scaleMarks(box: Box, most: number, theme: Theme, difference: number | null): Mark[] {
  const steps = 24;
  const marks: Mark[] = [];
  for (let i = 0; i < steps; i++) {
    const t = i / (steps - 1);
    const fill = toHex(difference === null ? countColor(t) : differenceColor(t * 2 - 1 || 0.001));
    marks.push({
      type: "rect",
      x: box.x + (box.width * i) / steps,
      y: box.y,
      width: box.width / steps + 0.6,
      height: box.height,
      fill,
    });
  }
  const ends =
    difference === null
      ? ["1", `${formatCount(most)} (log)`]
      : [`−${formatNumber(difference * 100, 2)} %`, `+${formatNumber(difference * 100, 2)} %`];
  marks.push({
    type: "text",
    x: box.x - 5,
    y: box.y + box.height / 2,
    text: ends[0],
    anchor: "end",
    color: theme.quiet,
  });
  marks.push({
    type: "text",
    x: box.x + box.width + 5,
    y: box.y + box.height / 2,
    text: ends[1],
    anchor: "start",
    color: theme.quiet,
  });
  return marks;
}
