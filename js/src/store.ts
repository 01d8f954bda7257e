// What is known of every run. Batches may arrive twice, out of order, or after a gap: the end is the same.
import { type Axis, AxisColumns, type Series, SeriesCache } from "./series.ts";
import { lowerBound, Table } from "./table.ts";
import type { AlphaFit, Batch, Header, HistogramData, Missing, Notice, RunStatus } from "./wire.ts";

export const ROW = { step: 0, time: 1, wall_time: 2, epoch: 3, triggered: 4 } as const;
const HISTOGRAM_CELLS = 6_000_000; // 48 MB of counts are remembered
const stateRank: Record<string, number> = { waiting: 0, running: 1, crashed: 2, stopped: 3, failed: 3, finished: 3 };

interface Known<T> {
  value: T;
  to_seq: number; // of the batch that brought it: the later one knows more
}

export class RunStore {
  header: Header | null = null;
  status: RunStatus = { state: "waiting", error: "", last_wall_time: 0, records: 0, expected: 0, broken: 0 };
  rows = new Table(5);
  columns = new Map<string, Map<string, Table>>(); // name -> layer ("" = network) -> values
  decimated = new Set<string>();
  heavy = new Map<string, Uint32Array>();
  missing = new Map<string, Missing>();
  topSamples = new Map<number, number[]>(); // by seq
  histograms = new Map<string, HistogramData | null>(); // a small cache, newest last
  to_seq = 0;
  version = 0;
  hasEpochs = false;
  private alphaFits = new Map<number, Known<AlphaFit>>();
  private notices = new Map<string, Known<Notice>>();
  private cells = 0;
  alphaShape = 0; // changes whenever anything but an append happened to the fits
  private drops: { from_seq: number; step: number }[] = [];
  private cache = new SeriesCache(this);
  private axes = new AxisColumns(this.rows);
  private sortedAlphas: AlphaFit[] | null = null;

  constructor(
    readonly run: string,
    readonly run_id: string,
  ) {}

  merge(batch: Batch): void {
    this.learnDrop(batch);
    if (batch.replace) this.forgetReplaced(batch);
    this.mergeRows(batch);
    this.mergeColumns(batch);
    this.mergeLists(batch);
    if (batch.header && (!this.header || batch.header.revision >= this.header.revision)) this.header = batch.header;
    if (batch.status) this.mergeStatus(batch.status, batch.to_seq);
    this.to_seq = Math.max(this.to_seq, batch.to_seq);
    this.version++;
  }

  // A resumed run went back to a checkpoint: what was measured after it, before the resume, no longer counts. The rule
  // is kept, so that an old message that arrives late cannot bring it back.
  private learnDrop(batch: Batch): void {
    const rule = { from_seq: batch.from_seq, step: batch.drop_from_step };
    if (!(rule.step >= 0) || rule.from_seq === 0) return;
    if (this.drops.some((old) => old.from_seq === rule.from_seq && old.step === rule.step)) return;
    this.drops.push(rule);
    const dead = new Set<number>();
    this.rows.filter((seq, i) => {
      const alive = !this.isDropped(seq, this.rows.columns[ROW.step][i]);
      if (!alive) dead.add(seq);
      return alive;
    });
    this.forgetRows((seq) => dead.has(seq));
    for (const [step, known] of this.alphaFits) if (this.isOutdated(known, step)) this.alphaFits.delete(step);
    this.forgetAlphaOrder();
    for (const [key, known] of this.notices) if (this.isOutdated(known, known.value.step)) this.notices.delete(key);
  }

  private isDropped(seq: number, step: number): boolean {
    return this.drops.some((rule) => seq < rule.from_seq && step >= rule.step);
  }

  private isOutdated(known: { to_seq: number }, step: number): boolean {
    return this.drops.some((rule) => known.to_seq <= rule.from_seq && step >= rule.step);
  }

