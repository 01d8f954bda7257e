// The top bar: runs, state of training, and the choices that hold for all panels.

import { allLayers, type Context } from "../contract/panel.ts";
import type { UiState } from "../contract/state.ts";
import { shortNames } from "../data/format.ts";
import { SHORTEST } from "../data/smooth.ts";
import type { SourceStatus } from "../data/source.ts";
import { h, popover, refill, setAttribute, setHidden, setText, swatch } from "../draw/dom.ts";
import { healthOf } from "../judge/health.ts";
import type { BarHost } from "./bar_host.ts";
import { button, exportMenu, select, viewMenu } from "./menus.ts";
import { runList } from "./runlist.ts";
import { summarize } from "./summary.ts";

export class Bar {
  readonly element: HTMLElement;
  private readonly runs = h("div", { class: "ck-runs", role: "group", "aria-label": "Runs" });
  private readonly more: HTMLButtonElement;
  private readonly status = h("div", { class: "ck-status", role: "status" });
  private readonly layer: HTMLSelectElement;
  private readonly axis: HTMLSelectElement;
  private readonly xlog: HTMLButtonElement;
  private readonly yscale: HTMLSelectElement;
  private readonly smoothing: HTMLInputElement;
  private readonly smoothText = h("output", { class: "ck-num" });
  private readonly zoomOut: HTMLButtonElement;
  private readonly pause: HTMLButtonElement;
  private readonly stop: HTMLButtonElement;
  private readonly fold: HTMLButtonElement;
  private stopping = new Set<string>();

  constructor(
    private readonly host: BarHost,
    private readonly signal: AbortSignal,
  ) {
    const set = (patch: Partial<UiState>) => host.set(patch);
    this.more = h("button", { type: "button", class: "ck-chip" }, "Runs");
    this.layer = select("Layer", [["", "all layers"]], (layer) => set({ layer }), signal);
    const axes: [string, string][] = [
      ["step", "by step"],
      ["epoch", "by epoch"],
      ["time", "by time"],
    ];
    this.axis = select("Horizontal axis", axes, (axis) => set({ axis: axis as UiState["axis"] }), signal);
    this.xlog = button("log x", "Logarithmic horizontal axis", () => set({ xlog: !host.state.xlog }), signal);
    const scales: [string, string][] = [
      ["auto", "y auto"],
      ["linear", "y linear"],
      ["log", "y log"],
    ];
    this.yscale = select(
      "Vertical axes",
      scales,
      (value) => set({ yscale: value as UiState["yscale"], ylog: {} }),
      signal,
    );
    this.smoothing = h("input", {
      title: `Curves of fewer than ${SHORTEST} points are not smoothed`,
      type: "range",
      min: 0,
      max: 0.99,
      step: 0.01,
      class: "ck-range",
      "aria-label": "Smoothing",
    });
    this.smoothing.addEventListener("input", () => set({ smoothing: Number(this.smoothing.value) }), { signal });
    this.zoomOut = button("Zoom out", "Show the whole training again", () => set({ zoom: null }), signal);
    this.pause = button("Pause", "Pause live updates", () => set({ paused: !host.state.paused }), signal);
    this.stop = button(
      "Stop training",
      "Ask the training to end cleanly at its next step",
      () => this.requestStop(),
      signal,
    );
    const turn = () => set({ view: host.compact ? "full" : "compact", enlarged: "" });
    this.fold = button("", "Show all panels, or a low strip", turn, signal);
    this.element = h(
      "div",
      { class: "ck-bar", role: "toolbar", "aria-label": "Cockpit" },
      h("strong", { class: "ck-brand" }, h("span", { "aria-hidden": "true" }, "◈ "), "Cockpit"),
      this.runs,
      popover(this.more, () => runList(host, signal), signal, { label: "Choose runs", className: "ck-runlist" }),
      this.fold,
      this.pause,
      this.stop,
      h("span", { class: "ck-space" }),
      this.status, // the longest, and last: if anything goes into a line of its own, this
      h("span", { class: "ck-break" }),
      this.layer,
      this.axis,
      this.xlog,
      this.yscale,
      h("label", { class: "ck-smooth" }, "smooth", this.smoothing, this.smoothText),
      this.zoomOut,
      viewMenu(host, signal),
      exportMenu(host, signal),
    );
  }

  private requestStop(): void {
    for (const run of this.stoppable(this.host.context())) {
      this.stopping.add(run);
      this.host.source.requestStop?.(run);
    }
    this.updateStop(this.host.context());
  }

