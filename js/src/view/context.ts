// Puts together what panels look at: chosen runs, the step in question, the shared axis, histograms on demand.

import { chooseRuns } from "../contract/choosing.ts";
import type { Context, RunGroup, ShownRun } from "../contract/panel.ts";
import type { UiState } from "../contract/state.ts";
import { shorten } from "../data/format.ts";
import type { Source } from "../data/source.ts";
import type { RunStore, Store } from "../data/store.ts";
import { lowerBound } from "../data/table.ts";
import { decodeHistogram, type HistogramData } from "../data/wire.ts";
import { runColor, type Theme } from "../draw/theme.ts";
import { describeHeader, sequentialColors } from "../judge/facts.ts";
import { groupRuns } from "../judge/groups.ts";
import type { SampleFetcher } from "./samples.ts";

const MAX_PARALLEL = 4;
const PATIENCE = 100; // ms

/** Colours go by the order in which runs were first seen, and never change afterwards. */
export class RunColors {
  private seen = new Map<string, number>();
  index(run: string): number {
    const known = this.seen.get(run);
    if (known !== undefined) return known;
    this.seen.set(run, this.seen.size);
    return this.seen.size - 1;
  }
}

interface Wish {
  run: RunStore;
  quantity: string;
  step: number;
  layer: string;
  later: boolean; // the past of a run waits for what the chosen step shows
}

/** Fetches histograms a few at a time; what was asked for in an earlier picture and not begun is forgotten. */
export class HistogramFetcher {
  private wishes = new Map<string, Wish>();
  private active = new Set<string>();
  private failed = new Map<string, number>();
  private stale = new WeakMap<RunStore, Map<string, HistogramData>>();
  private ended = false;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly source: Source,
    private readonly changed: () => void,
  ) {}

  beginPicture(): void {
    this.wishes.clear();
  }

  /** While the user scrubs, most requests are outdated before they could be answered: only the newest ones are sent, now and then. */
  endPicture(): void {
    if (!this.wishes.size || this.timer !== undefined) return;
    this.timer = setTimeout(() => {
      this.timer = undefined;
      while (this.active.size < MAX_PARALLEL && this.fetchNext());
    }, PATIENCE);
  }

  stop(): void {
    clearTimeout(this.timer);
    this.ended = true;
    this.wishes.clear();
  }

  get(
    run: RunStore,
    quantity: string,
    step: number,
    layer: string,
    ask: boolean,
    later = false,
  ): HistogramData | null | undefined {
    const known = run.histogram(quantity, step, layer);
    const place = JSON.stringify([quantity, layer]);
    let shown = this.stale.get(run);
    if (!shown) this.stale.set(run, (shown = new Map()));
    if (known) shown.set(place, known);
    if (known !== undefined) return known;
    const key = JSON.stringify([run.run, run.run_id, quantity, step, layer]);
    const failure = this.failed.get(key);
    if (ask && !this.active.has(key) && (failure === undefined || Date.now() - failure > 5000))
      this.wishes.set(key, { run, quantity, step, layer, later: later && (this.wishes.get(key)?.later ?? true) });
    return shown.get(place);
  }

  private fetchNext(): boolean {
    const open = [...this.wishes].filter(([key]) => !this.active.has(key));
    const next = open.find(([, wish]) => !wish.later) ?? open[0];
    if (next) this.fetch(...next);
    return next !== undefined;
  }

  private fetch(key: string, wish: Wish): void {
    this.wishes.delete(key);
    this.active.add(key);
    const { run, quantity, step, layer } = wish;
    this.source
      .histogram(run.run, quantity, step, layer || null)
      .then((bytes) => {
        if (bytes?.length) run.keepHistogram(quantity, step, layer, decodeHistogram(bytes));
        else if (run.histogram(quantity, step, layer) === undefined) run.keepHistogram(quantity, step, layer, null);
      })
      .catch(() => this.failed.set(key, Date.now()))
      .finally(() => {
        this.active.delete(key);
        if (this.ended) return;
        this.changed();
        if (this.active.size < MAX_PARALLEL) this.fetchNext();
      });
  }
}

/** The chosen runs' extent on the shared axis, or the zoomed part. */
export function axisDomain(runs: ShownRun[], state: UiState): [number, number] {
  if (state.zoom) return state.zoom;
  let [low, high] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  for (const { data } of runs) {
    if (!data.rows.n) continue;
    const xs = data.axis(state.axis);
    if (Number.isNaN(xs[0])) continue;
    low = Math.min(low, xs[0]);
    high = Math.max(high, xs[data.rows.n - 1]);
  }
  if (!(low <= high)) return [0, 1];
  if (low === high) return [Math.max(0, low - 1), high + 1];
  const grows = runs.some(({ data }) => data.status.state === "running");
  return grows ? [low, low + roomFor(high - low)] : [low, high];
}

