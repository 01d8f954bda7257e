// Curves as pixels, by ourselves: a canvas without a graphics card takes a hundred times longer to stroke a noisy line.
// A curve over time has one place per column of pixels: from its lowest to its highest point there, plus the pen.
import { parseColor } from "./theme.ts";

export interface CurveInk {
  xs: ArrayLike<number>; // never going back; NaN breaks the line
  ys: ArrayLike<number>;
  color: string; // #rrggbb
  weight: number;
  alpha?: number;
  dash?: number[];
}

const FAR = 1e6;

/** An opaque colour as one number, in the order of bytes that canvases have. */
export const pack = (r: number, g: number, b: number) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;

export class Raster {
  readonly pixels: Uint8ClampedArray<ArrayBuffer>;
  private readonly words: Uint32Array;
  private readonly low: Float64Array;
  private readonly high: Float64Array;

  /** A sheet of `width` x `height` device pixels whose upper left corner is at (left, top), in device pixels too. */
  constructor(
    readonly width: number,
    readonly height: number,
    public left: number,
    public top: number,
    private readonly ratio: number,
  ) {
    this.pixels = new Uint8ClampedArray(width * height * 4);
    this.words = new Uint32Array(this.pixels.buffer);
    this.low = new Float64Array(width);
    this.high = new Float64Array(width);
  }

  clear(ground?: string): this {
    const [r, g, b] = ground ? parseColor(ground) : [0, 0, 0];
    this.words.fill(ground ? pack(r, g, b) : 0);
    return this;
  }

  draw(ink: CurveInk): void {
    const { width, ratio } = this;
    this.low.fill(FAR);
    this.high.fill(-FAR);
    this.cover(ink);
    const [r, g, b] = parseColor(ink.color);
    const alpha = ink.alpha ?? 1;
    const half = Math.max(0.5, (ink.weight * ratio) / 2);
    const period = ink.dash?.reduce((sum, part) => sum + part, 0) ?? 0;
    for (let column = 0; column < width; column++) {
      if (this.high[column] < this.low[column]) continue;
      if (period && !isInked(ink.dash as number[], ((column + this.left) / ratio) % period)) continue;
      this.span(column, this.low[column] - half, this.high[column] + half, r, g, b, alpha);
    }
  }

  /** The lowest and the highest point of the line in every column. */
  private cover({ xs, ys }: CurveInk): void {
    const { ratio, left, top } = this;
    let [x0, y0] = [Number.NaN, Number.NaN];
    for (let i = 0; i < xs.length; i++) {
      const x = xs[i] * ratio - left;
      const y = Math.max(-FAR / 2, Math.min(FAR / 2, ys[i] * ratio - top));
      if (x - x === 0 && y - y === 0) {
        if (x0 - x0 === 0) this.segment(x0, y0, x, y);
        else this.touch(Math.floor(x), y, y);
      }
      x0 = y - y === 0 ? x : Number.NaN;
      y0 = y;
    }
  }

  private segment(x0: number, y0: number, x1: number, y1: number): void {
    const first = Math.floor(x0);
    const last = Math.floor(x1);
    if (last <= first) {
      this.touch(first, y0, y1);
      return;
    }
    const slope = (y1 - y0) / (x1 - x0);
    const from = Math.max(first, -1);
    const to = Math.min(last, this.width);
    for (let column = from; column <= to; column++) {
      const a = column === first ? y0 : y0 + slope * (column - x0);
      const b = column === last ? y1 : y0 + slope * (column + 1 - x0);
      this.touch(column, a, b);
    }
  }

  private touch(column: number, a: number, b: number): void {
    if (column < 0 || column >= this.width) return;
    const small = a < b ? a : b;
    const large = a < b ? b : a;
    if (small < this.low[column]) this.low[column] = small;
    if (large > this.high[column]) this.high[column] = large;
  }

  // Pixels that the span only touches get part of the ink, so that a gentle slope has no steps.
  private span(column: number, from: number, to: number, r: number, g: number, b: number, alpha: number): void {
    const { width, height, words } = this;
    const first = Math.floor(from);
    const last = Math.ceil(to) - 1;
    if (last < 0 || first >= height) return;
    if (first === last) this.mix(first, column, r, g, b, alpha * (to - from));
    else {
      this.mix(first, column, r, g, b, alpha * (first + 1 - from));
      this.mix(last, column, r, g, b, alpha * (to - last));
    }
    const begin = Math.max(0, first + 1);
    const end = Math.min(height, last);
    if (alpha < 1) for (let y = begin; y < end; y++) this.mix(y, column, r, g, b, alpha);
    else {
      const word = pack(r, g, b);
      for (let at = begin * width + column, stop = end * width; at < stop; at += width) words[at] = word;
    }
  }

  /** One pixel over what is there. */
  private mix(y: number, x: number, r: number, g: number, b: number, alpha: number): void {
    if (y < 0 || y >= this.height || alpha <= 0) return;
    const { pixels } = this;
    const at = (y * this.width + x) * 4;
    const below = pixels[at + 3];
    if (!below) {
      pixels[at] = r;
      pixels[at + 1] = g;
      pixels[at + 2] = b;
      pixels[at + 3] = alpha * 255;
      return;
    }
    const rest = (below / 255) * (1 - alpha);
    const total = alpha + rest;
    pixels[at] = (r * alpha + pixels[at] * rest) / total;
    pixels[at + 1] = (g * alpha + pixels[at + 1] * rest) / total;
    pixels[at + 2] = (b * alpha + pixels[at + 2] * rest) / total;
    pixels[at + 3] = total * 255;
  }
}

function isInked(dash: number[], place: number): boolean {
  let left = place;
  for (let i = 0; i < dash.length; i++) {
    if (left < dash[i]) return i % 2 === 0;
    left -= dash[i];
  }
  return false;
}
