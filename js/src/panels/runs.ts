// Many runs as a table: how each is, how far it came, what it was made with. It sorts, filters, chooses and colours them.

import { chooseRuns, matchesFilter } from "../contract/choosing.ts";
import { csvLines } from "../contract/export.ts";
import type { Context, Panel, ShownRun } from "../contract/panel.ts";
import { formatDuration, formatNumber, formatShare, shorten } from "../data/format.ts";
import { ROW } from "../data/store.ts";
import { h, press, refill, swatch } from "../draw/dom.ts";
import { trackingShare } from "../judge/costs.ts";
import { describeHeader, differingNames, isAside } from "../judge/facts.ts";
import { groupRuns } from "../judge/groups.ts";
import { healthOf, toneRank } from "../judge/health.ts";
import { endsOf, lossOf, scoreOf } from "../judge/metrics.ts";

const FEWEST = 3; // runs for which a table says more than curves
const MOST_FACTS = 6;

interface Cell {
  text: string;
  value: number | string | null; // what is sorted by
  title?: string;
}
type Cells = Map<string, Cell>;

/** A sentence says the most at its beginning: what stands before a colon is the verdict, the rest its reasons. */
const cutEnd = (whole: string, text = /^(.{12,80}?): /.exec(whole)?.[1] ?? whole) =>
  text.length > 80 ? `${shorten(text, 20_000).slice(0, 78).trimEnd()}…` : shorten(text, 80);
const number = (value: number | null): Cell => ({ text: value === null ? "–" : formatNumber(value), value });

const factsOf = ({ data }: ShownRun) => (data.header ? describeHeader(data.header) : new Map<string, string>());

/** Settings with at least two values. A setting that only some optimizers have, with the same value, tells nothing. */
function settingsOf(ctx: Context): string[] {
  const facts = ctx.runs.map(factsOf);
  const isTold = (name: string) => new Set(facts.flatMap((own) => own.get(name) ?? [])).size > 1;
  return differingNames(ctx.runs.map(({ data }) => data.header)).filter(
    (name) => (!isAside(name) || /seed/i.test(name)) && isTold(name),
  );
}

export function tableOf(ctx: Context): { run: ShownRun; cells: Cells }[] {
  const facts = settingsOf(ctx);
  const [loss, score] = [lossOf(ctx.runs), scoreOf(ctx.runs)];
  return ctx.runs.map((run) => {
    const { data } = run;
    const cells: Cells = new Map();
    const health = healthOf(run);
    cells.set("run", { text: run.run, value: run.run });
    const verdict = health.tone === "well" || health.tone === "advice" ? "no faults found" : health.text;
    cells.set("verdict", { text: verdict, value: toneRank(health.tone), title: health.text });
    const [last, best] = endsOf(run, loss);
    cells.set(`last ${loss.title}`, number(last)).set("best", number(best));
    if (score) {
      const [now, top] = endsOf(run, score);
      cells.set(`last ${score.title}`, number(now)).set(`best ${score.title}`, number(top));
    }
    const own = factsOf(run);
    for (const name of facts.slice(0, MOST_FACTS)) {
      const text = own.get(name) ?? "–";
      cells.set(name, { text, value: Number.isFinite(Number(text)) ? Number(text) : text });
    }
    const time = data.rows.n ? data.rows.columns[ROW.time][data.rows.n - 1] : null;
    cells
      .set("steps", number(data.lastStep))
      .set("time", { text: time === null ? "–" : formatDuration(time), value: time });
    const share = trackingShare(run);
    cells.set("tracking", { text: share === null ? "–" : formatShare(share), value: share });
    cells.set("state", { text: data.status.state, value: data.status.state });
    return { run, cells };
  });
}

function sorted(ctx: Context): { run: ShownRun; cells: Cells }[] {
  const rows = tableOf(ctx);
  const down = ctx.state.sort.startsWith("-");
  const key = down ? ctx.state.sort.slice(1) : ctx.state.sort;
  if (!key) return rows;
  const compare = (a: Cell | undefined, b: Cell | undefined) => {
    const [x, y] = [a?.value ?? null, b?.value ?? null];
    if (x === null || y === null || Number.isNaN(x) || Number.isNaN(y))
      return Number(x === null || Number.isNaN(x)) - Number(y === null || Number.isNaN(y)); // what has no value is last
    const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
    return down ? -order : order;
  };
  return rows.sort((a, b) => compare(a.cells.get(key), b.cells.get(key)));
}

/** Names of numbers by which runs can be coloured. */
const numbersOf = (ctx: Context) =>
  settingsOf(ctx).filter((name) => ctx.runs.some((run) => Number.isFinite(Number(factsOf(run).get(name) || "x"))));

