// One root element: the bar, the scrubber, the cards. One animation frame loop draws what changed and can be seen.

import { columnsCsv, exportCsv, fileTitle } from "../contract/export.ts";
import { axisToStep, longest, neighbourStep, panBy, playhead, zoomAround } from "../contract/navigation.ts";
import type { Context } from "../contract/panel.ts";
import { defaults, type UiState } from "../contract/state.ts";
import type { Source, SourceStatus } from "../data/source.ts";
import { ROW, type Store } from "../data/store.ts";
import { closePopovers, h, setAttribute, setClass, setText } from "../draw/dom.ts";
import type { Theme } from "../draw/theme.ts";
import { Bar } from "./bar.ts";
import type { BarHost, PanelTitle } from "./bar_host.ts";
import { Board } from "./board.ts";
import type { Card } from "./card.ts";
import type { CardHost } from "./card_host.ts";
import { axisDomain, type ContextParts, HistogramFetcher, makeContext, RunColors } from "./context.ts";
import { DetailFetcher } from "./detail.ts";
import { type HealthHost, HealthLine } from "./health_line.ts";
import { movePanel, nudgePanel } from "./layout.ts";
import { Look, paintTheme } from "./look.ts";
import type { MountOptions } from "./options.ts";
import { Pacer } from "./pacer.ts";
import { Player } from "./player.ts";
import { SampleFetcher } from "./samples.ts";
import { Scrubber, type ScrubberHost } from "./scrubber.ts";
import styles from "./styles.css";

export class App implements CardHost, BarHost, ScrubberHost, HealthHost {
  readonly root = h("div", { class: "ck-root", role: "region", "aria-label": "Cockpit" });
  state: UiState;
  status: SourceStatus = { connection: "connecting" };
  private readonly abort = new AbortController();
  private readonly colors = new RunColors();
  private readonly asked = new Set<string>();
  private readonly fetcher: HistogramFetcher;
  private readonly details: DetailFetcher;
  private readonly samples: SampleFetcher;
  private readonly bar: Bar;
  private readonly health: HealthLine;
  private readonly scrubber: Scrubber;
  private readonly board: Board;
  private readonly live = h("div", { class: "ck-sr", "aria-live": "polite" });
  private touched = false;
  private hovered: number | null = null;
  private fresh = true; // something changed since the last frame
  private saved = 0;
  private focused = "";
  private readonly look: Look;
  private unsubscribe: () => void;
  private readonly player = new Player();
  private readonly pacer = new Pacer({
    draw: (now) => this.draw(now),
    tell: () => this.board.tell(),
    listen: () => this.listen(),
  });

  constructor(
    parent: HTMLElement,
    readonly store: Store,
    readonly source: Source,
    private readonly options: MountOptions,
  ) {
    const { signal } = this.abort;
    this.state = { ...defaults, ...options.state };
    this.look = new Look(options.theme, () => this.invalidate());
    this.fetcher = new HistogramFetcher(source, () => this.invalidate());
    this.details = new DetailFetcher(source);
    this.samples = new SampleFetcher(source, () => this.invalidate());
    this.bar = new Bar(this, signal);
    this.scrubber = new Scrubber(this, signal);
    this.board = new Board(this, options.panels ?? null, () => this.invalidate());
    this.health = new HealthLine(this, signal);
    const parts = [this.bar.element, this.health.element, this.scrubber.element, this.board.element, this.live];
    this.root.append(h("style", {}, styles), ...parts);
    if (options.height)
      this.root.style.height = typeof options.height === "number" ? `${options.height}px` : options.height;
    parent.append(this.root);
    this.root.addEventListener("ck-close", () => closePopovers(this.root), { signal });
    this.root.addEventListener("pointerdown", (event) => closePopovers(this.root, event.target), { signal });
    for (const name of ["pointerdown", "keydown"])
      this.root.addEventListener(name, () => this.touch(), { signal, capture: true });
    this.root.addEventListener("keydown", (event) => event.key === "Escape" && this.escape(), { signal });
    globalThis.addEventListener?.("beforeprint", () => this.print(true), { signal });
    globalThis.addEventListener?.("afterprint", () => this.print(false), { signal });
    // A host that cannot pause goes on delivering; then the picture stands still instead.
    this.unsubscribe = store.subscribe(() => (this.state.paused && !source.pause ? undefined : this.receive()));
    this.invalidate();
  }

  private touch(): void {
    if (this.touched) return;
    this.touched = true;
    this.invalidate();
  }

