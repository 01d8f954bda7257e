// What a run that has ended did not measure, and why: one list instead of an empty panel for each.

import { csvLines } from "../contract/export.ts";
import { type Context, isOver, type Panel, reasonFor } from "../contract/panel.ts";
import { formatShare } from "../data/format.ts";
import { h, refill } from "../draw/dom.ts";
import { trackingBudget } from "../judge/costs.ts";

/** Where tracking gave no reason, the run was over first. */
function whyNot(ctx: Context, { needs }: Panel): string {
  const reason = reasonFor(ctx, needs ?? []);
  if (reason) return `${reason[0].toUpperCase()}${reason.slice(1)}.`;
  const budgets = ctx.runs.flatMap((run) => trackingBudget(run) ?? []);
  if (!budgets.length) return "The run ended before the first one was due.";
  return `The run ended first: tracking kept to ${formatShare(Math.max(...budgets))} of the time. A longer run, a larger budget= or schedule=10 (every tenth step) would measure it.`;
}

/** Titles with one reason stand together. */
function rowsOf(ctx: Context, idle: Panel[]): [string, string][] {
  const rows = new Map<string, string[]>();
  for (const panel of idle) {
    const why = whyNot(ctx, panel);
    rows.set(why, [...(rows.get(why) ?? []), panel.title]);
  }
  return [...rows].map(([why, titles]) => [titles.join(", "), why]);
}

export function unmeasuredPanel(idle: () => Panel[]): Panel {
  return {
    id: "unmeasured",
    title: "Not measured",
    group: "about",
    order: 25,
    height: 240,
    names: [],
    help: [
      "Quantities that were asked for and have no value, with the reason. Their panels have nothing to show and are left out.",
      "Quantities that this kind of run cannot have (Adam's denominators in a run of SGD, attention in a network without it) are listed too.",
    ],
    shows: (ctx) => isOver(ctx) && idle().length > 0,
    readings: () => [],
    fill(ctx, element) {
      const key = [idle().map(({ id }) => id), ctx.runs.map(({ run, data }) => [run, data.version])];
      const line = ([what, why]: [string, string]) => h("tr", {}, h("td", { class: "ck-of" }, what), h("td", {}, why));
      refill(element, JSON.stringify(key), () => [h("table", {}, h("tbody", {}, ...rowsOf(ctx, idle()).map(line)))]);
    },
    csv: (ctx) => csvLines([["panel", "why there is no value"], ...rowsOf(ctx, idle())]),
  };
}
