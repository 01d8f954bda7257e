// One root element: the bar, the scrubber, the cards. One animation frame loop draws what changed and can be seen.

import { columnsCsv, exportCsv, fileTitle } from "../contract/export.ts";
import { axisToStep, longest, neighbourStep, panBy, stepToAxis, zoomAround } from "../contract/navigation.ts";
import type { Context } from "../contract/panel.ts";
import { defaults, type UiState } from "../contract/state.ts";
import type { Source, SourceStatus } from "../data/source.ts";
import { ROW, type Store } from "../data/store.ts";
import { dark, light, type Theme, themeVariables } from "../draw/theme.ts";
import { Bar, type BarHost } from "./bar.ts";
import { Board } from "./board.ts";
import type { Card, CardHost } from "./card.ts";
import { axisDomain, type ContextParts, HistogramFetcher, makeContext, RunColors } from "./context.ts";
import { DetailFetcher } from "./detail.ts";
import { closePopovers, h, setAttribute, setClass, setText } from "./dom.ts";
import { type HealthHost, HealthLine } from "./health_line.ts";
import { movePanel, nudgePanel } from "./layout.ts";
import type { MountOptions } from "./mount.ts";
import { Scrubber, type ScrubberHost } from "./scrubber.ts";
import styles from "./styles.css";

const BUDGET = 14; // ms of drawing per frame while a hand waits; the browser needs about as much again to show it
const QUIET_BUDGET = 120; // ms otherwise: each further frame would compose the whole page once more
const ATTENTION = 1000; // ms after which a hand has let go
const PACE = 14; // what comes by itself is drawn in a fifteenth of the time at most: on a slow or busy machine, less often
const LONGEST_REST = 1000; // ms, however slow the machine
const LOADING_REST = 2500; // ms, while more is on its way: a picture of half of it would only delay the rest
const LISTEN = 1000; // ms between two looks at the clock while a run should bring more
const REST = 300; // ms before a picture is put into words; a hand that goes on puts that off
const WORDS = 3000; // ms between the words for pictures of a run that grows

export class App implements CardHost, BarHost, ScrubberHost, HealthHost {
  readonly root = h("div", { class: "ck-root", role: "region", "aria-label": "Cockpit" });
  state: UiState;
  status: SourceStatus = { connection: "connecting" };
  playing = false;
  private printing = false;
  private readonly abort = new AbortController();
  private readonly colors = new RunColors();
  private readonly asked = new Set<string>();
  private readonly fetcher: HistogramFetcher;
  private readonly details: DetailFetcher;
  private readonly bar: Bar;
  private readonly health: HealthLine;
  private readonly scrubber: Scrubber;
  private readonly board: Board;
  private readonly live = h("div", { class: "ck-sr", "aria-live": "polite" });
  private touched = false;
  private hovered: number | null = null;
  private frame = 0;
  private fresh = true; // something changed since the last frame
  private saved = 0;
  private resting = 0;
  private listening = 0;
  private told = Number.NEGATIVE_INFINITY; // when pictures were last put into words
  private focused = "";
  private hostTheme: "light" | "dark";
  private playedFrom = 0;
  private restUntil = 0; // when the next message may be drawn
  private waiting = 0;
  private handled = Number.NEGATIVE_INFINITY; // when the user last did something
  private unsubscribe: () => void;
  private readonly media = globalThis.matchMedia?.("(prefers-color-scheme: dark)");
  private readonly followSystem = () => {
    if (!this.options.theme) this.setHostTheme(preferred());
  };

  constructor(
    parent: HTMLElement,
    readonly store: Store,
    readonly source: Source,
    private readonly options: MountOptions,
  ) {
    const { signal } = this.abort;
    this.state = { ...defaults, ...options.state };
    this.hostTheme = options.theme ?? preferred();
    this.fetcher = new HistogramFetcher(source, () => this.invalidate());
    this.details = new DetailFetcher(source);
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
    this.root.addEventListener("pointerdown", (event) => this.closeOutside(event), { signal });
    for (const name of ["pointerdown", "keydown"])
      this.root.addEventListener(name, () => this.touch(), { signal, capture: true });
    this.root.addEventListener("keydown", (event) => event.key === "Escape" && this.escape(), { signal });
    this.media?.addEventListener?.("change", this.followSystem);
    globalThis.addEventListener?.("beforeprint", () => this.print(true), { signal });
    globalThis.addEventListener?.("afterprint", () => this.print(false), { signal });
    // A host that cannot pause goes on delivering; then the picture stands still instead.
    this.unsubscribe = store.subscribe(() => (this.state.paused && !source.pause ? undefined : this.receive()));
    this.invalidate();
  }