  // Paper has a width of its own and no fold: everything is drawn for it, at once, in light colours.
  private print(on: boolean): void {
    this.look.printing = on;
    this.root.classList.toggle("ck-paper", on);
    this.board.showAll = on;
    this.board.markDirty();
    this.draw();
    if (!on) this.invalidate();
  }

  private escape(): void {
    if (this.state.enlarged) this.enlarge(this.state.enlarged);
  }

  get theme(): Theme {
    return this.look.choose(this.state.theme);
  }

  setHostTheme(theme: "light" | "dark"): void {
    this.look.set(theme);
  }

  set(patch: Partial<UiState>): void {
    this.state = { ...this.state, ...patch };
    if ("axis" in patch || "xlog" in patch) this.hovered = null;
    if ("axis" in patch && !("zoom" in patch)) this.state.zoom = null;
    clearTimeout(this.saved);
    this.saved = setTimeout(() => this.options.onState?.(this.state), 150) as unknown as number;
    if ("paused" in patch) this.source.pause?.(this.state.paused);
    this.pacer.touch();
    this.invalidate(Object.keys(patch).every((key) => key === "zoom"));
  }

  setStatus(status: SourceStatus): void {
    if (status.progress === 1 && (this.status.progress ?? 1) < 1) this.pacer.hurry();
    this.status = { ...this.status, ...status };
    this.pacer.scheduleRested();
  }

  /** Whether it is a low strip now, and whether it can be one. */
  get compact(): boolean {
    return (
      this.options.compact !== undefined && (this.state.view || (this.options.compact ? "compact" : "")) === "compact"
    );
  }
  get folds(): boolean {
    return this.options.compact !== undefined;
  }

  /** All runs that could be shown, loaded or not, in the host's order. */
  get names(): string[] {
    const listed = this.status.runs?.map((info) => info.run) ?? [];
    return [...new Set([...listed, ...this.store.runs.keys()])];
  }

  private get parts(): ContextParts {
    const { store, state, theme, source, colors, names, fetcher, samples, asked, touched } = this;
    const palette = this.options.palette ?? "safe";
    return {
      store,
      state,
      theme,
      source,
      palette,
      colors,
      names,
      hover: this.hovered,
      fetcher,
      samples,
      asked,
      touched,
      set: (patch) => this.set(patch),
    };
  }

  context(): Context {
    return makeContext(this.parts);
  }

  /** `moved`: nothing but the part of the axis that is in sight; what was asked for at this step is still wanted. */
  invalidate(moved = false): void {
    if (this.abort.signal.aborted) return;
    this.board.markDirty(moved);
    this.fresh ||= !moved;
    this.pacer.schedule();
  }

  private receive(): void {
    this.board.markDirty();
    this.fresh = true;
    this.pacer.scheduleRested();
  }

  /**
   * Draws at once; the loop calls it, and so do tests. In the loop a picture that takes too long is spread over frames,
   * so that the hand that scrubs is always answered.
   */
  draw(now = 0): void {
    const deadline = this.pacer.begin(now, this.player.playing);
    if (this.player.playing) this.advance(now);
    const [width, track] = [this.root.clientWidth || 1200, this.scrubber.width]; // read before anything is written
    const ctx = this.context();
    if (paintTheme(this.root, ctx.theme)) this.options.onTheme?.(ctx.theme.dark, ctx.theme.page);
    this.tellFocus(ctx);
    if (this.fresh) this.fetcher.beginPicture();
    this.fresh = false;
    setClass(this.root, "ck-compact", this.compact);
    this.bar.update(ctx, this.status, this.names, this.store.broken);
    this.health.update(ctx);
    this.scrubber.update(ctx, this.full(ctx), this.player.playing, track);
    if (this.board.update(ctx, width, deadline, this.compact)) this.pacer.schedule();
    this.fetcher.endPicture();
    this.samples.endPicture();
    if (this.touched || !this.source.pushes) this.details.look(ctx); // a zoom that was remembered is no wish of the user's
    setAttribute(this.root, "data-runs", String(ctx.runs.filter(({ data }) => data.rows.n).length)); // drawn just now
    const grows = ctx.runs.some(({ data }) => data.status.state === "running");
    this.pacer.end(grows, (this.status.progress ?? 1) < 1);
  }

  // A training that was interrupted sends nothing, not even that: the bar looks at the clock by itself.
  private listen(): boolean {
    if (!this.root.isConnected) return false;
    this.bar.update(this.context(), this.status, this.names, this.store.broken);
    return true;
  }

