// One column against one axis, ready to draw: x and y side by side, extended in place while the run goes on.
import { FIT, type FitTable } from "./fits.ts";
import { lowerBound, roomFor, type Table } from "./table.ts";

export type Axis = "step" | "epoch" | "time";
const axisColumn: Record<Axis, number> = { step: 0, epoch: 3, time: 1 };

/** Every row's place on each axis, never going back. A row without an epoch (run.log) stands where the row before it does. */
export class AxisColumns {
  private known = new Map<Axis, { values: Float64Array; n: number; shape: number }>();
  constructor(private readonly rows: Table) {}

  get(axis: Axis): Float64Array {
    const { rows } = this;
    const source = rows.columns[axisColumn[axis]];
    if (axis === "step") return source;
    let own = this.known.get(axis);
    if (!own || own.shape !== rows.shape || own.n > rows.n) {
      own = { values: new Float64Array(rows.seq.length), n: 0, shape: rows.shape };
      this.known.set(axis, own);
    }
    if (own.values.length < rows.n) own.values = widen(own.values, rows.seq.length);
    const first = source.subarray(0, rows.n).find((value) => !Number.isNaN(value)) ?? Number.NaN;
    for (let i = own.n; i < rows.n; i++) {
      const before = i ? own.values[i - 1] : first;
      own.values[i] = source[i] > before ? source[i] : before;
    }
    own.n = rows.n;
    return own.values;
  }
}

/** Smallest and largest value of any range of y without looking at all of it: extremes per 64, 4,096, ... values. */
export class Extremes {
  private levels: { low: Float64Array; high: Float64Array; n: number }[] = [];
  private static readonly block = 64;

  extend(y: Float64Array, n: number): void {
    let size = n;
    let below: { low: Float64Array; high: Float64Array } = { low: y, high: y };
    for (let level = 0; size > Extremes.block; level++) {
      const whole = Math.floor(size / Extremes.block);
      const known = (this.levels[level] ??= { low: new Float64Array(64), high: new Float64Array(64), n: 0 });
      if (whole > known.low.length) {
        known.low = widen(known.low, roomFor(whole, known.low.length));
        known.high = widen(known.high, roomFor(whole, known.high.length));
      }
      for (let b = known.n; b < whole; b++) {
        let [low, high] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
        for (let i = b * Extremes.block; i < (b + 1) * Extremes.block; i++) {
          if (below.low[i] < low) low = below.low[i];
          if (below.high[i] > high) high = below.high[i];
        }
        known.low[b] = low;
        known.high[b] = high;
      }
      known.n = whole;
      below = known;
      size = whole;
    }
  }

  /** [smallest, largest] of y[from..to), NaN left out; [Infinity, -Infinity] if nothing is there. */
  range(y: Float64Array, from: number, to: number): [number, number] {
    let low = Number.POSITIVE_INFINITY;
    let high = Number.NEGATIVE_INFINITY;
    let i = from;
    // Up to the first whole block, one by one; a short range never gets further.
    const single =
      to - from < 2 * Extremes.block ? to : Math.min(to, Math.ceil(from / Extremes.block) * Extremes.block);
    for (; i < single; i++) {
      const value = y[i];
      if (value < low) low = value;
      if (value > high) high = value;
    }
    while (i < to) {
      let level = -1;
      let width = 1;
      while (this.levels[level + 1] && i % (width * Extremes.block) === 0 && i + width * Extremes.block <= to) {
        if (i / (width * Extremes.block) >= this.levels[level + 1].n) break;
        level++;
        width *= Extremes.block;
      }
      const a = level < 0 ? y[i] : this.levels[level].low[i / width];
      const b = level < 0 ? y[i] : this.levels[level].high[i / width];
      if (a < low) low = a;
      if (b > high) high = b;
      i += width;
    }
    return [low, high];
  }
}

function widen(array: Float64Array, size: number): Float64Array {
  const wider = new Float64Array(size);
  wider.set(array);
  return wider;
}

type Numbers = Float64Array | Uint32Array;

/** Values against an axis. The arrays may be shared with another series that has the same numbers, and may be longer than `n`. */
export class Series {
  n = 0;
  x: Numbers = new Float64Array(0);
  y: Float64Array = new Float64Array(0);
  step: Numbers = new Float64Array(0);
  extremes = new Extremes();
  broken: number[] = []; // indices of values that are not finite

  push(x: number, y: number, step: number): void {
    if (this.n === this.x.length) {
      this.x = widen(this.x as Float64Array, roomFor(this.n + 1, this.n));
      this.step = widen(this.step as Float64Array, this.x.length);
    }
    this.x[this.n] = x;
    this.step[this.n] = step;
    this.append(y);
  }

