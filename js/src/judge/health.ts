// How a run is: its worst finding in words. Logs without findings are judged by their warnings.

import type { ShownRun } from "../contract/panel.ts";
import { median } from "../data/density.ts";
import { formatNumber, shorten } from "../data/format.ts";
import type { Evidence, Finding } from "../data/records.ts";
import type { RunStore } from "../data/store.ts";
import { beatsGuessing, guessLoss } from "./guessing.ts";
import { quartiles } from "./judging.ts";
import { groupWarnings, isHint, type Line } from "./notices.ts";

export type Tone = "broken" | "likely" | "advice" | "well" | "waiting";
export interface Health {
  tone: Tone;
  text: string;
  findings: Finding[]; // what holds, worst first
}

const severities = ["broken", "likely", "advice"];
const rank = ({ severity }: Finding) => (severities.indexOf(severity) + severities.length) % severities.length;
export const toneRank = (tone: Tone) => [...severities, "well", "waiting"].indexOf(tone);

/** As bad as the worst of what it explains: a learning rate that killed all units is named before them. Advice explains no fault. */
function weigh(own: Finding, all: Finding[]): number {
  const follow = all.filter(({ name, retracted }) => !retracted && own.explains.includes(name));
  return rank(own) < 2 ? Math.min(rank(own), ...follow.map(rank)) : rank(own);
}

/** Worst first; what explains another comes before it (of two that explain each other, the surer one), then what began
 * earlier. */
export function orderFindings(findings: Finding[]): Finding[] {
  const present = findings.filter((own) => !own.retracted);
  const explained = new Set(present.flatMap(({ explains }) => explains));
  const follows = ({ name }: Finding) => (explained.has(name) ? 1 : 0);
  const order = (a: Finding, b: Finding) =>
    weigh(a, present) - weigh(b, present) ||
    follows(a) - follows(b) ||
    follows(a) * (b.confidence - a.confidence) ||
    a.since - b.since;
  return [...findings].sort(order);
}

const kinds = new Map([
  ["not_finite", ["broken", "Not finite"]],
  ["zero_gradient", ["broken", "No gradient"]],
  ["edge_of_stability", ["advice", "Beyond the edge of stability"]], // a single step may be, by noise
  ["error", ["advice", "An instrument failed"]], // says nothing about the network
]);

const bare = { value: Number.NaN, low: 0, high: 0, unit: "", layer: "", text: "" };
const unproved = { remedy: "", confidence: 0, explains: [], retracted: false };

function fromWarning({ notice, names, layers }: Line): Finding {
  const [severity, title] = kinds.get(notice.kind) ?? ["advice", notice.kind];
  const rest = names.size > 1 ? `, then ${names.size - 1} other quantities` : "";
  return {
    name: notice.kind,
    severity,
    text: `${title}: ${notice.message}${rest}`,
    since: notice.step,
    layers: [...layers.keys()].filter(Boolean),
    evidence: [{ ...bare, name: notice.quantity, step: notice.step, layer: notice.layer }],
    step: notice.step,
    ...unproved,
  };
}

const known = new WeakMap<RunStore, { version: number; health: Health }>();

export function healthOf(run: ShownRun): Health {
  const { data } = run;
  const cached = known.get(data);
  if (cached?.version === data.version) return cached.health;
  const health = judge(run);
  known.set(data, { version: data.version, health });
  return health;
}

function judge(run: ShownRun): Health {
  const { data } = run;
  const told = data.findings.length
    ? data.findings.filter((own) => !own.retracted)
    : groupWarnings({ runs: [run] })
        .filter(({ notice }) => !isHint(notice))
        .map(fromWarning);
  // Advice is no word about a loss that stays at guessing, unless it is that advice.
  const spoken = told.some((own) => rank(own) < 2 || own.name === "not_learning");
  const stuck = spoken && data.findings.length ? null : findStuck(run);
  const findings = orderFindings(stuck ? [...told, stuck, ...doubted(data)] : told);
  const [worst] = findings;
  if (worst && rank(worst) < 2)
    return {
      tone: severities[weigh(worst, findings)] as Tone,
      text: inWords(worst) + consequence(run, worst),
      findings,
    };
  const steps = measuredSteps(data);
  if (!steps) return { tone: "waiting", text: "Nothing measured yet", findings };
  const unit = data.decimated.size ? "record" : "step"; // of a thinned run, records of what was logged count as well
  const well = `No faults found in what was measured (${formatNumber(steps)} ${unit}${steps === 1 ? "" : "s"})`;
  return { tone: worst ? "advice" : "well", text: worst ? `${well}. Advice: ${inWords(worst)}` : well, findings };
}

/** What was taken back because the loss moved a little: where it is still that of guessing, it stays a suspicion. */
const doubted = ({ findings }: RunStore): Finding[] =>
  findings
    .filter(({ name, retracted }) => retracted && name === "labels_random")
    .map((own) => ({ ...own, retracted: false, severity: "advice" }));

