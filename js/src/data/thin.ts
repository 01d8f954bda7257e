// A run that never ends must not fill the memory: above a limit its past is thinned, and the page says so. In every column each
// stretch of 2^k records keeps its smallest and its largest value and the first that is not finite, so that no peak is ever
// lost; stretches nest, so that thinning twice is thinning once. Whoever zooms in gets the rest again (detail.ts).
import type { FitTable } from "./fits.ts";
import { lowerBound, ROW, type Table } from "./table.ts";

export const MOST_BYTES = 80e6; // of one run; what is drawn from it may take as much again
export const MOST_FITS = 100_000; // 13 MB
const FINEST = 3; // 2^3 records, of which up to three are kept

export interface Past {
  rows: Table;
  columns: Map<string, Map<string, Table>>;
  topSamples: Table;
}

const tablesOf = (past: Past) => [...past.columns.values()].flatMap((layers) => [...layers.values()]);
const bytesOf = (table: Table) => table.n * (4 + 8 * table.columns.length);

/** What the numbers of a run take. */
export const countBytes = (past: Past): number =>
  [past.rows, past.topSamples, ...tablesOf(past)].reduce((sum, table) => sum + bytesOf(table), 0);

/** Which values of a column stay: a flag for each. */
export function chooseKept({ seq, columns: [values] }: Table, end: number, power: number): Uint8Array {
  const kept = new Uint8Array(end);
  for (let i = 0; i < end; ) {
    const stretch = Math.floor(seq[i] / 2 ** power);
    let [low, high, broken] = [-1, -1, -1];
    for (; i < end && Math.floor(seq[i] / 2 ** power) === stretch; i++) {
      if (!Number.isFinite(values[i])) broken = broken < 0 ? i : broken;
      else {
        if (low < 0 || values[i] < values[low]) low = i;
        if (high < 0 || values[i] > values[high]) high = i;
      }
    }
    for (const index of [low, high, broken]) if (index >= 0) kept[index] = 1;
  }
  return kept;
}

function thinColumns(past: Past, boundary: number, power: number): void {
  for (const table of tablesOf(past)) {
    const kept = chooseKept(table, lowerBound(table.seq, table.n, boundary), power);
    table.filter((_, i) => i >= kept.length || kept[i] === 1);
    table.shrink();
  }
}

/** Rows that no value needs go, except the first and those that were asked for. */
function thinRows(past: Past, boundary: number): void {
  const { rows, topSamples } = past;
  const needed = new Uint8Array(lowerBound(rows.seq, rows.n, boundary));
  for (const { seq, n } of tablesOf(past))
    for (let i = 0, row = 0; i < n && row < needed.length; i++) {
      while (row < needed.length && rows.seq[row] < seq[i]) row++;
      if (row < needed.length && rows.seq[row] === seq[i]) needed[row] = 1;
    }
  const triggered = rows.columns[ROW.triggered];
  rows.filter((_, i) => i === 0 || i >= needed.length || needed[i] === 1 || triggered[i] > 0);
  topSamples.filter((seq) => rows.find(seq) >= 0);
  for (const table of [rows, topSamples]) table.shrink();
}

/** Brings a run below half of the limit; the newest quarter of what may be kept stays whole. */
export function thinPast(past: Past, limit = MOST_BYTES): void {
  const { rows } = past;
  const perRow = countBytes(past) / Math.max(1, rows.n);
  const boundary = rows.seq[Math.max(0, rows.n - Math.floor(limit / 4 / perRow))] ?? 0;
  for (let power = FINEST; power < 32 && countBytes(past) > limit / 2; power++) {
    thinColumns(past, boundary, power);
    thinRows(past, boundary);
  }
}

/** Of the fits one per stretch of steps stays, whatever its alpha: medians and densities may be taken of what is left. */
export function thinFits(fits: FitTable, most = MOST_FITS): boolean {
  if (fits.n <= most) return false;
  const boundary = fits.seq[fits.n - Math.floor(most / 4)];
  for (let power = 1; power < 32 && fits.n > most / 2; power++)
    fits.filter((step, i) => {
      if (step >= boundary || i === 0) return true;
      return Math.floor(step / 2 ** power) !== Math.floor(fits.seq[i - 1] / 2 ** power);
    });
  fits.shrink();
  return true;
}
