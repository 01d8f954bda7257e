// The contract of a panel: a file in panels/ whose default export is one of these. It draws; it computes no measurements.

import type { Axis, Series } from "../data/series.ts";
import type { Sample, Source } from "../data/source.ts";
import type { RunStore } from "../data/store.ts";
import type { HistogramData, LayerInfo, QuantityInfo } from "../data/wire.ts";
import type { Scene } from "../draw/scene.ts";
import type { Theme } from "../draw/theme.ts";
import type { UiState } from "./state.ts";

export interface ShownRun {
  run: string;
  label: string;
  color: string;
  data: RunStore;
}

/** Runs that are shown as one: a median and a band. */
export interface RunGroup {
  label: string;
  color: string;
  runs: ShownRun[];
}

/** One number of a panel's headline; `value` is the exact one, `text` what is shown if that is not simply the number. */
export interface Reading {
  label: string;
  value: number | null;
  text?: string;
  color?: string;
  run?: string;
  step?: number;
  minor?: boolean; // left out of the headline, named on hover
}

/** What a panel thinks of a run at the step in question: a sentence, and a few words for beside other runs. */
export interface Verdict {
  text: string;
  short: string;
  fault?: boolean; // says that something is wrong; other sentences are left out for a run that is known to be sick
}

export interface Size {
  width: number;
  height: number;
}

/** All that a panel may look at and do. */
export interface Context {
  state: UiState;
  theme: Theme;
  source: Source;
  runs: ShownRun[]; // the chosen ones, in order
  groups: RunGroup[]; // of those, the ones that belong together, if the user wants them as one
  names: string[]; // all runs that there are, chosen or not
  step: number | null; // hovered, else chosen, else the latest
  hover: number | null;
  domain: [number, number]; // of the shared axis
  axis: Axis;
  set(patch: Partial<UiState>): void;
  goTo(step: number, layer?: string): void;
  /** The stored step of a histogram that is nearest to `step`, not later if possible. */
  heavyStep(run: ShownRun, quantity: string, layer?: string): number | null;
  /** undefined = on its way, null = there is none. What is for later waits for everything else. */
  histogram(
    run: ShownRun,
    quantity: string,
    step: number,
    layer: string,
    later?: boolean,
  ): HistogramData | null | undefined;
  /** What the user's own function shows for a sample: undefined = not here, null = nothing. Absent without such a function. */
  sample?(id: number): Sample | null | undefined;
  /** Asks for the layer-wise columns of a name, once. */
  wantLayers(run: ShownRun, name: string): void;
}

export type Section = "first" | "step" | "gradients" | "curvature" | "training" | "about";

export interface Panel {
  id: string;
  title: string;
  alone?: string; // its title for a single run
  group: Section;
  order: number;
  height: number; // of the chart, in pixels, before columns are evened out
  names: string[]; // columns it shows: the default panel leaves them alone
  needs?: string[]; // without a value of any of these it has nothing to show
  help: string[]; // how to read this: paragraphs for someone who has not read the paper
  canSplit?: boolean; // has layer-wise values
  aside?: boolean; // shown only where a finding points at it, or the user wants it
  timeless?: boolean; // no y axis to switch between linear and log
  actions?(ctx: Context): { label: string; pressed: boolean; act(): void }[]; // further entries of its menu
  shows(ctx: Context): boolean;
  readings(ctx: Context): Reading[];
  /** Further numbers that the picture shows, for the table that screen readers see. Asked only when it is at rest. */
  details?(ctx: Context): Reading[];
  verdict?(ctx: Context, run: ShownRun): Verdict | null;
  note?(ctx: Context): string; // anything else that should be said
  draw?(ctx: Context, size: Size): Scene;
  /** For tables: fills the element. Called only when something changed. */
  fill?(ctx: Context, element: HTMLElement): void;
  csv(ctx: Context): string;
}

export function quantityInfo(ctx: Context, name: string): QuantityInfo | null {
  for (const { data } of ctx.runs) {
    const info = data.header?.quantities.find((quantity) => quantity.name === name);
    if (info) return info;
  }
  return null;
}

/** True when a chosen run has values for one of these names, or was told to measure it. */
export function isTracked(ctx: Context, names: string[]): boolean {
  return ctx.runs.some(({ data }) =>
    names.some((name) => data.has(name) || data.header?.quantities.some((quantity) => quantity.name === name)),
  );
}

/** The tensors of all chosen runs, each once, in the order of the networks. */
export function allLayers(ctx: Context, fits: (layer: LayerInfo) => boolean = () => true): string[] {
  const names = ctx.runs.flatMap(({ data }) => (data.header?.layers ?? []).filter(fits).map(({ name }) => name));
  return [...new Set(names)];
}

/** Whether every chosen run has ended: what is not here will not come. */
export const isOver = ({ runs }: Context): boolean =>
  runs.length > 0 && runs.every(({ data }) => !["waiting", "running"].includes(data.status.state));

/** Whether no chosen run has a value of what the panel shows. */
export const isIdle = ({ runs }: Context, { needs }: Panel): boolean =>
  needs !== undefined && !runs.some(({ data }) => needs.some((name) => data.has(name) || data.heavy.has(name)));

export const titleOf = ({ title, alone }: Panel, { runs }: Context): string => (runs.length === 1 && alone) || title;

/** Why there is no value, in the latest words of tracking. */
export function reasonFor(ctx: Context, names: string[]): string {
  for (const { data } of ctx.runs)
    for (const note of [...data.missing.values()].reverse()) if (names.includes(note.name)) return note.reason;
  return "";
}

export function waitingFor(ctx: Context, names: string[]): string {
  const reason = reasonFor(ctx, names);
  if (reason) return `No value: ${reason}`;
  const schedule = names.map((name) => quantityInfo(ctx, name)?.schedule).find(Boolean);
  if (isOver(ctx)) return `The run ended before ${names[0]} was measured.`;
  return `Waiting for the first ${names[0]}${schedule ? ` (measured ${schedule})` : ""}.`;
}

export function valueAt(ctx: Context, run: ShownRun, name: string, layer = ""): { value: number; step: number } | null {
  const series: Series = run.data.series(name, layer, "step");
  return ctx.step === null ? null : series.at(ctx.step);
}
