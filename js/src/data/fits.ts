// Alpha's fits as columns, one row per step: as objects, an hour of them would fill the memory with boxed numbers.
import type { AlphaFit } from "./records.ts";
import { Table } from "./table.ts";

const fields = [
  ...(["alpha", "length", "loss_start", "loss_end", "slope_start", "slope_end", "loss_var_start"] as const),
  ...(["loss_var_end", "slope_var_start", "slope_var_end", "w0", "w1", "w2"] as const),
];
/** Columns behind the fields of a fit: whether it has an alpha, and the end of the batch that brought it. */
export const FIT = { alpha: 0, has_alpha: fields.length, to_seq: fields.length + 1 } as const;

export class FitTable extends Table {
  constructor() {
    super(fields.length + 2);
  }

  get(index: number): AlphaFit {
    const fit = { step: this.seq[index] } as AlphaFit;
    fields.forEach((name, c) => {
      fit[name] = this.columns[c][index];
    });
    if (!this.columns[FIT.has_alpha][index]) fit.alpha = null;
    return fit;
  }

  /** Takes in fits that came with a batch up to `to_seq`. The later batch knows more; the same fit again changes nothing. */
  add(fits: AlphaFit[], to_seq: number): void {
    const known = this.columns[FIT.to_seq];
    const fresh = fits.filter((fit) => {
      const index = this.find(fit.step);
      if (index < 0) return true;
      if (known[index] > to_seq) return false;
      const same = encode(fit, to_seq).every(
        (value, c) => c === FIT.to_seq || Object.is(value, this.columns[c][index]),
      );
      if (same) known[index] = to_seq;
      return !same;
    });
    const rows = new Map(fresh.map((fit) => [fit.step, encode(fit, to_seq)]));
    const steps = Uint32Array.from(rows.keys()).sort();
    this.upsert(
      steps,
      this.columns.map((_, c) => Array.from(steps, (step) => rows.get(step)?.[c] ?? Number.NaN)),
    );
  }
}

function encode(fit: AlphaFit, to_seq: number): number[] {
  return [...fields.map((name) => fit[name] ?? Number.NaN), fit.alpha === null ? 0 : 1, to_seq];
}
