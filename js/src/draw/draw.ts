// Marks onto a canvas, and text marks into the page: letters in the DOM stay sharp, selectable and readable aloud.
import { Raster } from "./raster.ts";
import type { Box, DotsMark, ImageMark, LineMark, Mark, Scene, TextMark } from "./scene.ts";

export const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
export const TEXT_SIZE = 11;

function trace(ctx: CanvasRenderingContext2D, xs: ArrayLike<number>, ys: ArrayLike<number>): void {
  let pen = false;
  for (let i = 0; i < xs.length; i++) {
    const [x, y] = [xs[i], ys[i]];
    if (Number.isNaN(x) || Number.isNaN(y)) pen = false;
    else if (pen) ctx.lineTo(x, y);
    else {
      ctx.moveTo(x, y);
      pen = true;
    }
  }
}

// Small dots as squares: thousands of arcs are what makes a frame slow, and nobody sees the corners.
function dots(ctx: CanvasRenderingContext2D, { xs, ys, radius }: DotsMark): void {
  for (let i = 0; i < xs.length; i++) {
    if (Number.isNaN(ys[i])) continue;
    if (radius < 2) ctx.rect(xs[i] - radius, ys[i] - radius, 2 * radius, 2 * radius);
    else {
      ctx.moveTo(xs[i] + radius, ys[i]);
      ctx.arc(xs[i], ys[i], radius, 0, 2 * Math.PI);
    }
  }
}

function shape(ctx: CanvasRenderingContext2D, mark: Exclude<Mark, TextMark>): void {
  ctx.beginPath();
  if (mark.type === "line") {
    trace(ctx, mark.xs, mark.ys);
    if (mark.closed) ctx.closePath();
  } else if (mark.type === "rect") ctx.rect(mark.x, mark.y, mark.width, mark.height);
  else if (mark.type === "bars") {
    const b = mark.boxes;
    for (let i = 0; i < b.length; i += 4) ctx.rect(b[i], b[i + 1], b[i + 2], b[i + 3]);
  } else if (mark.type === "ellipse") ctx.ellipse(mark.cx, mark.cy, mark.rx, mark.ry, 0, 0, 2 * Math.PI);
  else if (mark.type === "dots") dots(ctx, mark);
}

const pictures = new WeakMap<object, { pixels: HTMLCanvasElement; rgba: Uint8ClampedArray }>();

/** One canvas for each picture, or for all that one and the same thing looks like: those of a moving hand are many. */
function makePicture({ columns, rows, rgba, of = rgba }: ImageMark): HTMLCanvasElement {
  const known = pictures.get(of);
  if (known?.rgba === rgba) return known.pixels;
  const pixels = known?.pixels ?? document.createElement("canvas");
  if (pixels.width !== columns) pixels.width = columns;
  if (pixels.height !== rows) pixels.height = rows;
  const inner = pixels.getContext("2d");
  const data = inner?.createImageData(columns, rows);
  data?.data.set(rgba);
  if (data) inner?.putImageData(data, 0, 0);
  pictures.set(of, { pixels, rgba });
  return pixels;
}

function drawImage(ctx: CanvasRenderingContext2D, mark: ImageMark): void {
  ctx.imageSmoothingEnabled = false;
  ctx.drawImage(makePicture(mark), mark.x, mark.y, mark.width, mark.height);
}

function drawMark(ctx: CanvasRenderingContext2D, mark: Mark, withText: boolean): void {
  if (mark.type === "text") {
    if (withText) drawText(ctx, mark);
    return;
  }
  if (mark.type === "image") {
    drawImage(ctx, mark);
    return;
  }
  ctx.save();
  if (mark.clip) {
    ctx.beginPath();
    ctx.rect(mark.clip.x, mark.clip.y, mark.clip.width, mark.clip.height);
    ctx.clip();
  }
  ctx.globalAlpha = mark.alpha ?? 1;
  shape(ctx, mark);
  if (mark.fill) {
    ctx.fillStyle = mark.fill;
    ctx.fill();
  }
  if (mark.stroke) {
    ctx.strokeStyle = mark.stroke;
    ctx.lineWidth = mark.weight ?? 1;
    ctx.lineJoin = "round";
    if (mark.dash) ctx.setLineDash(mark.dash);
    ctx.stroke();
  }
  ctx.restore();
}

