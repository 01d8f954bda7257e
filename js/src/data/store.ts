// What is known about every run. Batches may arrive twice, out of order, or after a gap: the result is the same.
import { FIT, FitTable } from "./fits.ts";
import { HistogramCache } from "./histograms.ts";
import { type Axis, AxisColumns, type Series, SeriesCache } from "./series.ts";
import { lowerBound, ROW, Table } from "./table.ts";
import { countBytes, MOST_BYTES, MOST_FITS, thinFits, thinPast } from "./thin.ts";
import type { AlphaFit, Batch, Finding, Header, HistogramData, Missing, Notice, RunStatus } from "./wire.ts";

export { ROW };

const TOP_SAMPLES = 5; // per record; no more are shown
const MOST_NOTICES = 5000;
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
  thinnings = 0; // how often the past was thinned here: what was fetched before may be gone
  limits = { bytes: MOST_BYTES, fits: MOST_FITS, notices: MOST_NOTICES };
  noticesLost = 0;
  heavy = new Map<string, Uint32Array>();
  missing = new Map<string, Missing>(); // the latest of each name
  topSamples = new Table(TOP_SAMPLES); // by seq
  fits = new FitTable(); // by step
  histograms = new HistogramCache();
  to_seq = 0;
  version = 0;
  heard = performance.now(); // when the last record came
  hasEpochs = false;
  private found = new Map<string, Known<Finding>>();
  private notices = new Map<string, Known<Notice>>();
  private sortedNotices: Notice[] | null = null;
  private drops: { from_seq: number; step: number }[] = [];
  private cache = new SeriesCache(this);
  private axes = new AxisColumns(this.rows);

  constructor(
    readonly run: string,
    readonly run_id: string,
  ) {}

  merge(batch: Batch): void {
    this.learnDrop(batch);
    if (batch.replace) this.forgetReplaced(batch);
    const before = this.rows.n;
    this.mergeRows(batch);
    if (this.rows.n > before) this.heard = performance.now();
    this.mergeColumns(batch);
    this.mergeLists(batch);
    if (batch.header && (!this.header || batch.header.revision >= this.header.revision)) this.header = batch.header;
    if (batch.status) this.mergeStatus(batch.status, batch.to_seq);
    this.to_seq = Math.max(this.to_seq, batch.to_seq);
    this.keepBounds();
    this.version++;
  }

  private keepBounds(): void {
    if (countBytes(this) > this.limits.bytes) {
      thinPast(this, this.limits.bytes);
      for (const name of this.columns.keys()) this.decimated.add(name);
      this.thinnings++;
    }
    if (thinFits(this.fits, this.limits.fits)) this.decimated.add("Alpha");
    if (this.notices.size > this.limits.notices) this.thinNotices();
  }

  // What went wrong first and what goes wrong now say more than the thousands in between.
  private thinNotices(): void {
    const quarter = Math.floor(this.limits.notices / 4);
    const between = [...this.notices].sort(([, a], [, b]) => a.value.step - b.value.step).slice(quarter, -quarter);
    for (const [key] of between) this.notices.delete(key);
    this.noticesLost += between.length;
    this.sortedNotices = null;
  }

  // A resumed run went back to a checkpoint: what was measured after it, before the resume, no longer counts. The rule
  // is kept, so that an old message that arrives late cannot bring it back.
  private learnDrop(batch: Batch): void {
    const drop = { from_seq: batch.from_seq, step: batch.drop_from_step };
    if (!(drop.step >= 0) || drop.from_seq === 0) return;
    if (this.drops.some((old) => old.from_seq === drop.from_seq && old.step === drop.step)) return;
    this.drops.push(drop);
    const dead = new Set<number>();
    this.rows.filter((seq, i) => {
      const alive = !this.isDropped(seq, this.rows.columns[ROW.step][i]);
      if (!alive) dead.add(seq);
      return alive;
    });
    this.forgetRows((seq) => dead.has(seq));
    this.fits.filter((step, i) => !this.isOutdated({ to_seq: this.fits.columns[FIT.to_seq][i] }, step));
    this.sortedNotices = null;
    for (const [name, known] of this.found) if (this.isOutdated(known, known.value.step)) this.found.delete(name);
    for (const [key, known] of this.notices) if (this.isOutdated(known, known.value.step)) this.notices.delete(key);
  }

  private isDropped(seq: number, step: number): boolean {
    return this.drops.some((drop) => seq < drop.from_seq && step >= drop.step);
  }

  private isOutdated(known: { to_seq: number }, step: number): boolean {
    return this.drops.some((drop) => known.to_seq <= drop.from_seq && step >= drop.step);
  }

  private forgetRows(dead: (seq: number) => boolean): void {
    for (const layers of this.columns.values()) for (const table of layers.values()) table.filter((seq) => !dead(seq));
    for (const [key, { seq }] of this.missing) if (dead(seq)) this.missing.delete(key);
    this.topSamples.filter((seq) => !dead(seq));
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
    if (batch.alphas.length)
      this.fits.add(
        batch.alphas.filter((fit) => !this.isOutdated(batch, fit.step)),
        to_seq,
      );
    if (batch.warnings.length) this.sortedNotices = null;
    for (const value of batch.warnings) {
      const key = JSON.stringify([value.step, value.kind, value.quantity, value.layer, value.message]);
      const seen = Math.max(to_seq, this.notices.get(key)?.to_seq ?? 0);
      if (!this.isOutdated(batch, value.step)) this.notices.set(key, { value, to_seq: seen });
    }
    for (const value of batch.findings) {
      const known = this.found.get(value.name);
      const newer =
        !known || value.step > known.value.step || (value.step === known.value.step && to_seq >= known.to_seq);
      if (newer && !this.isOutdated(batch, value.step)) this.found.set(value.name, { value, to_seq });
    }
    for (const note of batch.missing)
      if (note.seq >= (this.missing.get(note.name)?.seq ?? 0)) this.missing.set(note.name, note);
    this.mergeTopSamples(batch);
    if (to_seq >= this.to_seq) for (const { quantity, steps } of batch.heavy) this.heavy.set(quantity, steps);
    for (const histogram of batch.histograms)
      this.keepHistogram(histogram.quantity, histogram.step, histogram.layer, histogram);
  }

  private mergeTopSamples({ top_samples }: Batch): void {
    const seq = Uint32Array.from(top_samples, (note) => note.seq);
    const column = (_: unknown, c: number) => top_samples.map(({ samples }) => samples[c] ?? Number.NaN);
    this.topSamples.upsert(seq, this.topSamples.columns.map(column));
  }

  /** Places in the batch of the largest gradients at a record, largest first. */
  topSamplesAt(seq: number): number[] {
    const index = this.topSamples.find(seq);
    if (index < 0) return [];
    return this.topSamples.columns.map((column) => column[index]).filter((sample) => !Number.isNaN(sample));
  }

  private mergeStatus(status: RunStatus, to_seq: number): void {
    const rank = (state: string) => (Object.hasOwn(stateRank, state) ? stateRank[state] : 1);
    const weigh = (s: RunStatus, seq: number) => [seq, s.expected, s.last_wall_time, rank(s.state)];
    const now = weigh(status, to_seq);
    const old = weigh(this.status, this.to_seq);
    const at = now.findIndex((value, i) => value !== old[i]);
    if (at < 0 || now[at] > old[at]) this.status = status;
  }

  keepHistogram(quantity: string, step: number, layer: string, histogram: HistogramData | null): void {
    this.histograms.keep(quantity, step, layer, histogram);
  }

  histogram(quantity: string, step: number, layer: string): HistogramData | null | undefined {
    return this.histograms.get(quantity, step, layer);
  }

  /** Steps whose histogram is here already, increasing. */
  cachedSteps(quantity: string, layer: string): readonly number[] {
    return this.histograms.stepsOf(quantity, layer);
  }

  get alphas(): AlphaFit[] {
    return Array.from({ length: this.fits.n }, (_, i) => this.fits.get(i));
  }

  alphaAt(step: number): AlphaFit | null {
    const index = this.fits.find(step);
    return index < 0 ? null : this.fits.get(index);
  }

  get warnings(): Notice[] {
    this.sortedNotices ??= [...this.notices.values()].map((known) => known.value).sort((a, b) => a.step - b.step);
    return this.sortedNotices;
  }

  /** The latest message of each name, including retracted findings. */
  get findings(): Finding[] {
    return [...this.found.values()].map((known) => known.value);
  }

  layersOf(name: string): string[] {
    const layers = this.columns.get(name);
    return layers ? [...layers.keys()].filter((layer) => layer !== "") : [];
  }

  has(name: string): boolean {
    return name === "Alpha" ? this.fits.n > 0 : this.columns.has(name);
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