  private closeOutside(event: Event): void {
    const inside = (event.target as Element | null)?.closest?.(".ck-popwrap");
    for (const wrap of this.root.querySelectorAll(".ck-popwrap"))
      if (wrap !== inside) wrap.dispatchEvent(new CustomEvent("ck-close"));
  }

  private touch(): void {
    if (this.touched) return;
    this.touched = true;
    this.invalidate();
  }

  // Paper has a width of its own and no fold: everything is drawn for it, at once, in light colours.
  private print(on: boolean): void {
    this.printing = on;
    this.root.classList.toggle("ck-paper", on);
    this.board.showAll = on;
    this.board.markDirty();
    this.draw();
    if (!on) this.invalidate();
  }

  private escape(): void {
    if (this.state.enlarged) this.set({ enlarged: "" });
  }

  get theme(): Theme {
    if (this.printing) return light;
    const chosen = this.state.theme === "auto" ? this.hostTheme : this.state.theme;
    return chosen === "dark" ? dark : light;
  }

  setHostTheme(theme: "light" | "dark"): void {
    this.hostTheme = theme;
    this.invalidate();
  }

  set(patch: Partial<UiState>): void {
    this.state = { ...this.state, ...patch };
    if ("axis" in patch || "xlog" in patch) this.hovered = null;
    if ("axis" in patch && !("zoom" in patch)) this.state.zoom = null;
    clearTimeout(this.saved);
    this.saved = setTimeout(() => this.options.onState?.(this.state), 150) as unknown as number;
    if ("paused" in patch) this.source.pause?.(this.state.paused);
    this.handled = performance.now();
    this.invalidate();
  }