function drawText(ctx: CanvasRenderingContext2D, mark: TextMark): void {
  ctx.save();
  ctx.font = `${mark.bold ? 600 : 400} ${mark.size ?? TEXT_SIZE}px ${FONT}`;
  ctx.fillStyle = mark.color;
  ctx.textAlign = mark.anchor === "middle" ? "center" : (mark.anchor ?? "start");
  ctx.textBaseline = mark.baseline ?? "middle";
  ctx.translate(mark.x, mark.y);
  if (mark.turned) ctx.rotate(-Math.PI / 2);
  ctx.fillText(mark.text, 0, 0);
  ctx.restore();
}

export function drawScene(canvas: HTMLCanvasElement, scene: Scene, ratio: number, withText = false): void {
  drawMarks(canvas, scene, scene.marks, ratio, withText);
}

function drawMarks(
  canvas: HTMLCanvasElement,
  size: Scene,
  marks: Mark[],
  ratio: number,
  withText = false,
  ground?: string,
  under?: HTMLCanvasElement,
): void {
  const [width, height] = [Math.round(size.width * ratio), Math.round(size.height * ratio)];
  const fits = canvas.width === width && canvas.height === height;
  if (!fits) [canvas.width, canvas.height] = [width, height]; // clears it, too
  const ctx = canvas.getContext("2d", { alpha: ground === undefined });
  if (!ctx) return;
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  if (under?.width && under.height) ctx.drawImage(under, 0, 0, size.width, size.height);
  else if (ground !== undefined) {
    ctx.fillStyle = ground;
    ctx.fillRect(0, 0, size.width, size.height);
  } else if (fits) ctx.clearRect(0, 0, size.width, size.height);
  for (let i = 0; i < marks.length; ) {
    const curves = curvesFrom(marks, i);
    if (curves.length) drawCurves(ctx, curves, ratio, ground, withText || under ? null : marks.slice(0, i));
    else drawMark(ctx, marks[i], withText);
    i += Math.max(1, curves.length);
  }
}

/** The curves that follow each other from here on and share a clip box. */
function curvesFrom(marks: Mark[], first: number): LineMark[] {
  const curves: LineMark[] = [];
  for (let i = first; i < marks.length; i++) {
    const mark = marks[i];
    if (mark.type !== "line" || !mark.curve || !mark.clip || !mark.stroke) break;
    if (curves.length && JSON.stringify(mark.clip) !== JSON.stringify(curves[0].clip)) break;
    curves.push(mark);
  }
  return curves;
}

let sheet: HTMLCanvasElement | null = null;
const sheets = new Map<string, { raster: Raster; image: ImageData }>();

// Charts come in a few sizes, and a frame draws twenty: their sheets are used again.
function blankSheet(w: number, h: number, left: number, top: number, ratio: number, ground?: string) {
  const key = `${w} ${h} ${ratio}`;
  let own = sheets.get(key);
  if (!own) {
    const raster = new Raster(w, h, left, top, ratio);
    own = { raster, image: new ImageData(raster.pixels, w, h) };
    if (sheets.size >= 12) sheets.delete(sheets.keys().next().value as string);
    sheets.set(key, own);
  }
  Object.assign(own.raster.clear(ground), { left, top });
  return own;
}

const isGrid = (mark: Mark): mark is LineMark =>
  mark.type === "line" && mark.xs.length === 2 && mark.ys[0] === mark.ys[1] && !mark.dash && !mark.alpha && !mark.fill;

