// The cards in their places: made when a panel has something to show, moved when the width or the user asks for it.

import { type Context, isIdle, isOver, type Panel, titleOf } from "../contract/panel.ts";
import { h, refill, setHidden } from "../draw/dom.ts";
import { healthOf } from "../judge/health.ts";
import { otherPanels } from "../panels/_other.ts";
import { unmeasuredPanel } from "../panels/_unmeasured.ts";
import { panels as ownPanels } from "../panels/index.ts";
import type { PanelTitle } from "./bar_host.ts";
import { Card, LOW } from "./card.ts";
import type { CardHost } from "./card_host.ts";
import { arrange, columnCount, groupTitles } from "./layout.ts";

export class Board {
  readonly element = h("div", { class: "ck-board" });
  lists: string[][] = [];
  showAll = false; // also what cannot be seen, for printing
  titles: PanelTitle[] = [];
  private cards = new Map<string, Card>();
  private placed = "";
  private pictures = 0;
  private idle: Panel[] = []; // what has no value yet, or got none
  private readonly unmeasured = unmeasuredPanel(() => this.idle);
  private readonly empty = h("div", { class: "ck-empty", hidden: true });
  private readonly sizes: ResizeObserver | null;
  private readonly sights: IntersectionObserver | null;

  constructor(
    private readonly host: CardHost,
    private readonly only: string[] | null,
    redraw: () => void,
  ) {
    this.element.append(this.empty);
    this.sizes =
      typeof ResizeObserver === "undefined" ? null : new ResizeObserver((entries) => this.resize(entries, redraw));
    this.sights =
      typeof IntersectionObserver === "undefined"
        ? null
        : new IntersectionObserver((entries) => this.look(entries, redraw), { rootMargin: "120px" });
    this.sizes?.observe(this.element);
  }

  private resize(entries: ResizeObserverEntry[], redraw: () => void): void {
    const changed = new Set(entries.map((entry) => entry.target));
    for (const card of this.cards.values()) if (changed.has(card.body)) card.measured = false;
    redraw();
  }

  private look(entries: IntersectionObserverEntry[], redraw: () => void): void {
    for (const entry of entries)
      for (const card of this.cards.values()) if (card.element === entry.target) card.visible = entry.isIntersecting;
    if (entries.some((entry) => entry.isIntersecting)) redraw();
  }

  /** Screen readers hear of a picture that has come to rest, not of every frame. */
  tell(): void {
    for (const card of this.cards.values()) if (card.visible || this.showAll) card.tell();
  }

  card(id: string): Card | undefined {
    return this.cards.get(id);
  }

  /** Brings the panel that shows a column into view, and says so with the focus. */
  reveal(name: string): void {
    const cards = [...this.cards.values()];
    const own =
      cards.find(({ panel }) => panel.names.includes(name) || panel.names.includes(`signal/${name}`)) ??
      cards.find(({ panel }) => panel.id === name);
    if (own) this.show(own.panel.id);
  }

  show(id: string): void {
    const element = this.cards.get(id)?.element;
    element?.scrollIntoView?.({ block: element.classList.contains("ck-big") ? "start" : "nearest" });
    element?.querySelector<HTMLElement>(".ck-title")?.focus({ preventScroll: true });
  }

  markDirty(moved = false): void {
    for (const card of this.cards.values()) card.markDirty(moved);
  }

  /** Draws what is due, longest-waiting first, until `deadline`; true if something is left for the next frame. */
  update(ctx: Context, width: number, deadline = Number.POSITIVE_INFINITY, compact = false): boolean {
    const all = [...ownPanels, ...otherPanels(ctx)].filter(
      (panel) => (!this.only || this.only.includes(panel.id)) && panel.shows(ctx),
    );
    this.idle = all.filter((panel) => isIdle(ctx, panel));
    const there = isOver(ctx) && !compact ? this.withoutIdle(all, ctx) : all;
    const panels = compact ? chooseFew(there) : there;
    const shown = panels.filter((panel) => !ctx.state.hidden.includes(panel.id) && (this.only || isWanted(panel, ctx)));
    this.make(shown);
    for (const card of this.cards.values()) card.setLow(this.idle.some(({ id }) => id === card.panel.id));
    this.place(shown, ctx, width, compact);
    this.titles = inOrder(panels, this.lists.flat(), ctx);
    setHidden(this.empty, shown.length > 0);
    if (!shown.length) showEmpty(this.empty, ctx, panels.length);
    const due = [...this.cards.values()].filter((card) => (card.visible || this.showAll) && card.dirty);
    due.sort((a, b) => a.drawn - b.drawn);
    for (const card of due) if (this.showAll || !this.sizes || !card.measured) card.measure(this.showAll);
    for (const card of due) {
      card.update(ctx);
      card.drawn = ++this.pictures;
      if (performance.now() > deadline) break;
    }
    return due.some((card) => card.dirty);
  }

  /** What will not come any more is one list, instead of an empty place for each. */
  private withoutIdle(all: Panel[], ctx: Context): Panel[] {
    const rest = all.filter((panel) => !this.idle.includes(panel));
    return !this.only && this.unmeasured.shows(ctx) ? [...rest, this.unmeasured] : rest;
  }