  private tellFocus(ctx: Context): void {
    const wanted = this.state.runs
      ? this.names.filter((name) => this.state.runs?.includes(name))
      : this.names.slice(0, 10);
    const key = JSON.stringify(wanted);
    if (key === this.focused || (!ctx.runs.length && !wanted.length)) return;
    this.focused = key;
    this.source.focus?.(wanted);
  }

  // ---- what the user does
  hover(x: number | null): void {
    const step = x === null ? null : axisToStep(this.context(), x);
    if (step === this.hovered) return;
    this.hovered = step;
    this.pacer.touch();
    this.invalidate();
  }
  choose(x: number): void {
    const step = axisToStep(this.context(), x);
    if (step !== null) this.set({ step });
  }
  pick(x: number, layer: string): void {
    const step = axisToStep(this.context(), x);
    if (step !== null) this.set({ step, layer });
  }
  zoom(range: [number, number] | null): void {
    this.set({ zoom: range });
  }
  private full(ctx: Context): [number, number] {
    return axisDomain(ctx.runs, { ...this.state, axis: ctx.axis, zoom: null });
  }
  /** Around `x`, or around the step in question. */
  zoomBy(factor: number, x?: number): void {
    const ctx = this.context();
    const middle = x ?? playhead(ctx) ?? ctx.domain[0];
    this.set({ zoom: zoomAround(ctx.domain, this.full(ctx), factor, middle, this.state.xlog) });
  }
  pan(share: number, from?: [number, number]): void {
    if (!this.state.zoom) return;
    const ctx = this.context();
    this.set({ zoom: panBy(from ?? ctx.domain, this.full(ctx), share, this.state.xlog) });
  }
  get view(): [number, number] {
    return this.context().domain;
  }
  stepBy(records: number): void {
    const step = neighbourStep(this.context(), records);
    if (step !== null) this.set({ step });
  }
  stepTo(end: "first" | "last"): void {
    const run = longest(this.context());
    if (run) this.set({ step: end === "last" ? null : run.data.rows.columns[ROW.step][0] });
  }
  follow(): void {
    this.player.stop();
    this.set({ step: null });
  }
  play(): void {
    const ended = this.state.step === null || this.state.step === longest(this.context())?.data.lastStep;
    if (this.player.toggle() && ended) this.stepTo("first");
    this.invalidate();
  }
  private advance(now: number): void {
    const step = this.player.advance(now, this.state.step, longest(this.context())?.data.lastStep ?? null);
    if (step === null) return;
    this.state = { ...this.state, step };
    this.invalidate();
  }
  layer(name: string): void {
    this.set({ layer: this.state.layer === name ? "" : name });
  }
  enlarge(id: string): void {
    this.set({ enlarged: this.state.enlarged === id ? "" : id });
    this.draw(); // it has another place now
    this.board.show(id); // and the focus, where Escape is heard
  }
  reveal(name: string, step: number, layer: string): void {
    const known = this.context().runs.some(({ data }) => data.header?.layers.some((own) => own.name === layer));
    this.set({ step, layer: known ? layer : this.state.layer });
    this.draw();
    this.board.reveal(name);
  }
  hide(id: string): void {
    this.set({
      hidden: [...new Set([...this.state.hidden, id])],
      enlarged: this.state.enlarged === id ? "" : this.state.enlarged,
    });
  }
  nudge(id: string, direction: "up" | "down" | "left" | "right"): void {
    this.set({ order: nudgePanel(this.board.lists, id, direction) });
  }
  drop(id: string, target: string, after: boolean): void {
    const column = this.board.lists.findIndex((list) => list.includes(target));
    const list = (this.board.lists[column] ?? []).filter((own) => own !== id);
    const before = list[list.indexOf(target) + (after ? 1 : 0)] ?? null;
    this.set({ order: movePanel(this.board.lists, id, column, before) });
  }
  announce(text: string): void {
    setText(this.live, text);
  }
  panelTitles(): PanelTitle[] {
    return this.board.titles;
  }
  card(id: string): Card | undefined {
    return this.board.card(id);
  }
  exportAll(): void {
    const ctx = this.context();
    exportCsv(columnsCsv(ctx, null), fileTitle("cockpit", ctx));
  }

  destroy(): void {
    this.pacer.stop();
    clearTimeout(this.saved);
    this.unsubscribe();
    this.look.stop();
    this.fetcher.stop();
    this.details.stop();
    this.samples.stop();
    this.board.destroy();
    this.abort.abort();
    this.root.remove();
  }
}
