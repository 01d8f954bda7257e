// The frame around one panel: title with its explanation, current numbers, chart, sentence, menu.

import { tableRows, tableScene } from "../charts/table.ts";
import { type Context, type Panel, type Reading, titleOf } from "../contract/panel.ts";
import { formatNumber } from "../data/format.ts";
import { h, popover, refill, setAttribute, setClass, setData, setHidden, setText, swatch } from "../draw/dom.ts";
import { Painter, TextLayer } from "../draw/draw.ts";
import { emptyScene, messageScene, type Scene } from "../draw/scene.ts";
import type { CardHost } from "./card_host.ts";
import { cardMenu } from "./card_menu.ts";
import { type Described, gestures, Pointer } from "./pointer.ts";
import { inFull, isStale, oldSteps, summarizeReadings } from "./readings.ts";
import { countLines, inWords, opinionNodes, opinions } from "./verdicts.ts";

const MOST_SPOTS = 60;
const MOST_SAID = 12; // numbers that a listener can follow
export const LOW = 44; // pixels of a chart that waits for its first value
const LINE = 24; // pixels that a line of numbers takes
const inShort = ({ text, value }: Reading) => text ?? (value === null ? "–" : formatNumber(value));
/** "fc.weight: gradient RMS 0.1" is a row of two cells. */
const halves = (hint: string): [string, string] => {
  const at = hint.indexOf(": ");
  return [hint.slice(0, Math.max(0, at)), hint.slice(at < 0 ? 0 : at + 2)];
};
const heading = (scope: string, text: string) => h("th", { scope }, text);
const tableRow = (what: string, ...cells: string[]) =>
  h("tr", {}, heading("row", what), ...cells.map((text) => h("td", {}, text)));

function readingRow(reading: Reading): HTMLElement {
  const { label, value, run, step } = reading;
  const row = tableRow(label, inFull(reading), step === undefined ? "" : String(step));
  setData(row, { value: value === null ? "" : String(value), label, run, step });
  return row;
}

/** The same context; says when it is asked for the part of the axis that is in sight. */
const watchDomain = (ctx: Context, asked: () => void): Context =>
  Object.defineProperty({ ...ctx }, "domain", {
    enumerable: true,
    get: () => {
      asked();
      return ctx.domain;
    },
  });

export class Card {
  readonly element: HTMLElement;
  readonly body: HTMLElement;
  visible = true;
  dirty = true;
  private whole = true; // also its numbers and its sentence, which are about a step, not about the part in sight
  private moves = false; // it shows the part of the axis that is in sight
  measured = false; // the size is known, and holds until the page says otherwise
  drawn = 0; // when, counted in pictures
  private size = { width: 320, height: 200 };
  scene: Scene = emptyScene(0, 0);
  private readonly canvas = h("canvas", { "aria-hidden": "true" });
  private readonly painter = new Painter(this.canvas);
  private readonly texts: TextLayer;
  private readonly readings = h("div", { class: "ck-readings" });
  private readonly shown: { key: string; spans: HTMLElement[] } = { key: "", spans: [] };
  private readonly legend = h("div", { class: "ck-legend", hidden: true });
  private readonly note = h("p", { class: "ck-note" });
  private readonly values = h("div", { class: "ck-sr ck-values" });
  private readonly abort = new AbortController();
  private ctx: Context | null = null;
  private reserved = { runs: "", lines: 0, width: 0 };
  private readonly head: HTMLElement;
  private readonly title = h("span", {});
  private titleWidth = 0;
  private low: boolean | null = null;

  constructor(
    readonly panel: Panel,
    private readonly host: CardHost,
  ) {
    const titleId = `ck-${panel.id.replace(/[^\w-]/g, "-").slice(0, 60)}-${Math.random().toString(36).slice(2, 8)}`;
    const layer = h("div", { class: "ck-texts", "aria-hidden": "true" });
    this.texts = new TextLayer(layer);
    this.body = panel.fill
      ? h("div", { class: "ck-table", tabindex: 0, role: "group", "aria-labelledby": titleId })
      : h(
          "div",
          {
            class: "ck-chart",
            tabindex: 0,
            role: "group",
            "aria-roledescription": "chart",
            "aria-label": `${panel.title}: chart`,
          },
          this.canvas,
          layer,
        );
    if (panel.fill) this.body.style.maxHeight = `${panel.height * 1.6}px`;
    this.head = h(
      "header",
      { class: "ck-head", draggable: "true" },
      this.titleButton(titleId),
      this.readings,
      this.menuButton(),
    );
    this.element = h(
      "section",
      { class: "ck-card", "data-panel": panel.id, "aria-labelledby": titleId },
      this.head,
      this.legend,
      this.body,
      this.note,
      panel.draw ? this.values : null,
    );
    this.setLow(false);
    this.listenToDrag(this.head);
    if (panel.draw) new Pointer(this.body, this, host, this.abort.signal);
  }

