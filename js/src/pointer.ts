// Mouse and keyboard on a chart: hover, click to choose a step, drag to zoom, arrows for those without a mouse.
import { h, refill } from "./dom.ts";
import { formatNumber } from "./format.ts";
import type { Context } from "./panel.ts";
import type { Scene, TimeFrame } from "./scene.ts";

export interface PointerHost {
  /** `x` in units of the shared axis; null = the pointer left. */
  hover(x: number | null): void;
  choose(x: number): void;
  zoom(range: [number, number] | null): void;
  stepBy(records: number): void;
  stepTo(end: "first" | "last"): void;
  zoomBy(factor: number): void;
  layer(name: string): void;
  announce(text: string): void;
}
interface Charted {
  scene: Scene;
  context: Context | null;
  describe(ctx: Context): string[];
}

const within = (box: { x: number; y: number; width: number; height: number }, x: number, y: number, slack = 0) =>
  x >= box.x - slack && x <= box.x + box.width + slack && y >= box.y - slack && y <= box.y + box.height + slack;

export class Pointer {
  private start: { x: number; frame: TimeFrame } | null = null;
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
    on("pointerleave", () => this.leave());
    on("pointerdown", (event) => this.down(event));
    on("pointerup", (event) => this.up(event));
    on("pointercancel", () => this.leave());
    on("dblclick", () => this.host.zoom(null));
    on("keydown", (event) => this.key(event));
    on("focus", () => this.speak());
  }

  private place(event: PointerEvent): { x: number; y: number } {
    const box = this.element.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  private move(event: PointerEvent): void {
    const { x, y } = this.place(event);
    if (this.start) {
      this.showBrush(x);
      return;
    }
    const spot = this.chart.scene.spots.find((own) => within(own, x, y));
    const frame = this.chart.scene.frames.find((own) => within(own, x, y, 4));
    this.host.hover(frame ? this.clamp(frame, x) : null);
    this.element.style.cursor = spot?.layer !== undefined ? "pointer" : frame ? "crosshair" : "";
    if (spot) this.showTip([spot.hint], x, y);
    else if (frame)
      requestAnimationFrame(() => this.chart.context && !this.start && this.showTip(this.hoverLines(), x, y));
    else this.tip.hidden = true;
  }

  private hoverLines(): string[] {
    const ctx = this.chart.context;
    if (!ctx || ctx.hover === null) return [];
    return [`step ${formatNumber(ctx.hover)}`, ...this.chart.describe(ctx)];
  }

  private clamp(frame: TimeFrame, x: number): number {
    return frame.xscale.from(Math.max(frame.x, Math.min(frame.x + frame.width, x)));
  }

  private leave(): void {
    this.start = null;
    this.tip.hidden = true;
    this.brush.hidden = true;
    this.host.hover(null);
  }

  private down(event: PointerEvent): void {
    if (event.button !== 0) return;
    const { x, y } = this.place(event);
    const frame = this.chart.scene.frames.find((own) => within(own, x, y, 4));
    if (frame) this.start = { x, frame };
  }

  private up(event: PointerEvent): void {
    const { x, y } = this.place(event);
    const spot = this.chart.scene.spots.find((own) => within(own, x, y));
    if (spot?.layer !== undefined && !this.start) this.host.layer(spot.layer);
    const start = this.start;
    this.start = null;
    this.brush.hidden = true;
    if (!start) return;
    if (Math.abs(x - start.x) < 5) {
      this.host.choose(this.clamp(start.frame, x));
      return;
    }
    const ends = [this.clamp(start.frame, start.x), this.clamp(start.frame, x)].sort((a, b) => a - b);
    if (ends[1] > ends[0]) this.host.zoom([ends[0], ends[1]]);
  }

  private showBrush(x: number): void {
    const { start } = this;
    if (!start) return;
    this.tip.hidden = true;
    const end = Math.max(start.frame.x, Math.min(start.frame.x + start.frame.width, x));
    this.brush.hidden = false;
    Object.assign(this.brush.style, {
      left: `${Math.min(start.x, end)}px`,
      width: `${Math.abs(end - start.x)}px`,
      top: `${start.frame.y}px`,
      height: `${start.frame.height}px`,
    });
  }

  private showTip(lines: string[], x: number, y: number): void {
    this.tip.hidden = !lines.length;
    refill(this.tip, JSON.stringify(lines), () => lines.map((line) => h("div", {}, line)));
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
    };
    const act = acts[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
    requestAnimationFrame(() => this.speak());
  }

  private speak(): void {
    const ctx = this.chart.context;
    if (ctx && ctx.step !== null) this.host.announce(`step ${ctx.step}. ${this.chart.describe(ctx).join(", ")}`);
  }
}