  private forgetRows(dead: (seq: number) => boolean): void {
    for (const layers of this.columns.values()) for (const table of layers.values()) table.filter((seq) => !dead(seq));
    for (const [key, { seq }] of this.missing) if (dead(seq)) this.missing.delete(key);
    for (const seq of this.topSamples.keys()) if (dead(seq)) this.topSamples.delete(seq);
  }

  // The whole run again: rows that it no longer has are gone. A thinned copy proves nothing about the rows it left out,
  // except where a later row has an earlier step: then the run went back to a checkpoint in between.
  private forgetReplaced(batch: Batch): void {
    const thinned = batch.columns.some((column) => column.decimated);
    const alive = new Set(batch.seq);
    const earliest = new Float64Array(batch.seq.length + 1).fill(Number.POSITIVE_INFINITY);
    for (let i = batch.seq.length - 1; i >= 0; i--) earliest[i] = Math.min(earliest[i + 1], batch.step[i]);
    const dead = new Set<number>();
    this.rows.filter((seq, i) => {
      const covered = seq >= batch.from_seq && seq < batch.to_seq && !alive.has(seq);
      const after =
        covered && thinned ? earliest[lowerBound(batch.seq, batch.seq.length, seq)] : Number.NEGATIVE_INFINITY;
      if (covered && after < this.rows.columns[ROW.step][i]) dead.add(seq);
      return !dead.has(seq);
    });
    if (dead.size) this.forgetRows((seq) => dead.has(seq));
  }

  private mergeRows(batch: Batch): void {
    const nan = new Float64Array(batch.seq.length).fill(Number.NaN);
    const zero = new Float64Array(batch.seq.length);
    const columns = [batch.step, batch.time, batch.wall_time, batch.epoch ?? nan, batch.triggered ?? zero];
    this.rows.upsert(batch.seq, columns as ArrayLike<number>[]);
    if (this.drops.length) this.rows.filter((seq, i) => !this.isDropped(seq, this.rows.columns[ROW.step][i]));
    this.hasEpochs ||= batch.epoch?.some(Number.isFinite) ?? false;
  }

  private mergeColumns(batch: Batch): void {
    for (const { name, layer, seq, values, decimated } of batch.columns) {
      if (decimated) this.decimated.add(name);
      let layers = this.columns.get(name);
      if (!layers) this.columns.set(name, (layers = new Map()));
      let table = layers.get(layer);
      if (!table) layers.set(layer, (table = new Table(1)));
      table.upsert(seq, [values]);
      if (this.drops.length) table.filter((own) => this.rows.find(own) >= 0);
    }
  }

  private mergeLists(batch: Batch): void {
    const { to_seq } = batch;
    for (const value of batch.alphas) this.mergeAlpha(value, batch);
    for (const value of batch.warnings) {
      const key = JSON.stringify([value.step, value.kind, value.quantity, value.layer, value.message]);
      const seen = Math.max(to_seq, this.notices.get(key)?.to_seq ?? 0);
      if (!this.isOutdated(batch, value.step)) this.notices.set(key, { value, to_seq: seen });
    }
    for (const note of batch.missing) this.missing.set(`${note.seq} ${note.name}`, note);
    for (const { seq, samples } of batch.top_samples) this.topSamples.set(seq, samples);
    if (to_seq >= this.to_seq) for (const { quantity, steps } of batch.heavy) this.heavy.set(quantity, steps);
    for (const histogram of batch.histograms)
      this.keepHistogram(histogram.quantity, histogram.step, histogram.layer, histogram);
  }

  private mergeAlpha(value: AlphaFit, batch: Batch): void {
    const old = this.alphaFits.get(value.step);
    if ((old && old.to_seq > batch.to_seq) || this.isOutdated(batch, value.step)) return;
    if (old && JSON.stringify(old.value) === JSON.stringify(value)) {
      old.to_seq = batch.to_seq; // not a second copy: the sorted list holds the first
      return;
    }
    this.alphaFits.set(value.step, { value, to_seq: batch.to_seq });
    const last = this.sortedAlphas?.at(-1)?.step ?? -1;
    if (this.sortedAlphas && value.step > last) this.sortedAlphas.push(value);
    else this.forgetAlphaOrder();
  }

