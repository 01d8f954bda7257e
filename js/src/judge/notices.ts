// Warnings put together: repetitions are one warning, and the worst comes first.
import type { Context, ShownRun } from "../contract/panel.ts";
import type { Notice } from "../data/records.ts";

const rank = [
  "error",
  "not_finite",
  "zero_gradient",
  "edge_of_stability",
  "outside_range",
  "coverage",
  "trigger",
  "size",
  "note",
];

// What asks for a better setting of the instrument, or only tells what it did, is no reason for alarm.
const mild = new Set(["outside_range", "coverage", "trigger", "size", "note"]);
export const isHint = (notice: Notice) => mild.has(notice.kind);

export interface Line {
  run: ShownRun;
  notice: Notice; // the first
  count: number;
  layers: Map<string, Notice>; // the first of each layer
  names: Set<string>; // of an event that several quantities have part in
}

/** Repetitions, also in several layers, are one line with a count; the worst comes first. */
export function groupWarnings(ctx: Pick<Context, "runs">): Line[] {
  const lines = new Map<string, Line>();
  for (const run of ctx.runs)
    for (const notice of run.data.warnings) {
      // What is not finite makes everything else not finite: that is one event, named after the first.
      const same = notice.kind === "not_finite" ? "" : notice.quantity + notice.message.replace(/[\d.]+/g, "#");
      const key = JSON.stringify([run.run, notice.kind, same]);
      const line = lines.get(key) ?? { run, notice, count: 0, layers: new Map(), names: new Set() };
      line.count++;
      const first = notice.step === line.notice.step && notice.quantity === "Loss"; // the others follow from it
      if (first && line.names.size) line.notice = notice;
      if (notice.kind === "not_finite") line.names.add(notice.quantity);
      if (!line.layers.has(notice.layer)) line.layers.set(notice.layer, notice);
      lines.set(key, line);
    }
  const place = (line: Line) => (rank.indexOf(line.notice.kind) + rank.length) % rank.length;
  return [...lines.values()].sort((a, b) => place(a) - place(b) || a.notice.step - b.notice.step);
}

/** "1 warning, 2 hints", and whether there is a warning among them. */
export function countWords(lines: Line[]): { text: string; alarming: boolean } {
  const hints = lines.filter(({ notice }) => isHint(notice)).length;
  const warnings = lines.length - hints;
  const some = (count: number, word: string) => (count ? `${count} ${word}${count === 1 ? "" : "s"}` : "");
  return {
    text: [some(warnings, "warning"), some(hints, "hint")].filter(Boolean).join(", "),
    alarming: warnings > 0,
  };
}
