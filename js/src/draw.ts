// Marks onto a canvas, and text marks into the page: letters in the DOM stay sharp, selectable and readable aloud.
import type { DotsMark, Mark, Scene, TextMark } from "./scene.ts";

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

function drawImage(ctx: CanvasRenderingContext2D, mark: Extract<Mark, { type: "image" }>): void {
  const pixels = document.createElement("canvas");
  pixels.width = mark.columns;
  pixels.height = mark.rows;
  const inner = pixels.getContext("2d");
  if (!inner) return;
  const data = inner.createImageData(mark.columns, mark.rows);
  data.data.set(mark.rgba);
  inner.putImageData(data, 0, 0);
  ctx.imageSmoothingEnabled = false;
  ctx.drawImage(pixels, mark.x, mark.y, mark.width, mark.height);
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

function drawMarks(canvas: HTMLCanvasElement, size: Scene, marks: Mark[], ratio: number, withText = false): void {
  const [width, height] = [Math.round(size.width * ratio), Math.round(size.height * ratio)];
  const fits = canvas.width === width && canvas.height === height;
  if (!fits) [canvas.width, canvas.height] = [width, height]; // clears it, too
  const ctx = canvas.getContext("2d");
  if (!ctx) return;
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  // Printers replay what was drawn: clearing the upper canvas would wipe the lower one off the paper.
  if (fits) ctx.clearRect(0, 0, size.width, size.height);
  for (const mark of marks) drawMark(ctx, mark, withText);
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

/** Two canvases: what rests below, what follows the cursor above. The lower one is redrawn only when it differs. */
export class Painter {
  private drawn: { marks: Mark[]; width: number; height: number; ratio: number } | null = null;
  constructor(
    private readonly rest: HTMLCanvasElement,
    private readonly moving: HTMLCanvasElement,
  ) {}

  /** Draw everything anew next time, on blank canvases: what a printer needs. */
  forget(): void {
    this.drawn = null;
    this.rest.width = this.moving.width = 0;
  }

  draw(scene: Scene, ratio: number): void {
    const marks = scene.marks.filter((mark) => mark.type !== "text" && !isLive(mark));
    const { width, height } = scene;
    const old = this.drawn;
    const same =
      old?.width === width &&
      old.height === height &&
      old.ratio === ratio &&
      old.marks.length === marks.length &&
      marks.every((mark, i) => sameMark(mark, old.marks[i]));
    if (!same) drawMarks(this.rest, scene, marks, ratio);
    this.drawn = { marks, width, height, ratio };
    drawMarks(this.moving, scene, scene.marks.filter(isLive), ratio);
  }
}

const shift = { start: "0", middle: "-50%", end: "-100%" };
const lift = { top: "0", middle: "-50%", bottom: "-100%" };

/** Text marks as spans that are kept and reused: an update touches only what changed. */
export class TextLayer {
  private spans: { element: HTMLSpanElement; key: string }[] = [];
  constructor(private readonly parent: HTMLElement) {}

  update(marks: Mark[]): void {
    const texts = marks.filter((mark): mark is TextMark => mark.type === "text");
    texts.forEach((mark, i) => {
      const key = JSON.stringify(mark);
      if (!this.spans[i]) {
        const element = document.createElement("span");
        this.parent.append(element);
        this.spans[i] = { element, key: "" };
      }
      if (this.spans[i].key === key) return;
      this.spans[i].key = key;
      place(this.spans[i].element, mark);
    });
    for (const { element } of this.spans.splice(texts.length)) element.remove();
  }
}

function place(element: HTMLSpanElement, mark: TextMark): void {
  element.textContent = mark.text;
  element.title = mark.title ?? "";
  const { style } = element;
  style.left = `${mark.x}px`;
  style.top = `${mark.y}px`;
  style.color = mark.color;
  style.fontSize = `${(mark.size ?? TEXT_SIZE) / 16}em`;
  style.fontWeight = mark.bold ? "600" : "400";
  const [dx, dy] = [shift[mark.anchor ?? "start"], lift[mark.baseline ?? "middle"]];
  style.transform = mark.turned ? `translate(-50%, -50%) rotate(-90deg)` : `translate(${dx}, ${dy})`;
}