  update(ctx: Context, status: SourceStatus, names: string[], broken: number): void {
    const { state } = ctx;
    this.updateRuns(ctx, names);
    this.updateStatus(ctx, status, broken);
    const layers = allLayers(ctx);
    const known = layers.includes(state.layer) || !state.layer ? layers : [...layers, state.layer];
    refill(this.layer, JSON.stringify(known), () => layerOptions(known));
    this.layer.value = state.layer;
    setHidden(this.layer, !known.length);
    const epochs = this.axis.options[1];
    epochs.disabled = !ctx.runs.some(({ data }) => data.hasEpochs);
    this.axis.value = ctx.axis;
    setAttribute(this.xlog, "aria-pressed", String(state.xlog));
    this.yscale.value = state.yscale;
    if (this.smoothing.value !== String(state.smoothing)) this.smoothing.value = String(state.smoothing);
    setText(this.smoothText, state.smoothing.toFixed(2));
    setHidden(this.zoomOut, !state.zoom);
    const open = ctx.runs.some(({ data }) => isOpen(data.status.state));
    setHidden(this.pause, status.connection === "static" || (!open && !state.paused));
    setHidden(this.fold, !this.host.folds);
    setText(this.fold, this.host.compact ? "Expand ▾" : "Compact ▴");
    setText(this.pause, state.paused ? "Resume" : "Pause");
    setAttribute(this.pause, "aria-pressed", String(state.paused));
    this.updateStop(ctx);
  }

  private updateRuns(ctx: Context, names: string[]): void {
    const shown = ctx.runs.slice(0, 5);
    const key = JSON.stringify([
      shown.map((own) => [own.run, own.color, own.data.status.state, healthOf(own).tone]),
      names.length,
    ]);
    refill(this.runs, key, () =>
      shown.map((own) => {
        const { run, label, color, data } = own;
        const { tone } = healthOf(own);
        const dot = swatch(color, `ck-dot ck-${data.status.state.replace(/\W/g, "")} ck-is-${tone}`);
        const chip = h(
          "button",
          {
            type: "button",
            class: "ck-chip ck-run",
            title: `${run.slice(0, 400)} (${data.status.state}): click to hide`,
            "aria-label": `hide run ${label}`,
          },
          dot,
          label,
        );
        const hide = () => this.host.set({ runs: ctx.runs.map((own) => own.run).filter((own) => own !== run) });
        chip.addEventListener("click", hide, { signal: this.signal });
        return chip;
      }),
    );
    const all = ctx.runs.length === names.length ? `${names.length} runs` : `${ctx.runs.length} of ${names.length}`;
    setText(
      this.more,
      shown.length < names.length ? `${all}${ctx.runs.length < names.length ? " shown" : ""} ▾` : "Runs ▾",
    );
    setHidden(this.more.closest(".ck-popwrap") as HTMLElement, names.length < 2);
  }

  private updateStatus(ctx: Context, status: SourceStatus, broken: number): void {
    const summary = summarize(ctx, status, broken);
    refill(this.status, String(summary.words.length), () => [
      h("i"),
      ...summary.words.map((_, i) => h("span", { class: i ? "ck-num" : "ck-state" })),
    ]);
    const [lamp, ...spans] = this.status.children as unknown as HTMLElement[];
    summary.words.forEach(({ text, title }, i) => {
      setText(spans[i], text);
      setAttribute(spans[i], "title", title ?? "");
    });
    // It beats with the pictures: an animation would have the browser compose sixty a second, also when nothing comes.
    const beats = summary.tone === "live" && Math.floor(performance.now() / 1000) % 2 === 1;
    setAttribute(lamp, "class", `ck-lamp ck-${summary.tone}${beats ? " ck-beat" : ""}`);
  }

  private stoppable(ctx: Context): string[] {
    const { source } = this.host;
    if (!source.requestStop) return [];
    const alive = ctx.runs.filter(({ data }) => isOpen(data.status.state));
    return alive.map(({ run }) => run).filter((run) => source.canStop?.(run) ?? true);
  }

  private updateStop(ctx: Context): void {
    const runs = this.stoppable(ctx);
    const asked = runs.some((run) => this.stopping.has(run) || this.host.source.isStopping?.(run));
    setHidden(this.stop, !runs.length);
    this.stop.disabled = asked;
    setText(this.stop, asked ? "Stop requested…" : "Stop training");
    if (!runs.length) this.stopping.clear();
  }
}

const isOpen = (state: string) => state === "running" || state === "waiting";

function layerOptions(layers: string[]): HTMLElement[] {
  const texts = shortNames(layers, 48);
  const option = (name: string) => h("option", { value: name, title: name.slice(0, 400) }, texts.get(name));
  return [h("option", { value: "" }, "all layers"), ...layers.map(option)];
}