  private make(shown: Panel[]): void {
    const ids = new Set(shown.map((panel) => panel.id));
    for (const [id, card] of this.cards)
      if (!ids.has(id)) {
        this.sizes?.unobserve(card.body);
        this.sights?.unobserve(card.element);
        card.destroy();
        this.cards.delete(id);
      }
    for (const panel of shown) {
      if (this.cards.has(panel.id)) continue;
      const card = new Card(panel, this.host);
      this.cards.set(panel.id, card);
      this.sizes?.observe(card.body);
      this.sights?.observe(card.element);
    }
  }

  private place(shown: Panel[], ctx: Context, width: number, compact: boolean): void {
    const count = columnCount(width);
    const big = shown.some((panel) => panel.id === ctx.state.enlarged) ? ctx.state.enlarged : "";
    this.lists = compact
      ? [shown.map(({ id }) => id), ...Array.from({ length: count + 1 }, () => [])]
      : arrange(
          shown.map((panel) => (this.idle.includes(panel) ? { ...panel, height: LOW } : panel)),
          count,
          ctx.state.order,
        );
    const key = JSON.stringify([this.lists, big]);
    if (key === this.placed) return;
    this.placed = key;
    const focus = document.activeElement;
    const group = new Map(shown.map((panel) => [panel.id, panel.group]));
    const column = (ids: string[], className: string) => {
      const element = h("div", { class: className });
      let last = "";
      for (const id of ids) {
        if (id === big) continue;
        const title = groupTitles[group.get(id) ?? "about"];
        if (title !== last && className === "ck-column") element.append(h("h3", {}, title));
        last = title;
        element.append(this.cards.get(id)?.element ?? "");
      }
      return element;
    };
    const parts: HTMLElement[] = [];
    for (const card of this.cards.values()) card.element.classList.toggle("ck-big", card.panel.id === big);
    if (big) parts.push(h("div", { class: "ck-stage" }, this.cards.get(big)?.element ?? ""));
    const columns = h(
      "div",
      { class: "ck-columns" },
      ...this.lists.slice(1, -1).map((ids) => column(ids, "ck-column")),
    );
    columns.style.gridTemplateColumns = `repeat(${count}, minmax(0, 1fr))`;
    parts.push(columns);
    if (this.lists[0].some((id) => id !== big)) parts.splice(-1, 0, column(this.lists[0], "ck-row ck-first"));
    const below = this.lists.at(-1) ?? [];
    if (below.length) parts.push(column(below, "ck-row"));
    this.element.replaceChildren(this.empty, ...parts);
    if (focus instanceof HTMLElement && this.element.contains(focus)) focus.focus({ preventScroll: true });
  }

  destroy(): void {
    this.sizes?.disconnect();
    this.sights?.disconnect();
    for (const card of this.cards.values()) card.destroy();
    this.cards.clear();
  }
}

/** Titles as the panels stand on the page, column by column; what is hidden comes last. */
function inOrder(panels: Panel[], ids: string[], ctx: Context): PanelTitle[] {
  const place = (id: string) => (ids.indexOf(id) + ids.length + 1) % (ids.length + 1);
  const sorted = [...panels].sort((a, b) => place(a.id) - place(b.id) || a.order - b.order);
  return sorted.map((own) => ({
    id: own.id,
    title: titleOf(own, ctx),
    shown: ids.includes(own.id),
    aside: Boolean(own.aside),
  }));
}

/** What stands aside is shown where the user wants it, or a finding rests on what it shows. */
function isWanted(panel: Panel, { state, runs }: Context): boolean {
  if (!panel.aside || state.shown.includes(panel.id)) return true;
  const named = (name: string) => panel.names.includes(name) || panel.names.includes(`signal/${name}`);
  return runs.some((run) => healthOf(run).findings.some(({ evidence }) => evidence.some(({ name }) => named(name))));
}

/** A strip of few: the loss, a score if there is one, and what moves with every step. */
function chooseFew(panels: Panel[]): Panel[] {
  const first = panels.filter(({ id, group, draw }) => group === "first" && draw && id !== "layer_map");
  const rest = ["grad_norm", "update_ratio", "learning_rate"].flatMap((id) => panels.filter((own) => own.id === id));
  return [...first.sort((a, b) => a.order - b.order), ...rest].slice(0, 4);
}

const FIRST_STEPS = `import cockpit_core

run = cockpit_core.track(model, loss_fn, optimizer, logdir="runs/first")`;

/** Instead of panels: why there are none, and what to do. */
function showEmpty(element: HTMLElement, ctx: Context, hidden: number): void {
  const none = ctx.state.runs?.length === 0 || (ctx.state.runs !== null && !ctx.runs.length);
  if (hidden) refill(element, "hidden", () => ["All panels are hidden. The View menu brings them back."]);
  else if (ctx.runs.length) refill(element, "first", () => ["Waiting for the first record."]);
  else if (none) refill(element, "none", () => ["No run is chosen. The bar above lists all runs."]);
  else
    refill(element, "nothing", () => [
      h("p", {}, h("strong", {}, "No run here yet.")),
      h("p", {}, "In a training script, before the loop:"),
      h("pre", {}, FIRST_STEPS),
      h("p", {}, "logdir is a folder of its own inside the log directory that is shown here."),
      h("p", {}, "Without a script, ", h("code", {}, "cockpit demo"), " trains a small network in runs/."),
      h("p", {}, "A run appears here by itself, with its first record."),
    ]);
}
