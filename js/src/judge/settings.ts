// What sets runs apart, and which setting is best: runs that differ in nothing but their seed are one setting.
import type { Context, ShownRun } from "../contract/panel.ts";
import { median } from "../data/density.ts";
import { formatNumber, shorten } from "../data/format.ts";
import { describeHeader, differingNames, isAside } from "./facts.ts";
import { groupRuns } from "./groups.ts";
import { endsOf, lossOf, type Metric, scoreOf } from "./metrics.ts";
import { type Difference, firstDifferences } from "./twin.ts";

export interface Setting {
  name: string; // what differs: "SGD lr=0.1"
  facts: Map<string, string>; // of what differs
  runs: ShownRun[];
  final: number; // the median over its runs; NaN where one is not finite
}

export interface Settings {
  all: Setting[]; // the best first
  differing: string[];
  metric: Metric;
}

const LONGEST = 40; // letters; what differs in more is called by the names of its runs
const RANK = ["optimizer", "lr", "momentum", "batch size"];
const place = (name: string) => (RANK.indexOf(name) + RANK.length + 1) % (RANK.length + 1);
const known = new WeakMap<ShownRun["data"], { key: string; settings: Settings }>();
const versions = (runs: ShownRun[]) => JSON.stringify(runs.map(({ run, color, data }) => [run, color, data.version]));

export function settingsOf(ctx: Context): Settings | null {
  const runs = ctx.runs.filter(({ data }) => data.header && data.rows.n);
  if (runs.length < 2) return null;
  const key = versions(runs);
  const cached = known.get(runs[0].data);
  if (cached?.key === key) return cached.settings;
  const settings = findSettings(runs);
  known.set(runs[0].data, { key, settings });
  return settings;
}

function findSettings(runs: ShownRun[]): Settings {
  const metric = scoreOf(runs) ?? lossOf(runs);
  const differing = differingNames(runs.map(({ data }) => data.header))
    .filter((name, _, all) => !isAside(name) && !isHungOnOptimizer(name, runs) && !isSaidBefore(name, all))
    .sort((a, b) => place(a) - place(b));
  const all = groupRuns(runs).map((group): Setting => {
    const own = factsOf(group.runs[0]);
    const facts = new Map(differing.flatMap((name) => (own.has(name) ? [[name, own.get(name) as string]] : [])));
    const ends = group.runs.map((run) => endsOf(run, metric)[0] ?? Number.NaN);
    const final = ends.every(Number.isFinite) ? median(ends) : Number.NaN; // one that ended as NaN counts as the worst
    const name = nameSetting(facts);
    return { name: name && name.length <= LONGEST ? name : group.label, facts, runs: group.runs, final };
  });
  const worth = ({ final }: Setting) =>
    Number.isNaN(final) ? Number.POSITIVE_INFINITY : metric.least ? final : -final;
  return { all: all.sort((a, b) => worth(a) - worth(b)), differing, metric };
}

const factsOf = ({ data }: ShownRun) => (data.header ? describeHeader(data.header) : new Map<string, string>());

/** A whole network in one line is no name, where the number of parameters tells the networks apart. */
const isSaidBefore = (name: string, all: string[]) => name === "network" && all.includes("parameters");

/** What an optimizer has by default (betas) is not worth a word beside its name. */
function isHungOnOptimizer(name: string, runs: ShownRun[]): boolean {
  if (name === "optimizer" || name === "lr") return false;
  const byOptimizer = new Map<string, Set<string>>();
  for (const run of runs) {
    const facts = factsOf(run);
    const optimizer = facts.get("optimizer") ?? "";
    byOptimizer.set(optimizer, (byOptimizer.get(optimizer) ?? new Set()).add(facts.get(name) ?? ""));
  }
  const hyper = runs.some(({ data }) =>
    data.header?.optimizers.some(({ groups }) => groups.some((own) => name in own)),
  );
  return hyper && byOptimizer.size > 1 && [...byOptimizer.values()].every((values) => values.size === 1);
}

function nameSetting(facts: Map<string, string>): string {
  const rest = [...facts]
    .filter(([name]) => name !== "optimizer")
    .map(([name, value]) => `${name}=${shorten(value, 20)}`);
  return [facts.get("optimizer"), ...rest].filter(Boolean).join(" ");
}

/** The hyperparameter that the settings are laid out along: the user's choice, the number with the most values, or the first. */
export function axisName({ all, differing }: Settings, chosen: string): string | null {
  if (differing.includes(chosen)) return chosen;
  const values = (name: string) => new Set(all.map(({ facts }) => facts.get(name))).size;
  const numbers = differing.filter((name) => all.every(({ facts }) => isNumber(facts.get(name))));
  const [best] = [...numbers].sort((a, b) => values(b) - values(a) || place(a) - place(b));
  return best ?? differing[0] ?? null;
}

export const isNumber = (text: string | undefined) =>
  text !== undefined && text !== "" && Number.isFinite(Number(text));

/** The best setting against the next: what separated first. In words, for all hosts; `cockpit compare` has them all. */
export function describeBest(settings: Settings): string {
  const { all, metric } = settings;
  const [best, next] = all;
  if (!best || !Number.isFinite(best.final)) return "";
  const seeds = best.runs.length > 1 ? `, ${best.runs.length} seeds` : "";
  const head = `Best: ${shorten(best.name, 60)} (${metric.title} ${formatNumber(best.final)}${seeds}).`;
  if (!next) return head;
  const differing = firstOf(best, next);
  if (!differing.length) return `${head} ${shorten(next.name, 60)} does not differ from it by more than seeds do.`;
  const outcomes = [metric.title, "Loss", "valid_loss"];
  const causes = differing.filter(({ name }) => !outcomes.includes(title(name)));
  const outcome = differing.find(({ name }) => outcomes.includes(title(name)));
  const few = causes.slice(0, 2).map(inWords).join("; ");
  const end = outcome && few ? ` ${title(outcome.name)} separates at step ${formatNumber(outcome.step)}.` : "";
  const weak = differing.some(({ alone }) => alone) ? " One run each: weak evidence." : "";
  return `${head} ${shorten(next.name, 60)} first differs from it in ${few || inWords(differing[0])}.${end}${weak}`;
}

const title = (name: string) => name.replace("log/", "");
const inWords = ({ name, other, reference, step }: Difference) =>
  `${title(name)} (${formatNumber(other)} against ${formatNumber(reference)}, step ${formatNumber(step)})`;

const differences = new WeakMap<ShownRun["data"], { key: string; first: Difference[] }>();

function firstOf(best: Setting, next: Setting): Difference[] {
  const key = versions([...best.runs, ...next.runs]);
  const cached = differences.get(best.runs[0].data);
  if (cached?.key === key) return cached.first;
  const first = firstDifferences(best.runs, next.runs);
  differences.set(best.runs[0].data, { key, first });
  return first;
}
