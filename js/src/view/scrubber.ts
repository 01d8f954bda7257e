// The scrubber: where records are dense, where there are warnings, and the step that every panel shows.

import { playhead, rowAt, runsReaching, stepToAxis } from "../contract/navigation.ts";
import type { Context } from "../contract/panel.ts";
import { formatDuration, formatNumber } from "../data/format.ts";
import { ROW } from "../data/store.ts";
import { lowerBound } from "../data/table.ts";
import { h, setAttribute, setText } from "../draw/dom.ts";
import { Painter } from "../draw/draw.ts";
import { makeScale, type Scale } from "../draw/scale.ts";
import { type Box, emptyScene, type Scene } from "../draw/scene.ts";
import { isHint } from "../judge/notices.ts";
import type { PointerHost } from "./pointer.ts";

const HEIGHT = 40;

/** Records per two pixels as bars, warnings as triangles above, the zoomed part shaded, the playhead. */
export function scrubberScene(ctx: Context, width: number, full: [number, number]): { scene: Scene; scale: Scale } {
  const scene = emptyScene(width, HEIGHT);
  const box: Box = { x: 10, y: 10, width: Math.max(10, width - 20), height: 20 };
  const scale = makeScale(ctx.state.xlog ? "log1p" : "linear", full, [box.x, box.x + box.width]);
  const { theme, marks } = { theme: ctx.theme, marks: scene.marks };
  const bins = new Float64Array(Math.ceil(box.width / 3));
  for (const { data } of ctx.runs) {
    const xs = data.axis(ctx.axis);
    for (let b = 0, i = 0; b < bins.length; b++) {
      const next = lowerBound(xs, data.rows.n, scale.from(box.x + (b + 1) * 3));
      bins[b] += Math.max(0, next - i);
      i = Math.max(i, next);
    }
  }
  const most = Math.max(1, ...bins);
  const boxes: number[] = [];
  bins.forEach((count, b) => {
    const tall = count ? 3 + (box.height - 5) * Math.sqrt(count / most) : 0;
    if (tall) boxes.push(box.x + b * 3, box.y + box.height - tall, 2, tall);
  });
  if (ctx.state.zoom) {
    const [a, b] = ctx.state.zoom.map((x) => Math.max(box.x, Math.min(box.x + box.width, scale.to(x))));
    marks.push({
      type: "rect",
      x: a,
      y: box.y - 2,
      width: Math.max(2, b - a),
      height: box.height + 4,
      fill: theme.accent,
      alpha: 0.16,
    });
  }
  marks.push({ type: "bars", boxes, fill: theme.faint, alpha: 0.75 });
  marks.push({ type: "line", xs: [box.x, box.x + box.width], ys: [32, 32], stroke: theme.faint, weight: 2 });
  for (const [fill, hints] of [
    [theme.faint, true],
    [theme.warn, false],
  ] as const)
    for (const x of warningPlaces(ctx, hints)) {
      const at = scale.to(x);
      marks.push({ type: "line", xs: [at - 4, at, at + 4], ys: [9, 2, 9], closed: true, fill });
    }
  const head = playhead(ctx);
  if (head !== null) {
    const at = Math.max(box.x, Math.min(box.x + box.width, scale.to(head)));
    marks.push({ type: "line", xs: [box.x, at], ys: [32, 32], stroke: theme.accent, weight: 3 });
    marks.push({ type: "line", xs: [at, at], ys: [8, 32], stroke: theme.accent, weight: 1.5 });
    marks.push({ type: "dots", xs: [at], ys: [32], radius: 6, fill: theme.accent, stroke: theme.card, weight: 2 });
  }
  return { scene, scale };
}

function warningPlaces(ctx: Context, hints: boolean): number[] {
  const own = ctx.runs.flatMap(({ data }) => data.warnings.filter((notice) => isHint(notice) === hints));
  const steps = new Set(own.map(({ step }) => step));
  return [...steps].slice(0, 300).flatMap((step) => stepToAxis(ctx, step) ?? []);
}

export interface ScrubberHost extends PointerHost {
  play(): void;
  follow(): void;
}

