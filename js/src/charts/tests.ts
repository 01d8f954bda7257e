// The three gradient tests as one picture, in coordinates aligned with the mean gradient and in units of its length.
// All three are relative spreads of the individual gradients around their mean, so the picture is centred on its tip.
import { type Box, emptyScene, type Mark, type Scene } from "../draw/scene.ts";
import type { Theme } from "../draw/theme.ts";
import { upright } from "./axes.ts";

export const THRESHOLDS = { norm: 0.9, inner: 0.9, ortho: 5.84 } as const;
const FARTHEST = 6; // powers of ten; where the mean gradient vanishes noise is without bound, and stands at the edge
const SMALLEST = 0.01; // the radial axis is linear below, logarithmic above

export interface TestValues {
  norm: number | null;
  inner: number | null;
  ortho: number | null;
}

/** From a relative length to pixels: log(1 + v / 0.01), `radius` pixels at `largest`. */
export function radial(value: number, largest: number, radius: number): number {
  return (radius * Math.log10(1 + Math.max(0, value) / SMALLEST)) / Math.log10(1 + largest / SMALLEST);
}

export interface TestsGeometry {
  cx: number;
  cy: number;
  radius: number;
  largest: number;
  ball: number | null; // radius of the noise ball
  along: number | null; // half height of the band along the gradient
  across: number | null; // half width of the band across it
  arrow: number; // length of the mean gradient
  thresholds: { norm: number; inner: number; ortho: number };
}

export function testsGeometry(values: TestValues, box: Box, largest: number): TestsGeometry {
  const radius = Math.min(box.width, box.height) / 2;
  const at = (value: number) => radial(value, largest, radius);
  const seen = (value: number | null) =>
    value === null || !Number.isFinite(value) ? null : Math.min(radius, at(value));
  return {
    cx: box.x + box.width / 2,
    cy: box.y + box.height / 2,
    radius,
    largest,
    ball: seen(values.norm),
    along: seen(values.inner),
    across: seen(values.ortho),
    arrow: at(1),
    thresholds: { norm: at(THRESHOLDS.norm), inner: at(THRESHOLDS.inner), ortho: at(THRESHOLDS.ortho) },
  };
}

export interface TestsGroup {
  values: TestValues;
  colors: { norm: string; inner: string; ortho: string };
}

export function testsScene(
  size: { width: number; height: number },
  box: Box,
  groups: TestsGroup[],
  theme: Theme,
): Scene {
  const scene = emptyScene(size.width, size.height);
  const finite = groups
    .flatMap(({ values }) => Object.values(values))
    .filter((v): v is number => v !== null && Number.isFinite(v));
  const largest = 10 ** Math.max(1, Math.min(FARTHEST, Math.ceil(Math.log10(Math.max(...finite, 1)))));
  const shapes = groups.map((group) => ({ group, at: testsGeometry(group.values, box, largest) }));
  const frame = shapes[0]?.at ?? testsGeometry({ norm: null, inner: null, ortho: null }, box, largest);
  scene.marks.push(...gridMarks(frame, theme));
  const many = groups.length > 5; // then the balls alone: the bands of ten runs are a fence
  for (const { group, at } of shapes)
    scene.marks.push(...bandMarks(many ? { ...at, along: null, across: null } : at, group, groups.length));
  scene.marks.push(
    ...thresholdMarks(frame, groups.length === 1 ? groups[0].colors : undefined, theme),
    ...arrowMarks(frame, theme),
  );
  return scene;
}