  private forgetAlphaOrder(): void {
    this.sortedAlphas = null;
    this.alphaShape++;
  }

  private mergeStatus(status: RunStatus, to_seq: number): void {
    const weigh = (s: RunStatus, seq: number) => [seq, s.expected, s.last_wall_time, stateRank[s.state] ?? 1];
    const now = weigh(status, to_seq);
    const old = weigh(this.status, this.to_seq);
    const at = now.findIndex((value, i) => value !== old[i]);
    if (at < 0 || now[at] > old[at]) this.status = status;
  }

  keepHistogram(quantity: string, step: number, layer: string, histogram: HistogramData | null): void {
    const key = JSON.stringify([quantity, step, layer]);
    this.forgetHistogram(key);
    this.histograms.set(key, histogram);
    this.cells += histogram?.counts.length ?? 0;
    for (const old of this.histograms.keys()) {
      if (this.cells <= HISTOGRAM_CELLS) break;
      this.forgetHistogram(old);
    }
  }

  private forgetHistogram(key: string): void {
    this.cells -= this.histograms.get(key)?.counts.length ?? 0;
    this.histograms.delete(key);
  }

  histogram(quantity: string, step: number, layer: string): HistogramData | null | undefined {
    return this.histograms.get(JSON.stringify([quantity, step, layer]));
  }

  /** Steps whose histogram is here already, increasing. */
  cachedSteps(quantity: string, layer: string): number[] {
    const steps: number[] = [];
    for (const histogram of this.histograms.values())
      if (histogram && histogram.quantity === quantity && histogram.layer === layer) steps.push(histogram.step);
    return steps.sort((a, b) => a - b);
  }

  get alphas(): AlphaFit[] {
    this.sortedAlphas ??= [...this.alphaFits.values()].map((known) => known.value).sort((a, b) => a.step - b.step);
    return this.sortedAlphas;
  }

  alphaAt(step: number): AlphaFit | null {
    return this.alphaFits.get(step)?.value ?? null;
  }

  get warnings(): Notice[] {
    return [...this.notices.values()].map((known) => known.value).sort((a, b) => a.step - b.step);
  }

  layersOf(name: string): string[] {
    const layers = this.columns.get(name);
    return layers ? [...layers.keys()].filter((layer) => layer !== "") : [];
  }

  has(name: string): boolean {
    return name === "Alpha" ? this.alphaFits.size > 0 : this.columns.has(name);
  }

  series(name: string, layer: string, axis: Axis): Series {
    return this.cache.series(name, layer, axis);
  }

  /** Where each row stands on an axis; as long as `rows.n`, or longer. */
  axis(axis: Axis): Float64Array {
    return this.axes.get(axis);
  }

  /** The last step that is known, or null before the first record. */
  get lastStep(): number | null {
    return this.rows.n ? this.rows.columns[ROW.step][this.rows.n - 1] : null;
  }
}

export class Store {
  runs = new Map<string, RunStore>();
  version = 0;
  broken = 0; // messages that could not be read
  private listeners = new Set<() => void>();
  private retired = new Set<string>();

  merge(batch: Batch): void {
    const known = this.runs.get(batch.run);
    const key = JSON.stringify([batch.run, batch.run_id]);
    if (this.retired.has(key)) return;
    if (known && known.run_id !== batch.run_id) this.retired.add(JSON.stringify([batch.run, known.run_id]));
    const store = known?.run_id === batch.run_id ? known : new RunStore(batch.run, batch.run_id);
    store.merge(batch);
    this.runs.set(batch.run, store);
    this.changed();
  }

  changed(): void {
    this.version++;
    for (const listener of this.listeners) listener();
  }

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }
}
