// A small square of numbers from -1 to 1, blue below 0 and orange above it.
import { formatNumber } from "../data/format.ts";
import { differenceColor, toHex } from "../draw/colors.ts";
import type { Box, Mark, Spot } from "../draw/scene.ts";
import type { Theme } from "../draw/theme.ts";

export interface Matrix {
  names: string[];
  values: number[][]; // NaN = not known
}

/** The largest size of a value, so that weak ones can be seen; at least a tenth. */
export const reachOf = ({ values }: Matrix) =>
  Math.max(0.1, ...values.flat().map((value) => (Number.isFinite(value) ? Math.abs(value) : 0)));

export function matrixMarks(
  matrix: Matrix,
  box: Box,
  theme: Theme,
  words: (row: number, column: number) => string,
): { marks: Mark[]; spots: Spot[] } {
  const count = matrix.names.length;
  const side = Math.min(box.width, box.height) / count;
  const reach = reachOf(matrix);
  const marks: Mark[] = [];
  const spots: Spot[] = [];
  matrix.values.forEach((row, i) => {
    row.forEach((value, k) => {
      const place = { x: box.x + k * side, y: box.y + i * side, width: side, height: side };
      const fill = Number.isFinite(value) ? toHex(differenceColor(value / reach || 0.001)) : theme.line;
      marks.push({ type: "rect", ...place, width: side - 0.6, height: side - 0.6, fill });
      spots.push({ ...place, hint: words(i, k) });
    });
  });
  const every = Math.max(1, Math.ceil(11 / side));
  matrix.names.forEach((text, i) => {
    if (i % every) return;
    const middle = (i + 0.5) * side;
    const label = { type: "text", text, color: theme.quiet, size: 10 } as const;
    marks.push({ ...label, x: box.x - 4, y: box.y + middle, anchor: "end" });
    marks.push({ ...label, x: box.x + middle, y: box.y + count * side + 7, anchor: "middle" });
  });
  return { marks, spots };
}

/** The colours with their ends, from top to bottom. */
export function matrixScale(reach: number, box: Box, theme: Theme): Mark[] {
  const steps = 20;
  const each = box.height / steps;
  const marks: Mark[] = Array.from({ length: steps }, (_, i) => {
    const fill = toHex(differenceColor(1 - (2 * (i + 0.5)) / steps));
    return { type: "rect", x: box.x, y: box.y + i * each, width: box.width, height: each + 0.5, fill };
  });
  const text = (y: number, value: number) =>
    marks.push({
      type: "text",
      x: box.x + box.width + 4,
      y,
      text: formatNumber(value, 2),
      color: theme.quiet,
      size: 10,
    });
  text(box.y + 4, reach);
  text(box.y + box.height / 2, 0);
  text(box.y + box.height - 4, -reach);
  return marks;
}
