// Rows sorted by a unique number, in typed arrays that grow. Inserting the same rows again, in any order, changes nothing.

export function lowerBound(sorted: ArrayLike<number>, n: number, value: number): number {
  let low = 0;
  let high = n;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The columns of the table of records. */
export const ROW = { step: 0, time: 1, wall_time: 2, epoch: 3, triggered: 4 } as const;

/** Room for `size` values in an array that is full: a quarter more, because doubling leaves a third empty on average. */
export const roomFor = (size: number, full: number) => Math.max(size, 16, Math.ceil(full * 1.25));

export class Table {
  n = 0;
  shape = 0; // changes whenever anything but an append happened: whoever caches by index starts anew
  seq = new Uint32Array(16);
  columns: Float64Array[];

  constructor(width: number) {
    this.columns = Array.from({ length: width }, () => new Float64Array(16));
  }

  private reserve(size: number): void {
    if (size <= this.seq.length) return;
    const capacity = roomFor(size, this.seq.length);
    const seq = new Uint32Array(capacity);
    seq.set(this.seq.subarray(0, this.n));
    this.seq = seq;
    this.columns = this.columns.map((column) => {
      const wider = new Float64Array(capacity);
      wider.set(column.subarray(0, this.n));
      return wider;
    });
  }

  /** Inserts rows (sorted by seq) or overwrites those that are there. Costs no more than moving the part after the first one. */
  upsert(seq: Uint32Array, columns: ArrayLike<number>[]): void {
    const count = seq.length;
    if (!count) return;
    const start = lowerBound(this.seq, this.n, seq[0]);
    const tail = this.n - start;
    this.reserve(this.n + count);
    if (!tail) {
      this.seq.set(seq, this.n);
      this.columns.forEach((column, c) => {
        column.set(columns[c], this.n);
      });
      this.n += count;
      return;
    }
    this.mergeTail(start, seq, columns);
  }

  private mergeTail(start: number, seq: Uint32Array, columns: ArrayLike<number>[]): void {
    const oldSeq = this.seq.slice(start, this.n);
    const old = this.columns.map((column) => column.slice(start, this.n));
    let [i, j, out] = [0, 0, start];
    let changed = false;
    while (i < oldSeq.length || j < seq.length) {
      const takeNew = i >= oldSeq.length || (j < seq.length && seq[j] <= oldSeq[i]);
      const both = takeNew && i < oldSeq.length && seq[j] === oldSeq[i];
      this.seq[out] = takeNew ? seq[j] : oldSeq[i];
      for (let c = 0; c < this.columns.length; c++) {
        const value = takeNew ? columns[c][j] : old[c][i];
        if (both && !Object.is(value, old[c][i])) changed = true;
        this.columns[c][out] = value;
      }
      if (takeNew && !both && i < oldSeq.length) changed = true;
      if (takeNew) j++;
      if (!takeNew || both) i++;
      out++;
    }
    this.n = out;
    if (changed) this.shape++;
  }

  /** Keeps the rows for which `keep` is true. */
  filter(keep: (seq: number, index: number) => boolean): void {
    let out = 0;
    for (let i = 0; i < this.n; i++) {
      if (!keep(this.seq[i], i)) continue;
      if (out !== i) {
        this.seq[out] = this.seq[i];
        for (const column of this.columns) column[out] = column[i];
      }
      out++;
    }
    if (out !== this.n) this.shape++;
    this.n = out;
  }

  /** Gives back the room that a large part of the rows has left. */
  shrink(): void {
    if (this.n > this.seq.length / 2) return;
    this.seq = this.seq.slice(0, Math.max(16, this.n));
    this.columns = this.columns.map((column) => column.slice(0, Math.max(16, this.n)));
  }

  find(seq: number): number {
    const index = lowerBound(this.seq, this.n, seq);
    return index < this.n && this.seq[index] === seq ? index : -1;
  }
}