const ENOUGH = 50; // steps; before, a network may still be warming up
const FEWEST = 9; // losses that say where it is

/** The loss at the beginning and at the end, if after all its steps it is no better than guessing. */
function findUnlearned(run: ShownRun) {
  const { y, n, step } = run.data.series("Loss", "", "step");
  const guess = n < FEWEST || step[n - 1] < ENOUGH ? null : guessLoss(run);
  const third = Math.floor(n / 3);
  const [begun, ended] = [y.slice(0, third), y.slice(n - third, n)].map(median);
  if (!guess || !(ended >= 0.97 * guess.value) || beatsGuessing(run)) return null;
  return { begun, ended, n, step, y, guess, words: `the loss is ${formatNumber(ended)}, ${guess.label}` };
}

/** A cause is told first ("the inputs are not scaled"): then also what became of it, where the loss is that of guessing. */
function consequence(run: ShownRun, { name, text }: Finding): string {
  const found = name === "not_learning" || /\bloss\b/i.test(text) ? null : findUnlearned(run);
  return found && found.ended < 1.1 * found.guess.value ? `. Nothing is learned: ${found.words}` : "";
}

/** For logs without findings: a loss that after all its steps is where guessing is. */
function findStuck(run: ShownRun): Finding | null {
  const found = findUnlearned(run);
  if (!found || found.n < ENOUGH || !(found.ended >= 0.97 * found.begun)) return null;
  const { begun, ended, n, step, y, guess, words } = found;
  const [low, , high] = quartiles(y.subarray(n - Math.floor(n / 3), n)) ?? [0, 0, 0];
  const falls = begun - ended > high - low && !doubted(run.data).length;
  if (falls && run.data.status.state === "running") return null; // slow, and on its way
  const text = `Not learning: ${words}`;
  const last = step[n - 1];
  const evidence = [
    { ...bare, name: "Loss", value: ended, low: Number.NEGATIVE_INFINITY, high: guess.value, step: last },
  ];
  return {
    ...unproved,
    name: "not_learning",
    severity: "likely",
    text,
    since: step[0],
    layers: [],
    evidence,
    step: last,
  };
}

/** How many steps were looked at: by the fullest column that is measured at steps. */
export function measuredSteps(data: RunStore): number {
  if (data.decimated.size) return data.status.records;
  let most = data.fits.n;
  for (const [name, layers] of data.columns)
    if (!/^(log|cost|error)\//.test(name)) for (const { n } of layers.values()) most = Math.max(most, n);
  return most;
}

/** Without the full stop: the line goes on. */
export const sentence = (text: string) => text.trim().replace(/[.\s]+$/, "");

/** "Not learning: ..., since step 87", once: a text may say so itself. */
export function inWords({ text, since }: Finding): string {
  const words = sentence(text);
  if (/\b(since|at) step\b|\bfrom the first step\b/i.test(words)) return words;
  const when = `since step ${formatNumber(since)}`;
  return words.endsWith(")") ? `${words}, ${when}` : `${words} (${when})`;
}

/** "GradNorm 1.2e−9 (usually 1e−4 to 10) at step 30". */
export function evidenceWords({ name, value, low, high, unit, step, layer, text }: Evidence, since = step): string {
  const number = Number.isNaN(value) && !text ? "" : ` ${formatNumber(value)}${unit ? ` ${unit}` : ""}`;
  const ends = [low, high].map((end) => formatNumber(end));
  const open = [low, high].map(Number.isFinite);
  const range =
    open[0] && open[1]
      ? `${ends[0]} to ${ends[1]}`
      : open[1]
        ? `at most ${ends[1]}`
        : open[0]
          ? `at least ${ends[0]}`
          : "";
  const usual = range && number && low !== high ? ` (healthy: ${range})` : "";
  const where = layer ? ` in ${/^[\d.]+$/.test(layer) ? "module " : ""}${shorten(layer, 60)}` : ""; // "1 in 3" is a share
  const what = text ? `${sentence(text)}:` : name; // words instead of the name of a column
  return `${what}${number}${where}${usual} at step ${formatNumber(step || since)}`;
}

/** Whether a fault holds at this step: then nothing reassuring is said about the run. */
export function isSick(run: ShownRun, step: number | null): boolean {
  return healthOf(run).findings.some((own) => rank(own) < 2 && (step === null || own.since <= step));
}

/** "3 of 12 runs have faults", for many runs at once. */
export function countSick(runs: ShownRun[]): { sick: number; broken: number } {
  const tones = runs.map((run) => healthOf(run).tone);
  const broken = tones.filter((tone) => tone === "broken").length;
  return { broken, sick: broken + tones.filter((tone) => tone === "likely").length };
}