function tools(ctx: Context): HTMLElement {
  const chip = (text: string, pressed: boolean, title: string, act: () => void) =>
    press("ck-chip", act, { "aria-pressed": String(pressed), title }, text);
  const colors = numbersOf(ctx).map((name) =>
    chip(`colour by ${shorten(name, 20)}`, ctx.state.colorBy === name, "From dark to light along this number", () =>
      ctx.set({ colorBy: ctx.state.colorBy === name ? "" : name }),
    ),
  );
  const many = groupRuns(ctx.runs).some(({ runs }) => runs.length > 1);
  const seeds = chip("seeds as one", ctx.state.grouped, "Runs that differ only in their seed: median and band", () =>
    ctx.set({ grouped: !ctx.state.grouped }),
  );
  const filter = h("input", {
    type: "search",
    class: "ck-input ck-short",
    placeholder: "Show runs (regex)",
    "aria-label": "Show runs",
  });
  filter.value = ctx.state.filter;
  filter.addEventListener("change", () => {
    const runs = filter.value ? ctx.names.filter((name) => matchesFilter(name, filter.value)) : null;
    ctx.set({ filter: filter.value, runs });
  });
  return h("div", { class: "ck-tools" }, filter, many || ctx.state.grouped ? seeds : null, ...colors);
}

function headRow(ctx: Context, names: string[]): HTMLElement {
  return h(
    "tr",
    {},
    h("th", {}, ""),
    ...names.map((name) => {
      const { sort } = ctx.state;
      const order = sort === name ? "ascending" : sort === `-${name}` ? "descending" : "none";
      const arrow = order === "none" ? "" : order === "ascending" ? " ▴" : " ▾";
      const act = () => ctx.set({ sort: sort === name ? `-${name}` : name });
      const button = press("ck-sort", act, { title: `Sort by ${name}` }, shorten(name, 24) + arrow);
      return h("th", { "aria-sort": order }, button);
    }),
  );
}

function bodyRow(ctx: Context, { run, cells }: { run: ShownRun; cells: Cells }): HTMLElement {
  const box = h("input", { type: "checkbox", "aria-label": `show ${run.label}` });
  box.checked = true;
  box.addEventListener("change", () => {
    const now = chooseRuns(ctx.names, ctx.state).filter((name) => name !== run.run);
    ctx.set({ runs: now });
  });
  const { tone } = healthOf(run);
  const cell = (name: string, { text, title }: Cell) => {
    const className = name === "verdict" ? `ck-verdict ck-verdict-${tone}` : "";
    if (name !== "run")
      return h(
        "td",
        { class: className, title: (title ?? text).slice(0, 400) },
        name === "verdict" ? cutEnd(text) : shorten(text, 60),
      );
    const act = () => ctx.set({ runs: [run.run] });
    return h(
      "td",
      {},
      swatch(run.color),
      press("ck-link", act, { title: `Show only ${run.label}` }, shorten(text, 40)),
    );
  };
  return h("tr", {}, h("td", {}, box), ...[...cells].map(([name, own]) => cell(name, own)));
}

const panel: Panel = {
  id: "runs",
  title: "Runs",
  group: "first",
  order: 4,
  height: 180,
  names: [],
  help: [
    "One line per chosen run: its worst finding, its last and best loss and score, the settings that differ, what tracking cost, and how it ended. Click a heading to sort, a name to show that run alone, or the box to hide it.",
    "“colour by” gives all pictures colours from dark to light along a number, such as the learning rate. “seeds as one” shows runs that differ only in their seed as one curve, their median, with a band from the lowest to the highest.",
    "With two chosen runs, the panel “Runs and their differences” shows more.",
  ],
  shows: (ctx) => ctx.names.length >= FEWEST,
  readings: (ctx) => [
    { label: "shown", value: ctx.runs.length, text: `${ctx.runs.length} of ${ctx.names.length} shown` },
  ],
  fill(ctx, element) {
    const { sort, colorBy, grouped, filter } = ctx.state;
    const rows = sorted(ctx);
    const cells = rows.map((row) => [row.run.color, ...row.cells]);
    const key = JSON.stringify([ctx.theme.dark, sort, colorBy, grouped, filter, ctx.names.length, cells]);
    refill(element, key, () => {
      const names = [...(rows[0]?.cells.keys() ?? [])];
      const all = press("ck-link", () => ctx.set({ runs: ctx.names, filter: "" }), {}, "Show all");
      const table = h(
        "table",
        {},
        h("thead", {}, headRow(ctx, names)),
        h("tbody", {}, ...rows.map((row) => bodyRow(ctx, row))),
      );
      return [tools(ctx), table, ctx.runs.length < ctx.names.length ? all : null];
    });
  },
  csv: (ctx) => {
    const rows = sorted(ctx);
    const names = [...(rows[0]?.cells.keys() ?? [])];
    return csvLines([names, ...rows.map(({ cells }) => names.map((name) => cells.get(name)?.value ?? ""))]);
  },
};
export default panel;
