// Why do two runs differ? A table of what they do not share; for one run, all that is known about it.

import { csvLines } from "../contract/export.ts";
import type { Context, Panel, ShownRun } from "../contract/panel.ts";
import { formatNumber, shorten } from "../data/format.ts";
import { h, press, refill, swatch } from "../draw/dom.ts";
import { countDepth, describeHeader, describeNetwork, isDefault } from "../judge/facts.ts";

const LONGEST = 600; // letters

/** What is known of one run alone: the network as a whole, and what its schedule made of the learning rate. */
function factsOf(run: ShownRun, alone: boolean): Map<string, string> {
  const { header } = run.data;
  if (!header) return new Map();
  const facts = describeHeader(header);
  if (!alone) return facts;
  const rates = run.data.series("LearningRate", "", "step");
  const highest = rates.extremes.range(rates.y, 0, rates.n)[1];
  const now = rates.y[rates.n - 1];
  if (facts.has("lr") && rates.n && (now !== highest || rates.y[0] !== highest))
    facts.set(
      "lr",
      `${formatNumber(now)} now, highest seen ${formatNumber(highest)}, ${formatNumber(rates.y[0])} at first`,
    );
  const network = facts.get("network") ?? describeNetwork(header.layers); // older logs have no module tree
  facts.delete("network");
  const own: [string, string][] = header.layers.length
    ? [
        ["depth", `${countDepth(header.layers)} weight tensors`],
        ["network", network],
      ]
    : [];
  return new Map(
    [...facts].flatMap(([name, value]): [string, string][] => [[name, value], ...(name === "parameters" ? own : [])]),
  );
}

/** Whole parts of a long list, from its beginning. */
const cutList = (text: string) =>
  text.length > LONGEST
    ? `${shorten(text.slice(0, text.lastIndexOf(", ", LONGEST)), LONGEST)}, …`
    : shorten(text, LONGEST);

const countWords = (count: number) => (count === 1 ? "1 differs" : `${count} differ`);

/** Rows of name and one value per run; with several runs only where they differ. */
export function differences(ctx: Context): [string, string[]][] {
  const facts = ctx.runs.map((run) => factsOf(run, ctx.runs.length === 1));
  const names = [...new Set(facts.flatMap((own) => [...own.keys()]))];
  const rows = names.map((name): [string, string[]] => [name, facts.map((own) => own.get(name) ?? "–")]);
  return ctx.runs.length > 1 ? rows.filter(([, values]) => new Set(values).size > 1) : rows;
}

const panel: Panel = {
  id: "about",
  title: "Runs and their differences",
  alone: "About this run",
  group: "about",
  order: 20,
  height: 250,
  names: [],
  help: [
    "With several runs: everything that differs between them - hyperparameters, versions, commit, options. What is not listed is the same in all.",
    "With one run: what was recorded about it when tracking began, and which parameters could not be measured.",
  ],
  shows: (ctx) => ctx.runs.some(({ data }) => data.header),
  readings: (ctx) =>
    ctx.runs.length > 1
      ? [{ label: "differences", value: differences(ctx).length, text: countWords(differences(ctx).length) }]
      : [],
  fill(ctx, element) {
    const key = JSON.stringify([
      ctx.theme.dark,
      ctx.runs.map(({ run, color, data }) => [run, color, data.header?.revision, ctx.runs.length > 1 || data.version]),
    ]);
    refill(element, key, () => {
      const rows = differences(ctx);
      if (!rows.length) return [ctx.runs.length > 1 ? "These runs have the same settings." : ""];
      const names = ctx.runs.map(({ label, color }) => h("th", {}, swatch(color), label));
      const line = ([name, values]: [string, string[]]) =>
        h(
          "tr",
          {},
          h("td", { class: "ck-fact" }, shorten(name, 60)),
          ...values.map((value) => h("td", { class: "ck-of", title: value.slice(0, 1000) }, cutList(value))),
        );
      const usual = ctx.runs.length === 1 ? rows.filter(([name, [value]]) => isDefault(name, value)) : [];
      const folded = h("tbody", { hidden: true }, ...usual.map(line));
      const fold = () => {
        folded.hidden = !folded.hidden;
      };
      const more = press("ck-link", fold, {}, `${usual.length} more with their default values`);
      const body = h("tbody", {}, ...rows.filter((row) => !usual.includes(row)).map(line));
      const head = h("thead", {}, h("tr", {}, h("th", {}, ""), ...names));
      return [h("table", {}, head, body, folded), usual.length ? more : null];
    });
  },
  csv: (ctx) =>
    csvLines([
      ["name", ...ctx.runs.map(({ run }) => run)],
      ...differences(ctx).map(([name, values]) => [name, ...values]),
    ]),
};
export default panel;