/** Whether a mark may have left ink inside a box; marks that are not examined in detail count as yes. */
function mayTouch(mark: Mark, { x, y, width, height }: Box): boolean {
  if (mark.type === "text") return false;
  let sides: [number, number, number, number] | null = null;
  if (mark.type === "rect" || mark.type === "image")
    sides = [mark.x, mark.x + mark.width, mark.y, mark.y + mark.height];
  else if (mark.type === "ellipse")
    sides = [mark.cx - mark.rx, mark.cx + mark.rx, mark.cy - mark.ry, mark.cy + mark.ry];
  else if (mark.clip) sides = [mark.clip.x, mark.clip.x + mark.clip.width, mark.clip.y, mark.clip.y + mark.clip.height];
  else if (mark.type === "line" && mark.xs.length < 100) {
    const [xs, ys] = [Array.from(mark.xs), Array.from(mark.ys)];
    sides = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  }
  if (!sides || sides.some(Number.isNaN)) return true;
  const [left, right, top, bottom] = sides;
  return left < x + width && right > x && top < y + height && bottom > y;
}

/** The grid below a box of curves, if nothing else is below it. */
function gridBelow(marks: Mark[], box: Box): LineMark[] | null {
  const below = marks.filter((mark) => mayTouch(mark, box) || isGrid(mark));
  return below.every(isGrid) ? below : null;
}

// Where curves have nothing but a grid below them, their pixels are the picture and replace what is there: mixing them in
// from another canvas would copy that canvas first.
function drawCurves(
  ctx: CanvasRenderingContext2D,
  curves: LineMark[],
  ratio: number,
  ground: string | undefined,
  before: Mark[] | null,
): void {
  const { x, y, width, height } = curves[0].clip as Box;
  const [left, top] = [Math.floor(x * ratio), Math.floor(y * ratio)];
  const [w, h] = [Math.ceil((x + width) * ratio) - left, Math.ceil((y + height) * ratio) - top];
  if (w < 1 || h < 1) return;
  const grid = before && gridBelow(before, curves[0].clip as Box);
  const { raster, image } = blankSheet(w, h, left, top, ratio, grid ? ground : undefined);
  for (const { xs, ys, stroke, weight } of grid ?? [])
    raster.draw({ xs, ys, color: stroke as string, weight: weight ?? 1 });
  for (const { xs, ys, stroke, weight, alpha, dash } of curves)
    raster.draw({ xs, ys, color: stroke as string, weight: weight ?? 1, alpha, dash });
  if (grid) {
    ctx.putImageData(image, left, top);
    return;
  }
  sheet ??= document.createElement("canvas");
  if (sheet.width < w || sheet.height < h)
    [sheet.width, sheet.height] = [Math.max(w, sheet.width), Math.max(h, sheet.height)];
  sheet.getContext("2d")?.putImageData(image, 0, 0);
  ctx.save();
  ctx.setTransform(1, 0, 0, 1, 0, 0);
  ctx.drawImage(sheet, 0, 0, w, h, left, top, w, h);
  ctx.restore();
}

const LONGEST_COMPARED = 4096;
const isLive = (mark: Mark) => "live" in mark && mark.live === true;

function sameList(a: ArrayLike<unknown>, b: ArrayLike<unknown>): boolean {
  if (a.length !== b.length || a.length > LONGEST_COMPARED) return false;
  for (let i = 0; i < a.length; i++) if (!Object.is(a[i], b[i])) return false;
  return true;
}

/** Whether two marks would be drawn alike. Very long lists count as equal only if they are the same list. */
function sameMark(a: Mark, b: Mark): boolean {
  const keys = Object.keys(a) as (keyof Mark)[];
  if (keys.length !== Object.keys(b).length) return false;
  return keys.every((key) => {
    const [x, y] = [a[key] as unknown, b[key] as unknown];
    if (Object.is(x, y)) return true;
    if (Array.isArray(x) && Array.isArray(y)) return sameList(x, y);
    return key === ("clip" as string) && JSON.stringify(x) === JSON.stringify(y);
  });
}

const sameMarks = (a: Mark[], b: Mark[]) => a.length === b.length && a.every((mark, i) => sameMark(mark, b[i]));

/**
 * Nothing new, no picture. New data is drawn straight away; where only the cursor moves, what rests is drawn once, aside,
 * and each picture is a copy of it plus what follows the cursor.
 */