  setStatus(status: SourceStatus): void {
    // What was being loaded is whole now: somebody waits for it.
    if (status.progress === 1 && (this.status.progress ?? 1) < 1) this.restUntil = 0;
    this.status = { ...this.status, ...status };
    this.scheduleRested();
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
    const { store, state, theme, source, colors, names, fetcher, asked, touched } = this;
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
      asked,
      touched,
      set: (patch) => this.set(patch),
    };
  }

  context(): Context {
    return makeContext(this.parts);
  }

  invalidate(): void {
    if (this.abort.signal.aborted) return;
    this.board.markDirty();
    this.fresh = true;
    this.schedule();
  }

  private receive(): void {
    this.board.markDirty();
    this.fresh = true;
    this.scheduleRested();
  }

  // What came by itself is drawn when the last picture has been rested from; a status comes with every message.
  private scheduleRested(): void {
    if (this.abort.signal.aborted) return;
    const wait = this.restUntil - performance.now();
    if (wait <= 0) this.schedule();
    else this.waiting ||= setTimeout(() => this.schedule(), wait) as unknown as number;
  }

  private schedule(): void {
    if (!this.frame && !this.abort.signal.aborted) this.frame = requestAnimationFrame((now) => this.draw(now));
  }

  /**
   * Draws at once; the loop calls it, and so do tests. In the loop a picture that takes too long is spread over frames,
   * so that the hand that scrubs is always answered.
   */
  draw(now = 0): void {
    this.frame = 0;
    clearTimeout(this.waiting);
    this.waiting = 0;
    const began = performance.now();
    const budget = this.playing || began - this.handled < ATTENTION ? BUDGET : QUIET_BUDGET;
    const deadline = now ? began + budget : Number.POSITIVE_INFINITY;
    if (this.playing) this.advance(now);
    const [width, track] = [this.root.clientWidth || 1200, this.scrubber.width]; // read before anything is written
    const ctx = this.context();
    this.paintTheme(ctx.theme);
    this.tellFocus(ctx);
    if (this.fresh) this.fetcher.beginPicture();
    this.fresh = false;
    setClass(this.root, "ck-compact", this.compact);
    this.bar.update(ctx, this.status, this.names, this.store.broken);
    this.health.update(ctx);
    this.scrubber.update(ctx, this.full(ctx), this.playing, track);
    if (this.board.update(ctx, width, deadline, this.compact)) this.schedule();
    this.fetcher.endPicture();
    if (this.touched || !this.source.pushes) this.details.look(ctx); // a zoom that was remembered is no wish of the user's
    setAttribute(this.root, "data-runs", String(ctx.runs.filter(({ data }) => data.rows.n).length)); // drawn just now
    const ended = performance.now();
    const grows = ctx.runs.some(({ data }) => data.status.state === "running");
    this.tellSoon(ended, budget === BUDGET || !grows);
    const longest = (this.status.progress ?? 1) < 1 ? LOADING_REST : LONGEST_REST;
    this.restUntil = ended + Math.min(longest, PACE * (ended - began));
    clearTimeout(this.listening);
    if (grows) this.listening = setTimeout(() => this.listen(), LISTEN) as unknown as number;
  }

  // A training that was interrupted sends nothing, not even that: the bar looks at the clock by itself.
  private listen(): void {
    if (!this.root.isConnected) return; // taken off the page; the next picture listens again
    this.bar.update(this.context(), this.status, this.names, this.store.broken);
    this.listening = setTimeout(() => this.listen(), LISTEN) as unknown as number;
  }

  private tellSoon(now: number, rests: boolean): void {
    if (rests) {
      clearTimeout(this.resting);
      this.resting = 0;
    }
    const wait = rests ? REST : Math.max(REST, this.told + WORDS - now);
    this.resting ||= setTimeout(() => {
      this.resting = 0;
      this.told = performance.now();
      this.board.tell();
    }, wait) as unknown as number;
  }

  private paintTheme(theme: Theme): void {
    if (this.root.classList.contains("ck-dark") === theme.dark && this.root.style.getPropertyValue("--ck-page")) return;
    this.root.classList.toggle("ck-dark", theme.dark);
    for (const [name, value] of Object.entries(themeVariables(theme))) this.root.style.setProperty(name, value);
    this.options.onTheme?.(theme.dark, theme.page);
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
    this.handled = performance.now();
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
    const middle = x ?? (ctx.step === null ? null : stepToAxis(ctx, ctx.step)) ?? ctx.domain[0];
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
    this.playing = false;
    this.set({ step: null });
  }
  play(): void {
    this.playing = !this.playing;
    this.playedFrom = 0;
    if (this.playing && (this.state.step === null || this.state.step === longest(this.context())?.data.lastStep))
      this.stepTo("first");
    this.invalidate();
  }
  private advance(now: number): void {
    const run = longest(this.context());
    const last = run?.data.lastStep ?? null;
    if (last === null || this.state.step === null || this.state.step >= last) {
      this.playing = false;
      return;
    }
    // The whole training takes twelve seconds, however long it was.
    const passed = this.playedFrom ? Math.min(0.2, (now - this.playedFrom) / 1000) : 0;
    this.playedFrom = now;
    const x = this.state.step + (last / 12) * passed;
    this.state = { ...this.state, step: Math.min(last, x) };
    this.invalidate();
  }
  layer(name: string): void {
    this.set({ layer: this.state.layer === name ? "" : name });
  }
  enlarge(id: string): void {
    this.set({ enlarged: this.state.enlarged === id ? "" : id });
    this.root.querySelector(".ck-big")?.scrollIntoView?.({ block: "nearest" });
    const cards = [...this.root.querySelectorAll<HTMLElement>("[data-panel]")];
    cards
      .find((card) => card.dataset.panel === id)
      ?.querySelector<HTMLElement>(".ck-title")
      ?.focus({ preventScroll: true }); // where Escape is heard
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
  panelTitles(): { id: string; title: string }[] {
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
    cancelAnimationFrame(this.frame);
    clearTimeout(this.saved);
    clearTimeout(this.waiting);
    clearTimeout(this.resting);
    clearTimeout(this.listening);
    this.unsubscribe();
    this.media?.removeEventListener?.("change", this.followSystem);
    this.fetcher.stop();
    this.details.stop();
    this.board.destroy();
    this.abort.abort();
    this.root.remove();
  }
}

const preferred = (): "light" | "dark" =>
  globalThis.matchMedia?.("(prefers-color-scheme: dark)")?.matches ? "dark" : "light";
