// What a panel shows, as plain marks. One list serves the screen, PNG, SVG and the tests.
import type { Scale } from "./scale.ts";

export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}
interface Paint {
  live?: boolean; // moves with the cursor: drawn on a layer of its own
  stroke?: string;
  fill?: string;
  weight?: number; // of the stroke, in pixels
  dash?: number[];
  alpha?: number;
  clip?: Box;
}
export interface LineMark extends Paint {
  type: "line";
  xs: ArrayLike<number>; // NaN breaks the line
  ys: ArrayLike<number>;
  closed?: boolean;
  curve?: boolean; // xs never go back and the colour is #rrggbb: drawn by Raster
}
export interface DotsMark extends Paint {
  type: "dots";
  xs: ArrayLike<number>;
  ys: ArrayLike<number>;
  radius: number;
}
export interface RectMark extends Paint, Box {
  type: "rect";
}
export interface BarsMark extends Paint {
  type: "bars"; // many rectangles of one colour: x, y, width, height, x, y, ...
  boxes: ArrayLike<number>;
}
export interface EllipseMark extends Paint {
  type: "ellipse";
  cx: number;
  cy: number;
  rx: number;
  ry: number;
}
export interface ImageMark extends Box {
  type: "image";
  columns: number;
  rows: number;
  rgba: Uint8ClampedArray;
  of?: object; // what looks like this now
}
export interface TextMark {
  type: "text";
  x: number;
  y: number;
  text: string;
  anchor?: "start" | "middle" | "end";
  baseline?: "top" | "middle" | "bottom";
  color: string;
  size?: number;
  bold?: boolean;
  turned?: boolean; // read from bottom to top
  title?: string; // the whole text, where it was shortened
}
export type Mark = LineMark | DotsMark | RectMark | BarsMark | EllipseMark | ImageMark | TextMark;

/** A region whose horizontal axis is the shared one (step, epoch or time): it can be hovered, dragged and zoomed. */
export interface TimeFrame extends Box {
  xscale: Scale;
}
/** A region that answers a click or a hover with words. */
export interface Spot extends Box {
  hint: string;
  layer?: string; // a click chooses this layer
  tell?(x: number): string; // the hint for a place on the shared axis
  act?(): void; // what a click does outside of the chart
}
export interface LegendItem {
  label: string;
  title?: string; // the whole name, where it was shortened
  color: string;
  dash?: number[];
}
export interface Scene {
  width: number;
  height: number;
  marks: Mark[];
  frames: TimeFrame[];
  spots: Spot[];
  legend: LegendItem[];
}

export function emptyScene(width: number, height: number): Scene {
  return { width, height, marks: [], frames: [], spots: [], legend: [] };
}

/** Instead of a chart: one sentence, broken into lines that fit. */
export function messageScene(width: number, height: number, message: string, color: string): Scene {
  const scene = emptyScene(width, height);
  const perLine = Math.max(16, Math.floor((width - 24) / 6.4));
  const lines: string[] = [];
  for (const word of message.split(" ")) {
    const last = lines.at(-1);
    if (last !== undefined && last.length + word.length < perLine) lines[lines.length - 1] = `${last} ${word}`;
    else lines.push(word);
  }
  lines.slice(0, 5).forEach((line, i, all) => {
    const text = i < all.length - 1 ? `${line} ` : line; // read aloud or copied, the lines are one sentence
    const y = height / 2 + (i - (all.length - 1) / 2) * 17;
    scene.marks.push({ type: "text", x: width / 2, y, text, anchor: "middle", baseline: "middle", color, size: 12 });
  });
  return scene;
}