export class Painter {
  private drawn: { rest: Mark[]; moving: Mark[]; place: string } | null = null;
  private aside: HTMLCanvasElement | null = null;
  private rests = false; // the marks that rest are aside
  constructor(private readonly canvas: HTMLCanvasElement) {}

  /** Draw everything anew next time, on a blank canvas: a printer replays what was drawn, sharply. */
  forget(): void {
    this.drawn = null;
    this.canvas.width = 0;
  }

  /** On an opaque `ground`: without a graphics card, what is behind a canvas that could be seen through is mixed in slowly. */
  draw(scene: Scene, ratio: number, ground: string): void {
    const place = [scene.width, scene.height, ratio, ground].join(" ");
    const old = this.drawn?.place === place ? this.drawn : null;
    if (!old) fitCanvas(this.canvas, scene, ratio);
    const rest = scene.marks.filter((mark) => mark.type !== "text" && !isLive(mark));
    const moving = scene.marks.filter(isLive);
    const rested = old !== null && sameMarks(rest, old.rest);
    if (rested && sameMarks(moving, old.moving)) return;
    this.drawn = { rest: rested ? old.rest : rest, moving, place };
    if (!rested) {
      this.rests = false;
      drawMarks(this.canvas, scene, [...rest, ...moving], ratio, false, ground);
      return;
    }
    this.aside ??= document.createElement("canvas");
    if (!this.rests) drawMarks(this.aside, scene, rest, ratio, false, ground);
    this.rests = true;
    drawMarks(this.canvas, scene, moving, ratio, false, ground, this.aside);
  }
}

// In the page it is as large as it was drawn: stretched by a part of a pixel, it would be blurred, and slow to show. Where one
// pixel of the canvas is one of the screen, nothing has to be smoothed, either.
function fitCanvas({ style }: HTMLCanvasElement, { width, height }: Scene, ratio: number): void {
  style.width = `${width}px`;
  style.height = `${height}px`;
  const exact =
    ratio === globalThis.devicePixelRatio && Number.isInteger(width * ratio) && Number.isInteger(height * ratio);
  style.imageRendering = exact ? "pixelated" : "";
}

const shift = { start: "0", middle: "-50%", end: "-100%" };
const lift = { top: "0", middle: "-50%", bottom: "-100%" };

const MARKED = ["text", "title", "x", "y", "color", "size", "bold", "anchor", "baseline", "turned"] as const;

/** Text marks as spans that are kept and reused: an update touches only what changed. */
export class TextLayer {
  private spans: { element: HTMLSpanElement; mark: TextMark | null }[] = [];
  constructor(private readonly parent: HTMLElement) {}

  update(marks: Mark[]): void {
    const texts = marks.filter((mark): mark is TextMark => mark.type === "text");
    texts.forEach((mark, i) => {
      if (!this.spans[i]) {
        const element = document.createElement("span");
        this.parent.append(element);
        this.spans[i] = { element, mark: null };
      }
      const own = this.spans[i];
      const changed = MARKED.filter((name) => own.mark?.[name] !== mark[name]);
      if (own.mark && !changed.length) return;
      place(own.element, mark, own.mark ? changed : MARKED);
      own.mark = mark;
    });
    for (const { element } of this.spans.splice(texts.length)) element.remove();
  }
}

function place(element: HTMLSpanElement, mark: TextMark, changed: readonly (keyof TextMark)[]): void {
  const { style } = element;
  for (const name of changed)
    if (name === "text") element.textContent = mark.text;
    else if (name === "title") element.title = mark.title ?? "";
    else if (name === "x") style.left = `${mark.x}px`;
    else if (name === "y") style.top = `${mark.y}px`;
    else if (name === "color") style.color = mark.color;
    else if (name === "size") style.fontSize = `${(mark.size ?? TEXT_SIZE) / 16}em`;
    else if (name === "bold") style.fontWeight = mark.bold ? "600" : "400";
    else style.transform = turn(mark);
}

function turn({ anchor, baseline, turned }: TextMark): string {
  if (turned) return "translate(-50%, -50%) rotate(-90deg)";
  return `translate(${shift[anchor ?? "start"]}, ${lift[baseline ?? "middle"]})`;
}
