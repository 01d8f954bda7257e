// Why do two runs differ? A table of what they do not share; for one run, all that is known of it.
import { h, refill } from "../dom.ts";
import { csvLines } from "../export.ts";
import { describeHeader } from "../facts.ts";
import { shorten } from "../format.ts";
import type { Context, Panel } from "../panel.ts";

/** Rows of name and one value per run; with several runs only where they differ. */
export function differences(ctx: Context): [string, string[]][] {
  const facts = ctx.runs.map(({ data }) => (data.header ? describeHeader(data.header) : new Map<string, string>()));
  const names = [...new Set(facts.flatMap((own) => [...own.keys()]))];
  const rows = names.map((name): [string, string[]] => [name, facts.map((own) => own.get(name) ?? "–")]);
  return ctx.runs.length > 1 ? rows.filter(([, values]) => new Set(values).size > 1) : rows;
}

const panel: Panel = {
  id: "about",
  title: "Runs and their differences",
  group: "about",
  order: 20,
  height: 250,
  names: [],
  help: [
    "With several runs: everything that is not the same in all of them - hyperparameters, versions, commit, options. What is missing here is equal.",
    "With one run: what was recorded about it when tracking began, and which parameters could not be measured.",
  ],
  shows: (ctx) => ctx.runs.some(({ data }) => data.header),
  readings: (ctx) =>
    ctx.runs.length > 1
      ? [{ label: "differences", value: differences(ctx).length, text: `${differences(ctx).length} differ` }]
      : [],
  fill(ctx, element) {
    const key = JSON.stringify([
      ctx.theme.dark,
      ctx.runs.map(({ run, color, data }) => [run, color, data.header?.revision]),
    ]);
    refill(element, key, () => {
      const rows = differences(ctx);
      if (!rows.length) return [ctx.runs.length > 1 ? "These runs were made alike." : ""];
      const names = ctx.runs.map(({ label, color }) => {
        const swatch = h("i", { class: "ck-swatch" });
        swatch.style.setProperty("--c", color);
        return h("th", {}, swatch, label);
      });
      const body = rows.map(([name, values]) =>
        h(
          "tr",
          {},
          h("td", { class: "ck-fact" }, shorten(name, 60)),
          ...values.map((value) => h("td", { class: "ck-of", title: value.slice(0, 1000) }, shorten(value, 120))),
        ),
      );
      return [h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, ""), ...names)), h("tbody", {}, ...body))];
    });
  },
  csv: (ctx) =>
    csvLines([
      ["name", ...ctx.runs.map(({ run }) => run)],
      ...differences(ctx).map(([name, values]) => [name, ...values]),
    ]),
};
export default panel;
