// Mouse, touch and keyboard on a chart: hover, click to choose a step, drag to zoom or to move, arrows without a mouse.

import type { Context } from "../contract/panel.ts";
import { formatNumber } from "../data/format.ts";
import { h, refill, swatch } from "../draw/dom.ts";
import type { Box, Scene, TimeFrame } from "../draw/scene.ts";

export interface PointerHost {
  /** `x` in units of the shared axis; null = the pointer left. */
  hover(x: number | null): void;
  choose(x: number): void;
  zoom(range: [number, number] | null): void;
  stepBy(records: number): void;
  stepTo(end: "first" | "last"): void;
  zoomBy(factor: number, x?: number): void;
  /** Moves the visible part by a share of its width, counted from `from` if that is given. */
  pan(share: number, from?: [number, number]): void;
  readonly view: [number, number];
  layer(name: string): void;
  /** A step and a layer at once. */
  pick(x: number, layer: string): void;
  announce(text: string): void;
}
interface Charted {
  scene: Scene;
  context: Context | null;
  describe(ctx: Context): Described[];
}
/** One line of a tip: what it says, and the colour of what it is about. */
export interface Described {
  text: string;
  color?: string;
}
interface Drag {
  x: number;
  frame: TimeFrame;
  pans: boolean;
  moved: boolean;
  view: [number, number];
}

/** What hands can do, in the words of the help. */
export const gestures = [
  "Click a time chart to choose the step; drag across it to zoom; double-click to see everything again.",
  "Drag with Shift or along the axis to move, Ctrl + wheel (or a pinch) zooms, Shift + wheel moves. With a finger: drag to move, pinch to zoom.",
  "Keys: ← → step, with Shift ten; Home, End; + − zoom, 0 everything; [ ] move.",
];

const AXIS = 30; // pixels below a chart that belong to its axis
const within = (box: Box, x: number, y: number, slack = 0, below = slack) =>
  x >= box.x - slack && x <= box.x + box.width + slack && y >= box.y - slack && y <= box.y + box.height + below;

export class Pointer {
  private drag: Drag | null = null;
  private touches = new Map<number, number>(); // pointer -> x, while fingers are down
  private pinch: { gap: number; x: number } | null = null;
  private looks = 0; // places that were pointed at
  private readonly tip = h("div", { class: "ck-tip", hidden: true, "aria-hidden": "true" });
  private readonly brush = h("div", { class: "ck-brush", hidden: true });

  constructor(
    private readonly element: HTMLElement,
    private readonly chart: Charted,
    private readonly host: PointerHost,
    signal: AbortSignal,
  ) {
    element.append(this.brush, this.tip);
    const on = <K extends keyof HTMLElementEventMap>(name: K, act: (event: HTMLElementEventMap[K]) => void) =>
      element.addEventListener(name, act, { signal });
    on("pointermove", (event) => this.move(event));
    on("pointerleave", () => !this.drag && this.leave());
    on("pointerdown", (event) => this.down(event));
    on("pointerup", (event) => this.up(event));
    on("pointercancel", () => this.leave());
    on("dblclick", () => this.host.zoom(null));
    on("keydown", (event) => this.key(event));
    on("focus", () => this.speak());
    element.addEventListener("wheel", (event) => this.wheel(event), { signal, passive: false });
  }