export class Scrubber {
  readonly element: HTMLElement;
  private readonly canvas = h("canvas", { "aria-hidden": "true" });
  private readonly painter = new Painter(this.canvas);
  private readonly label = h("output", { class: "ck-where" });
  private readonly playButton = h("button", { type: "button", class: "ck-icon ck-play" });
  private readonly liveButton = h("button", { type: "button", class: "ck-chip ck-follow" }, "Latest");
  private readonly track: HTMLElement;
  private scale: Scale | null = null;
  private dragging = false;
  private letters = 24;

  constructor(
    private readonly host: ScrubberHost,
    signal: AbortSignal,
  ) {
    this.track = h(
      "div",
      { class: "ck-track", role: "slider", tabindex: 0, "aria-label": "Training step" },
      this.canvas,
    );
    this.element = h("div", { class: "ck-scrub" }, this.playButton, this.track, this.label, this.liveButton);
    this.playButton.addEventListener("click", () => host.play(), { signal });
    this.liveButton.addEventListener("click", () => host.follow(), { signal });
    const at = (event: PointerEvent) => this.scale?.from(event.clientX - this.track.getBoundingClientRect().left) ?? 0;
    const grab = (event: PointerEvent) => {
      this.dragging = true;
      this.track.setPointerCapture?.(event.pointerId);
      host.choose(at(event));
    };
    this.track.addEventListener("pointerdown", grab, { signal });
    this.track.addEventListener("pointermove", (event) => this.dragging && host.choose(at(event)), { signal });
    for (const name of ["pointerup", "pointercancel"] as const)
      this.track.addEventListener(name, () => (this.dragging = false), { signal });
    this.track.addEventListener("keydown", (event) => this.key(event), { signal });
  }

  private key(event: KeyboardEvent): void {
    const moves: Record<string, number> = {
      ArrowLeft: -1,
      ArrowDown: -1,
      ArrowRight: 1,
      ArrowUp: 1,
      PageDown: -10,
      PageUp: 10,
    };
    if (event.key in moves) this.host.stepBy(moves[event.key] * (event.shiftKey ? 10 : 1));
    else if (event.key === "Home") this.host.stepTo("first");
    else if (event.key === "End") this.host.stepTo("last");
    else if (event.key === " ") this.host.play();
    else return;
    event.preventDefault();
  }

  // The label keeps the room that it once needed: otherwise each new digit would make the track a little narrower.
  private reserve(letters: number): void {
    if (letters <= this.letters) return;
    this.letters = 4 * Math.ceil(letters / 4);
    this.label.style.setProperty("--room", `${0.56 * this.letters}em`);
  }

  get width(): number {
    return this.track.clientWidth || 600;
  }

  update(ctx: Context, full: [number, number], playing: boolean, width: number): void {
    const { scene, scale } = scrubberScene(ctx, width, full);
    this.scale = scale;
    this.painter.draw(scene, Math.min(3, globalThis.devicePixelRatio || 1), ctx.theme.card);
    const words = describeStep(ctx);
    setText(this.label, words);
    this.reserve(words.length);
    setText(this.playButton, playing ? "❚❚" : "▶");
    setAttribute(this.playButton, "aria-label", playing ? "Stop playing" : "Play through the training");
    setAttribute(this.liveButton, "aria-pressed", String(ctx.state.step === null));
    setAttribute(this.track, "aria-valuetext", words);
    setAttribute(this.track, "aria-valuenow", String(ctx.step ?? 0));
    const last = Math.max(0, ...ctx.runs.map(({ data }) => data.lastStep ?? 0));
    setAttribute(this.track, "aria-valuemin", "0");
    setAttribute(this.track, "aria-valuemax", String(last));
  }
}

/** "step 1,203 · epoch 2.6 · 0:41" of the step in question. */
export function describeStep(ctx: Context): string {
  if (ctx.step === null) return "no record yet";
  const words = [`step ${formatNumber(ctx.step)}`];
  const [run] = runsReaching(ctx, ctx.step);
  if (run) {
    const { rows } = run.data;
    const row = rowAt(run, ctx.step);
    const epoch = run.data.hasEpochs ? run.data.axis("epoch")[row] : Number.NaN;
    if (Number.isFinite(epoch)) words.push(`epoch ${formatNumber(epoch)}`);
    words.push(formatDuration(rows.columns[ROW.time][row]));
  }
  return words.join(" · ");
}
