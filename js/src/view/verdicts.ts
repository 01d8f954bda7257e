// What a panel thinks of each run: one sentence if there is one run, a few words per opinion if there are several.

import type { Context, Panel, ShownRun } from "../contract/panel.ts";
import { shorten } from "../data/format.ts";
import { h, swatch } from "../draw/dom.ts";
import { isSick } from "../judge/health.ts";

export interface Opinion {
  text: string;
  runs: ShownRun[];
}

export function opinions(panel: Panel, ctx: Context): Opinion[] {
  if (!panel.verdict) return [];
  const several = ctx.runs.length > 1;
  const groups = new Map<string, ShownRun[]>();
  for (const run of ctx.runs) {
    const own = panel.verdict(ctx, run);
    if (!own || (!own.fault && isSick(run, ctx.step))) continue;
    const text = several ? own.short : own.text;
    groups.set(text, [...(groups.get(text) ?? []), run]);
  }
  return [...groups].map(([text, runs]) => ({ text, runs }));
}

/** Everything as one text, with the names of the runs: for hovering and for screen readers. */
export function inWords(judgements: Opinion[], note: string, several: boolean): string {
  const words = judgements.map(({ text, runs }) =>
    several ? `${runs.map(({ label }) => label).join(", ")}: ${text}.` : text,
  );
  return [...words, note].filter(Boolean).join(" ");
}

/** Runs of one opinion stand together, each as a dot of its colour; two runs have room for their names as well. */
export function opinionNodes(judgements: Opinion[], count: number): Node[] {
  return judgements.map(({ text, runs }) => {
    const names = count === 2 ? `${runs.map(({ label }) => shorten(label, 16)).join(", ")}: ` : "";
    const dots = runs.map(({ label, color }) => swatch(color, undefined, label));
    return h("span", { class: "ck-opinion" }, ...dots, `${names}${text} `);
  });
}

const MOST_LINES = 5; // on a telephone; beyond, the title has the rest

const LETTER = 6.1; // pixels, about
const WHEN = 14; // letters of "At step 1234: ", which comes as soon as the user points at a step

/** Lines that this takes in a card of that width, about: each loses half a word to wrapping, and an opinion is not divided. */
export function countLines(judgements: Opinion[], note: string, several: boolean, width: number): number {
  const named = judgements.reduce((sum, { runs }) => sum + runs.length, 0) === 2 ? 16 * LETTER : 0;
  let [lines, at] = [1, 0];
  const flow = (size: number) => {
    at += size;
    if (at <= width) return;
    lines += Math.ceil(at / Math.max(1, width - 18)) - 1;
    at %= Math.max(1, width - 18);
  };
  for (const { text, runs } of judgements) {
    const letters = text.replace(/^At step \d+: /, "").length + (several ? 2 : WHEN);
    const size = LETTER * letters + (several ? runs.length * (14 + named) + 8 : 0);
    if (several && at && at + size > width) [lines, at] = [lines + 1, 0];
    flow(size);
  }
  flow(LETTER * note.length);
  return judgements.length || note ? Math.min(MOST_LINES, lines) : 0;
}