  private place(event: MouseEvent): { x: number; y: number } {
    const box = this.element.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  private frameAt(x: number, y: number): TimeFrame | undefined {
    const { frames } = this.chart.scene;
    return frames.find((own) => within(own, x, y, 4)) ?? frames.find((own) => within(own, x, y, 4, AXIS));
  }

  private move(event: PointerEvent): void {
    const { x, y } = this.place(event);
    if (this.touches.has(event.pointerId)) this.touches.set(event.pointerId, x);
    if (this.pinch) this.movePinch();
    else if (this.drag) this.moveDrag(this.drag, x);
    else this.hoverAt(x, y, event.shiftKey);
  }

  private hoverAt(x: number, y: number, shift: boolean): void {
    const spot = this.chart.scene.spots.find((own) => within(own, x, y));
    const frame = this.chart.scene.frames.find((own) => within(own, x, y, 4));
    const onAxis = !frame && this.frameAt(x, y) !== undefined;
    this.host.hover(frame ? this.clamp(frame, x) : null);
    const zoomed = this.chart.context?.state.zoom != null;
    const grab = zoomed && (onAxis || (shift && frame));
    this.element.style.cursor = grab
      ? "grab"
      : spot?.act || spot?.layer !== undefined
        ? "pointer"
        : frame
          ? "crosshair"
          : "";
    const look = ++this.looks;
    if (spot) this.showTip([{ text: frame && spot.tell ? spot.tell(this.clamp(frame, x)) : spot.hint }], x, y);
    else if (frame) this.showValues(look, x, y);
    else this.tip.hidden = true;
  }

  // The picture that knows the values may take several frames; whoever moved on meanwhile is not told about this place.
  private showValues(look: number, x: number, y: number, frames = 60): void {
    requestAnimationFrame(() => {
      if (!this.chart.context || this.drag || look !== this.looks) return;
      const lines = this.hoverLines();
      if (!lines.length && frames) this.showValues(look, x, y, frames - 1);
      else this.showTip(lines, x, y);
    });
  }

  private hoverLines(): Described[] {
    const ctx = this.chart.context;
    if (!ctx || ctx.hover === null) return [];
    return [{ text: `step ${formatNumber(ctx.hover)}` }, ...this.chart.describe(ctx)];
  }

  private clamp(frame: TimeFrame, x: number): number {
    return frame.xscale.from(Math.max(frame.x, Math.min(frame.x + frame.width, x)));
  }

  private leave(): void {
    this.drag = this.pinch = null;
    this.touches.clear();
    this.looks++;
    this.tip.hidden = true;
    this.brush.hidden = true;
    this.host.hover(null);
  }

  private down(event: PointerEvent): void {
    if (event.button > 1) return;
    const { x, y } = this.place(event);
    const frame = this.frameAt(x, y);
    if (!frame) return;
    const touch = event.pointerType === "touch";
    if (touch) this.touches.set(event.pointerId, x);
    if (this.touches.size === 2) {
      this.drag = null;
      this.pinch = { gap: this.gap, x: this.clamp(frame, this.middle) };
      return;
    }
    const pans = touch || event.shiftKey || event.button === 1 || !within(frame, x, y, 4);
    this.drag = { x, frame, pans, moved: false, view: this.host.view };
    if (event.button === 1) event.preventDefault(); // no scrolling by the wheel's button
    if (!touch) this.element.setPointerCapture?.(event.pointerId); // so that it ends here, wherever it ends
  }

  private moveDrag(drag: Drag, x: number): void {
    drag.moved ||= Math.abs(x - drag.x) >= 5;
    if (!drag.pans) this.showBrush(drag, x);
    else if (drag.moved) {
      this.element.style.cursor = "grabbing";
      this.tip.hidden = true;
      this.host.pan((drag.x - x) / drag.frame.width, drag.view);
    }
  }

  private get gap(): number {
    const [a, b] = [...this.touches.values()];
    return Math.max(10, Math.abs(a - b));
  }

  private get middle(): number {
    const [a, b] = [...this.touches.values()];
    return (a + b) / 2;
  }

  private movePinch(): void {
    if (!this.pinch || this.touches.size < 2) return;
    const { gap } = this;
    this.host.zoomBy(this.pinch.gap / gap, this.pinch.x);
    this.pinch.gap = gap;
  }

  private up(event: PointerEvent): void {
    const { x, y } = this.place(event);
    this.touches.delete(event.pointerId);
    const { drag, pinch } = this;
    this.drag = null;
    this.brush.hidden = true;
    if (pinch) {
      if (!this.touches.size) this.pinch = null;
      return;
    }
    const spot = this.chart.scene.spots.find((own) => within(own, x, y));
    if (spot && !drag) {
      if (spot.act) spot.act();
      else if (spot.layer !== undefined) this.host.layer(spot.layer);
    }
    if (!drag || (drag.pans && drag.moved)) return;
    if (!drag.moved) {
      if (!within(drag.frame, x, y, 4)) return;
      const place = this.clamp(drag.frame, x);
      if (spot?.layer !== undefined) this.host.pick(place, spot.layer);
      else this.host.choose(place);
      return;
    }
    const ends = [this.clamp(drag.frame, drag.x), this.clamp(drag.frame, x)].sort((a, b) => a - b);
    if (ends[1] > ends[0]) this.host.zoom([ends[0], ends[1]]);
  }

  // The bare wheel scrolls the page, as everywhere. A pinch on a touchpad arrives as Ctrl + wheel.
  private wheel(event: WheelEvent): void {
    const { x, y } = this.place(event);
    const frame = this.frameAt(x, y);
    if (!frame) return;
    const sideways = event.deltaX || (event.shiftKey ? event.deltaY : 0);
    const zooms = event.ctrlKey || event.metaKey;
    if (!zooms && !(sideways && this.chart.context?.state.zoom && Math.abs(sideways) >= Math.abs(event.deltaY))) return;
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
    if (zooms)
      this.host.zoomBy(Math.exp(Math.max(-120, Math.min(120, event.deltaY * unit)) / 240), this.clamp(frame, x));
    else this.host.pan((sideways * unit) / frame.width);
  }

  private showBrush(drag: Drag, x: number): void {
    this.tip.hidden = true;
    const { frame } = drag;
    const end = Math.max(frame.x, Math.min(frame.x + frame.width, x));
    this.brush.hidden = false;
    Object.assign(this.brush.style, {
      left: `${Math.min(drag.x, end)}px`,
      width: `${Math.abs(end - drag.x)}px`,
      top: `${frame.y}px`,
      height: `${frame.height}px`,
    });
  }

  private showTip(lines: Described[], x: number, y: number): void {
    this.tip.hidden = !lines.length;
    refill(this.tip, JSON.stringify(lines), () => lines.map(tipLine));
    const right = x > this.element.clientWidth / 2;
    this.tip.style.left = right ? "" : `${x + 12}px`;
    this.tip.style.right = right ? `${this.element.clientWidth - x + 12}px` : "";
    this.tip.style.top = `${Math.max(0, y - 10)}px`;
  }

  private key(event: KeyboardEvent): void {
    const far = event.shiftKey ? 10 : 1;
    const acts: Record<string, () => void> = {
      ArrowLeft: () => this.host.stepBy(-far),
      ArrowRight: () => this.host.stepBy(far),
      Home: () => this.host.stepTo("first"),
      End: () => this.host.stepTo("last"),
      "+": () => this.host.zoomBy(0.5),
      "=": () => this.host.zoomBy(0.5),
      "-": () => this.host.zoomBy(2),
      "0": () => this.host.zoom(null),
      "[": () => this.host.pan(-0.25),
      "]": () => this.host.pan(0.25),
    };
    const act = acts[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
    requestAnimationFrame(() => this.speak());
  }

  private speak(): void {
    const ctx = this.chart.context;
    if (ctx && ctx.step !== null)
      this.host.announce(
        `step ${ctx.step}. ${this.chart
          .describe(ctx)
          .map(({ text }) => text)
          .join(", ")}`,
      );
  }
}

function tipLine({ text, color }: Described): HTMLElement {
  if (!color) return h("div", {}, text);
  return h("div", {}, swatch(color), text);
}