/** An axis that grows does so in jumps of at most a thirtieth: between them its labels stand still, and cost nothing. */
function roomFor(span: number): number {
  const jump = 2 ** Math.floor(Math.log2(span / 30));
  return jump > 0 && Number.isFinite(jump) ? Math.ceil(span / jump) * jump : span;
}

export interface ContextParts {
  store: Store;
  state: UiState;
  theme: Theme;
  source: Source;
  palette: "tensorboard" | "safe";
  colors: RunColors;
  names: string[];
  hover: number | null;
  fetcher: HistogramFetcher;
  samples: SampleFetcher;
  asked: Set<string>;
  touched: boolean; // the user did something: only then may a host that pushes be asked
  set(patch: Partial<UiState>): void;
}

export function shownRuns(parts: ContextParts): ShownRun[] {
  const palette = parts.state.safe ? "safe" : parts.palette;
  for (const name of parts.names) parts.colors.index(name);
  const runs = chooseRuns(parts.names, parts.state).flatMap((run) => {
    const data = parts.store.runs.get(run);
    const color = runColor(parts.colors.index(run), palette, parts.theme);
    const name = run === "." ? data?.header?.name || run : run; // the folder that is shown is itself a run
    return data ? [{ run, label: shorten(name, 28), color, data }] : [];
  });
  return parts.state.colorBy ? colorByNumber(runs, parts) : runs;
}

function colorByNumber(runs: ShownRun[], { state, theme }: ContextParts): ShownRun[] {
  const values = runs.map(({ data }) => {
    const value = data.header ? describeHeader(data.header).get(state.colorBy) : undefined;
    return value === undefined || value === "" ? null : Number(value);
  });
  const colors = sequentialColors(values, theme.dark);
  return runs.map((run, i) => ({ ...run, color: colors[i] ?? run.color }));
}

/** One colour after the other: the first runs of groups would have some that repeat or fade. */
function colorGroups(groups: RunGroup[], { state, palette, theme }: ContextParts): void {
  for (const [i, group] of groups.entries()) group.color = runColor(i, state.safe ? "safe" : palette, theme);
}

export function makeContext(parts: ContextParts): Context {
  const { state } = parts;
  const single = shownRuns(parts);
  const alike = state.grouped || state.reference ? groupRuns(single) : [];
  const groups = alike.filter((group) => state.grouped || group.runs.some(({ run }) => run === state.reference));
  if (state.grouped && !state.colorBy) colorGroups(groups, parts);
  const colors = new Map(groups.flatMap((group) => group.runs.map(({ run }) => [run, group.color])));
  const runs = single.map((run) => ({ ...run, color: colors.get(run.run) ?? run.color }));
  const last = runs.reduce((most, { data }) => Math.max(most, data.lastStep ?? -1), -1);
  const axis = state.axis === "epoch" && !runs.some(({ data }) => data.hasEpochs) ? "step" : state.axis;
  const step = parts.hover ?? state.step ?? (last >= 0 ? last : null);
  return {
    state,
    theme: parts.theme,
    source: parts.source,
    runs,
    groups: groups.filter((group) => group.runs.length > 1),
    names: parts.names,
    step,
    hover: parts.hover,
    axis,
    domain: axisDomain(runs, { ...state, axis }),
    set: parts.set,
    goTo: (to, layer) => parts.set({ step: to, ...(layer === undefined ? {} : { layer }) }),
    heavyStep: (run, quantity, layer = "") => {
      // Where the newest come by themselves, asking is for the user: a step that was chosen, not one passed over.
      const pushed = parts.source.pushes && (state.step === null || !parts.touched);
      const steps = pushed ? run.data.cachedSteps(quantity, layer) : run.data.heavy.get(quantity);
      if (!steps?.length || step === null) return null;
      return steps[Math.max(0, lowerBound(steps, steps.length, step + 1) - 1)];
    },
    histogram: (run, quantity, at, layer, later) => {
      const passive = parts.source.pushes && (state.step === null || parts.hover !== null || !parts.touched);
      return parts.fetcher.get(run.data, quantity, at, layer, !passive, later);
    },
    sample: parts.source.samples ? (id) => parts.samples.get(id, parts.touched) : undefined,
    wantLayers: (run, name) => {
      const key = JSON.stringify([run.run, run.data.run_id, name]);
      if (parts.asked.has(key) || (parts.source.pushes && (!parts.touched || run.data.layersOf(name).length))) return;
      parts.asked.add(key);
      parts.source.layers(run.run, name).catch(() => parts.asked.delete(key));
    },
  };
}
