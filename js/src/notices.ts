// Warnings put together: the same thing again and again is one, what is worst comes first.
import type { Context, ShownRun } from "./panel.ts";
import type { Notice } from "./records.ts";

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

export interface Line {
  run: ShownRun;
  notice: Notice;
  count: number;
}

/** The same thing again and again is one line with a count; what is worst comes first. */
export function groupWarnings(ctx: Context): Line[] {
  const lines = new Map<string, Line>();
  for (const run of ctx.runs)
    for (const notice of run.data.warnings) {
      const key = JSON.stringify([
        run.run,
        notice.kind,
        notice.quantity,
        notice.layer,
        notice.message.replace(/[\d.]+/g, "#"),
      ]);
      const known = lines.get(key);
      if (known) known.count++;
      else lines.set(key, { run, notice, count: 1 });
    }
  const place = (line: Line) => (rank.indexOf(line.notice.kind) + rank.length) % rank.length;
  return [...lines.values()].sort((a, b) => place(a) - place(b) || a.notice.step - b.notice.step);
}