  /** As long as there is nothing to draw, a card takes little room. */
  setLow(low: boolean): void {
    if (this.low === low) return;
    this.low = low;
    this.element.style.flexGrow = low ? "0" : String(this.panel.height);
    if (!this.panel.fill) this.body.style.minHeight = `${low ? LOW : this.panel.height}px`;
  }

  private titleButton(id: string): HTMLElement {
    this.title.textContent = this.panel.title;
    const button = h(
      "button",
      { class: "ck-title", type: "button", id, title: "How to read this" },
      this.title,
      h("span", { class: "ck-q", "aria-hidden": "true" }, "?"),
    );
    const text = () => [
      h("h4", {}, `How to read “${this.panel.title}”`),
      ...this.panel.help.map((line) => h("p", {}, line)),
      ...(this.panel.draw ? gestures.map((line) => h("p", { class: "ck-fine" }, line)) : []),
    ];
    return popover(button, text, this.abort.signal, { label: `How to read ${this.panel.title}`, className: "ck-help" });
  }

  private menuButton(): HTMLElement {
    const button = h(
      "button",
      { class: "ck-icon", type: "button", "aria-label": `${this.panel.title}: options`, title: "Options" },
      "⋯",
    );
    const root = () => this.element.closest<HTMLElement>(".ck-root");
    const picture = () => (this.panel.fill && this.ctx ? tableScene(tableRows(this.body), this.ctx.theme) : this.scene);
    const items = () => (this.ctx ? cardMenu(this.panel, this.host, this.ctx, picture, root()) : []);
    return popover(button, items, this.abort.signal, {
      label: `${this.panel.title}: options`,
      className: "ck-menu ck-right",
    });
  }

  private listenToDrag(header: HTMLElement): void {
    const { signal } = this.abort;
    const type = "text/x-cockpit-panel";
    header.addEventListener("dragstart", (event) => event.dataTransfer?.setData(type, this.panel.id), { signal });
    const after = (event: DragEvent) => {
      const box = this.element.getBoundingClientRect();
      return event.clientY > box.top + box.height / 2;
    };
    this.element.addEventListener(
      "dragover",
      (event) => {
        if (!event.dataTransfer?.types.includes(type)) return;
        event.preventDefault();
        this.element.dataset.drop = after(event) ? "after" : "before";
      },
      { signal },
    );
    this.element.addEventListener("dragleave", () => delete this.element.dataset.drop, { signal });
    this.element.addEventListener(
      "drop",
      (event) => {
        delete this.element.dataset.drop;
        const id = event.dataTransfer?.getData(type);
        if (!id || id === this.panel.id) return;
        event.preventDefault();
        this.host.drop(id, this.panel.id, after(event));
      },
      { signal },
    );
  }

  /** Something changed, or only the part of the axis that is in sight: then it is drawn again if it shows that. */
  markDirty(moved: boolean): void {
    this.dirty ||= !moved || this.moves;
    this.whole ||= !moved;
  }

  /** Draws with what the context holds. A panel that fails says so in its own place; the others go on. */
  update(ctx: Context): void {
    const { whole, panel } = this;
    this.ctx = ctx;
    this.dirty = this.whole = this.moves = false;
    try {
      if (whole) this.showReadings(panel.readings(ctx), ctx);
      if (whole) this.showNote(ctx);
      setText(this.title, titleOf(panel, ctx));
      const seen = watchDomain(ctx, () => {
        this.moves = true;
      });
      if (panel.fill) panel.fill(seen, this.body);
      else this.paint(seen);
    } catch (error) {
      const { width, height } = this.size;
      this.show(messageScene(width, height, `This panel failed: ${error}`, ctx.theme.warn), ctx.theme.card);
    }
  }

  // A sentence that comes, goes or grows by a line while the user scrubs would move every card below it: the place that it
  // once needed is kept.
  private showNote(ctx: Context): void {
    const several = ctx.runs.length > 1;
    const runs = ctx.runs.map(({ run }) => run).join("\n");
    if (runs !== this.reserved.runs) this.reserved = { ...this.reserved, runs, lines: 0 };
    const judgements = opinions(this.panel, ctx);
    const note = this.panel.note?.(ctx) ?? "";
    const words = inWords(judgements, note, several);
    const lines = countLines(judgements, note, several, this.size.width);
    this.reserved.lines = Math.max(this.reserved.lines, lines);
    const colors = several ? judgements.flatMap((own) => own.runs.map(({ color }) => color)) : [];
    refill(this.note, JSON.stringify([words, colors]), () =>
      several ? [...opinionNodes(judgements, ctx.runs.length), note] : [words],
    );
    setAttribute(this.note, "title", words); // names the runs, and is there where the lines are not enough
    setHidden(this.note, !this.reserved.lines);
    const height = `${Number((this.reserved.lines * 1.35 + 0.25).toFixed(2))}em`;
    if (this.note.style.height !== height) this.note.style.height = height;
  }

  /** Reads the size. All cards are measured before any is drawn: reading after writing would lay out the page anew. */
  measure(anew = false): void {
    if (anew) this.painter.forget();
    this.titleWidth ||= this.title.offsetWidth;
    this.measured = !anew;
    this.size = { width: this.body.clientWidth || 320, height: this.body.clientHeight || this.panel.height };
  }