  /** One more value, where the places belong to another series. */
  append(y: number): void {
    if (this.n === this.y.length) this.y = widen(this.y, roomFor(this.n + 1, this.n));
    this.y[this.n] = y;
    this.note(this.n++);
  }

  note(index: number): void {
    if (!Number.isFinite(this.y[index])) this.broken.push(index);
  }

  /** The value at the last record that is not later than `step`; before the first record, the first. */
  at(step: number): { index: number; step: number; value: number } | null {
    if (!this.n) return null;
    const index = Math.max(0, lowerBound(this.step, this.n, step + 1) - 1);
    return { index, step: this.step[index], value: this.y[index] };
  }
}

/** Where each value of a table stands: its step, and its place on an axis that is not the step. */
interface Places {
  step: Uint32Array;
  x: Float64Array | null;
}

interface Entry {
  series: Series;
  places: Places;
  used: number; // values of the table that are in it
  shape: number; // of the table
  rows: number; // shape of the rows
}

const newEntry = (axis: Axis, shape: number, rows: number): Entry => ({
  series: new Series(),
  places: { step: new Uint32Array(0), x: axis === "step" ? null : new Float64Array(0) },
  used: 0,
  shape,
  rows,
});

/** What series are made of; a RunStore is one. */
interface Columns {
  rows: Table;
  fits: FitTable;
  columns: Map<string, Map<string, Table>>;
  axis(axis: Axis): Float64Array;
}

export class SeriesCache {
  private entries = new Map<string, Entry>(); // of Alpha, by axis
  private known: Record<Axis, Map<Table, Entry>> = { step: new Map(), epoch: new Map(), time: new Map() };
  constructor(private readonly run: Columns) {}

  series(name: string, layer: string, axis: Axis): Series {
    if (name === "Alpha" && !layer) return this.alphas(axis);
    const table = this.run.columns.get(name)?.get(layer);
    if (!table) return new Series();
    const rows = this.run.rows.shape;
    let entry = this.known[axis].get(table);
    if (!entry || entry.shape !== table.shape || entry.rows !== rows || entry.used > table.n) {
      entry = newEntry(axis, table.shape, rows);
      this.known[axis].set(table, entry);
    }
    this.extend(entry, table, axis);
    return entry.series;
  }

  // A value and its place have the same index, and the values stay where they are, in the table. A value whose row is not
  // known ends the series there: rows come with their values, so there is none but for a moment.
  private extend(entry: Entry, table: Table, axis: Axis): void {
    const { series, places } = entry;
    series.y = table.columns[0];
    if (entry.used === table.n) return;
    const { rows } = this.run;
    const xs = this.run.axis(axis);
    const steps = rows.columns[0];
    reserve(places, table.n);
    let row = lowerBound(rows.seq, rows.n, table.seq[entry.used]);
    for (; entry.used < table.n; entry.used++) {
      const seq = table.seq[entry.used];
      while (row < rows.n && rows.seq[row] < seq) row++;
      if (row >= rows.n || rows.seq[row] !== seq || Number.isNaN(xs[row])) break;
      places.step[entry.used] = steps[row];
      if (places.x) places.x[entry.used] = xs[row];
      series.note(entry.used);
    }
    series.n = entry.used;
    series.step = places.step;
    series.x = places.x ?? places.step;
    series.extremes.extend(series.y, series.n);
  }

  // Alpha travels with its own step, one record later; its place on the other axes is that of its step's row.
  private alphas(axis: Axis): Series {
    const key = `Alpha ${axis}`;
    const { fits, rows } = this.run;
    const placed = axis === "step" ? 0 : rows.shape;
    let entry = this.entries.get(key);
    if (!entry || entry.shape !== fits.shape || entry.rows !== placed) {
      entry = newEntry(axis, fits.shape, placed);
      this.entries.set(key, entry);
    }
    for (; entry.used < fits.n; entry.used++) {
      const [step, alpha] = [fits.seq[entry.used], fits.columns[FIT.alpha][entry.used]];
      if (!fits.columns[FIT.has_alpha][entry.used]) continue;
      const row = Math.min(lowerBound(rows.columns[0], rows.n, step), rows.n - 1);
      const x = axis === "step" || row < 0 ? step : this.run.axis(axis)[row];
      if (!Number.isNaN(x)) entry.series.push(x, alpha, step);
    }
    entry.series.extremes.extend(entry.series.y, entry.series.n);
    return entry.series;
  }
}

function reserve(places: Places, size: number): void {
  if (size <= places.step.length) return;
  const wider = new Uint32Array(roomFor(size, places.step.length));
  wider.set(places.step);
  places.step = wider;
  if (places.x) places.x = widen(places.x, wider.length);
}