function gridMarks({ cx, cy, radius, largest }: TestsGeometry, theme: Theme): Mark[] {
  const marks: Mark[] = [
    { type: "rect", x: cx - radius, y: cy - radius, width: 2 * radius, height: 2 * radius, stroke: theme.line },
  ];
  for (let value = 0.1; value <= largest; value *= 10) {
    const r = radial(value, largest, radius);
    const last = value >= largest * 0.99;
    for (const sign of [-1, 1]) {
      const at = cx + sign * r;
      marks.push({ type: "line", xs: [at, at], ys: [cy - radius, cy + radius], stroke: theme.line });
      marks.push({
        type: "line",
        xs: [cx - radius, cx + radius],
        ys: [cy + sign * r, cy + sign * r],
        stroke: theme.line,
      });
      if (radius > 60 || !last)
        marks.push({
          type: "text",
          x: at,
          y: cy + radius + 10,
          text: String(Number(value.toPrecision(1))),
          anchor: last ? (sign < 0 ? "start" : "end") : "middle",
          color: theme.quiet,
        });
    }
  }
  marks.push({ type: "text", x: cx, y: cy + radius + 10, text: "0", anchor: "middle", color: theme.quiet });
  marks.push({
    type: "text",
    x: cx,
    y: cy + radius + 24,
    text: "across it, relative (log)",
    anchor: "middle",
    color: theme.quiet,
  });
  marks.push(upright(cx - radius - 10, cy, "along the gradient", theme));
  return marks;
}

function bandMarks(
  { cx, cy, radius, ball, along, across }: TestsGeometry,
  { colors }: TestsGroup,
  runs: number,
): Mark[] {
  const marks: Mark[] = [];
  const alpha = runs > 2 ? 0 : runs > 1 ? 0.07 : 0.16; // more than two would only be mud
  const several = runs > 1;
  const band = (box: Box, color: string, dash?: number[]) => {
    if (alpha) marks.push({ type: "rect", live: true, ...box, fill: color, alpha });
    marks.push({ type: "rect", live: true, ...box, stroke: color, weight: 1.2, dash });
  };
  if (across !== null)
    band(
      { x: cx - across, y: cy - radius, width: 2 * across, height: 2 * radius },
      colors.ortho,
      several ? [2, 2] : undefined,
    );
  if (along !== null)
    band(
      { x: cx - radius, y: cy - along, width: 2 * radius, height: 2 * along },
      colors.inner,
      several ? [6, 3] : undefined,
    );
  if (ball !== null) {
    if (alpha)
      marks.push({ type: "ellipse", live: true, cx, cy, rx: ball, ry: ball, fill: colors.norm, alpha: alpha * 1.6 });
    marks.push({ type: "ellipse", live: true, cx, cy, rx: ball, ry: ball, stroke: colors.norm, weight: 2 });
  }
  return marks;
}

function thresholdMarks(
  { cx, cy, radius, thresholds }: TestsGeometry,
  colors: TestsGroup["colors"] | undefined,
  theme: Theme,
): Mark[] {
  const dash = [4, 3];
  const color = (name: "norm" | "inner" | "ortho") => colors?.[name] ?? theme.quiet;
  const marks: Mark[] = [
    { type: "ellipse", cx, cy, rx: thresholds.norm, ry: thresholds.norm, stroke: color("norm"), dash },
  ];
  for (const sign of [-1, 1]) {
    const y = cy + sign * thresholds.inner;
    const x = cx + sign * thresholds.ortho;
    marks.push({ type: "line", xs: [cx - radius, cx + radius], ys: [y, y], stroke: color("inner"), dash });
    marks.push({ type: "line", xs: [x, x], ys: [cy - radius, cy + radius], stroke: color("ortho"), dash });
  }
  return marks;
}

// From its own tail to its tip at the centre: noise that reaches the tail is as large as the gradient.
function arrowMarks({ cx, cy, arrow }: TestsGeometry, theme: Theme): Mark[] {
  return [
    { type: "line", xs: [cx, cx], ys: [cy + arrow, cy], stroke: theme.text, weight: 2 },
    { type: "line", xs: [cx - 5, cx, cx + 5], ys: [cy + 8, cy, cy + 8], stroke: theme.text, weight: 2 },
    { type: "text", x: cx + 6, y: cy + 0.55 * arrow, text: "mean gradient", anchor: "start", color: theme.text },
  ];
}