  private paint(ctx: Context): void {
    const { size } = this;
    const scene = this.panel.draw?.(ctx, size) ?? emptyScene(size.width, size.height);
    this.show(scene, ctx.theme.card);
  }

  private show(scene: Scene, ground: string): void {
    this.scene = scene;
    this.painter.draw(scene, Math.min(3, globalThis.devicePixelRatio || 1), ground);
    this.texts.update(scene.marks);
    const key = JSON.stringify(scene.legend);
    setHidden(this.legend, !scene.legend.length);
    refill(this.legend, key, () =>
      scene.legend.map(({ label, title, color, dash }) => {
        const line = swatch(color, !dash ? "" : dash[0] > 2 ? "ck-dash" : "ck-dotted");
        return h("span", { title: (title ?? label).slice(0, 400) }, line, label);
      }),
    );
  }

  private showReadings(readings: Reading[], ctx: Context): void {
    const old = oldSteps(readings, ctx);
    const stale = readings.map((own) => !old && isStale(own, ctx)); // beside newer ones: in grey
    const key = JSON.stringify([readings, old, stale]);
    const all = readings.filter((reading) => !reading.minor);
    const shown: (Reading & { old?: boolean })[] = [...summarizeReadings(all)];
    if (old) shown.unshift({ label: "measured", value: null, text: old, old: true });
    this.reserve(shown.map(inShort));
    if (this.shown.key === key) return;
    while (this.shown.spans.length < shown.length) {
      const span = h("span", { class: "ck-reading" });
      this.shown.spans.push(span);
      this.readings.append(span);
    }
    for (const span of this.shown.spans.splice(shown.length)) span.remove();
    shown.forEach((reading, i) => {
      const { label, value, step, run, color } = reading;
      const span = this.shown.spans[i];
      setText(span, inShort(reading));
      span.title = `${label}${value === null ? "" : `: ${value}`}${step === undefined ? "" : ` at step ${step}`}`;
      setData(span, { value: value === null ? "" : String(value), label, run, step });
      setAttribute(span, "style", color ? `--c: ${color}` : "");
      setClass(span, "ck-colored", color !== undefined);
      setClass(span, "ck-old", "old" in reading || stale[readings.indexOf(reading)] === true);
    });
    this.shown.key = key;
  }

  // The head is laid out by what its numbers once needed, not by what they need now: they change with every frame. Beside
  // the title if they fit there, else below it, in at most two lines.
  private reserve(texts: string[]): void {
    const wanted = texts.reduce((sum, text) => sum + 8 * text.length + 12, 0);
    this.reserved.width = Math.max(this.reserved.width, 16 * Math.ceil(wanted / 16));
    const { width } = this.reserved;
    const beside = this.size.width - 64 - (this.titleWidth || 7.5 * this.panel.title.length);
    const below = width > beside;
    const lines = below ? Math.min(2, Math.ceil(width / Math.max(1, this.size.width))) : 1;
    setClass(this.head, "ck-below", below && texts.length > 0);
    const height = `${lines * LINE - 2}px`;
    if (this.readings.style.height !== height) this.readings.style.height = height;
  }

  /** What the chart shows, as a table that only screen readers see. Called when the picture has come to rest. */
  tell(): void {
    const { ctx, panel } = this;
    if (!ctx || !panel.draw) return;
    const note = inWords(opinions(panel, ctx), panel.note?.(ctx) ?? "", ctx.runs.length > 1);
    const where = ctx.step === null ? "before the first record" : `at step ${ctx.step}`;
    const now = panel.readings(ctx);
    const spots = this.scene.spots.slice(0, MOST_SPOTS).map(({ hint }) => hint);
    const said = [...now.map((own) => `${own.label} ${inShort(own)}`), ...spots];
    const rest = said.length > MOST_SAID ? `, and ${said.length - MOST_SAID} more in the table below` : "";
    setAttribute(this.body, "aria-label", `${panel.title} ${where}: ${said.slice(0, MOST_SAID).join(", ")}${rest}`);
    const all = [...now, ...(panel.details?.(ctx) ?? [])];
    refill(this.values, JSON.stringify([where, note, all, spots]), () => [
      h(
        "table",
        {},
        h("caption", {}, `${panel.title} ${where}. ${note}`),
        h("thead", {}, h("tr", {}, ...["what", "value", "measured at step"].map((text) => heading("col", text)))),
        h("tbody", {}, ...all.map(readingRow), ...spots.map((hint) => tableRow(...halves(hint), ""))),
      ),
    ]);
  }

  /** What a hover or a focused chart says about the step in question. */
  describe(ctx: Context): Described[] {
    return this.panel.readings(ctx).map(({ label, text, value, color }) => ({
      text: `${label}: ${text ?? (value === null ? "no value" : formatNumber(value, 4))}`,
      color,
    }));
  }

  get context(): Context | null {
    return this.ctx;
  }

  destroy(): void {
    this.abort.abort();
    this.element.remove();
  }
}
