// The numbers beside a title: in full, for many runs their range, and which of them are old.
import type { Context, Reading } from "../contract/panel.ts";
import { formatNumber } from "../data/format.ts";
import { isOld } from "../judge/judging.ts";

const MOST_RUNS = 5; // whose numbers are shown one by one

export const inFull = (reading: Reading) =>
  reading.text ?? (reading.value === null ? "no value" : String(reading.value));

/** For many runs the range, named in full on hover: ten bare numbers say nothing. */
export function summarizeReadings(all: Reading[]): Reading[] {
  const runs = new Set(all.map(({ run }) => run).filter(Boolean));
  if (runs.size <= MOST_RUNS || all.length <= MOST_RUNS) return all;
  const finite = all.filter(({ value }) => value !== null && Number.isFinite(value));
  if (!finite.length) return [{ label: "values", value: null, text: `no finite value in ${runs.size} runs` }];
  const least = finite.reduce((a, b) => ((b.value as number) < (a.value as number) ? b : a));
  const most = finite.reduce((a, b) => ((b.value as number) > (a.value as number) ? b : a));
  const words = (own: Reading) => own.text ?? formatNumber(own.value as number);
  const broken = all.length - finite.length;
  return [
    { ...least, label: `lowest: ${least.label}`, text: words(least) },
    { ...most, label: `highest: ${most.label}`, text: `to ${words(most)}` },
    { label: all.map((own) => `${own.label} ${inFull(own)}`).join(", "), value: null, text: `${runs.size} runs` },
    ...(broken ? [{ label: "not finite", value: broken, text: `${broken} not finite` }] : []),
  ];
}

export const isStale = ({ step, run }: Reading, ctx: Context) =>
  step !== undefined && isOld(ctx, ctx.runs.find((own) => own.run === run) ?? ctx.runs[0], step);

/** The steps of numbers that all come from long before the one that is shown. */
export function oldSteps(all: Reading[], ctx: Context): string {
  const dated = all.filter(({ step, minor }) => step !== undefined && !minor);
  if (!dated.length || !dated.every((own) => isStale(own, ctx))) return "";
  const steps = dated.map(({ step }) => step as number);
  const [first, last] = [Math.min(...steps), Math.max(...steps)].map((step) => formatNumber(step));
  return first === last ? `step ${last}:` : `steps ${first} to ${last}:`;
}
