// Where a run leaves its healthy twin: for every quantity the first step at which two settings are further apart than runs
// of one are. As `cockpit compare` finds it: medians in cells of steps, apart for four cells in a row in one direction.

import type { ShownRun } from "../contract/panel.ts";
import { median } from "../data/density.ts";
import { change, ratio } from "../data/derive.ts";
import type { Series } from "../data/series.ts";
import { lowerBound } from "../data/table.ts";

const [CELLS, MOST, FEWEST, SMALLEST] = [4, 80, 6, 0.02];
const factorOf = (runs: number) => (runs === 1 ? 8 : runs === 2 ? 3 : 1.5); // the range of few is mostly too small
const LENGTHS = ["Distance", "ParamNorm", "UpdateSize", "GradNorm", "GradNormClipped", "TopSampleNorm"];
const OF_NETWORK = [...LENGTHS, "HessTrace", "HessMaxEV", "TICDiag", "TICTrace"]; // another network has another space
const NOT_COMPARED = ["Time", "Parameters", "LearningRate", "MemoryUsage"];

export interface Difference {
  name: string;
  step: number;
  reference: number; // medians over the cells that prove it
  other: number;
  alone: boolean; // one run each: weak evidence
}

interface Curve {
  steps: number[];
  values: number[];
}

/** What is made of columns, by the names that `cockpit compare` has for it. */
const derived: Record<string, { of: string[]; make(run: ShownRun): Series }> = {
  "signal share": {
    of: ["NormTest"],
    make: ({ data }) => change(data.series("NormTest", "", "step"), "signal", (nt) => hold(1 - nt * nt)),
  },
  "update / weight": {
    of: ["UpdateSize", "ParamNorm"],
    make: ({ data }) => ratio(data, "UpdateSize", "ParamNorm", "", "step"),
  },
};
const hold = (share: number) => Math.max(0, Math.min(1, share));

function curveOf(run: ShownRun, name: string): Curve {
  const { y, step, n } = derived[name]?.make(run) ?? run.data.series(name, "", "step");
  const fine = Array.from({ length: n }, (_, i) => i).filter((i) => Number.isFinite(y[i]));
  return { steps: fine.map((i) => step[i]), values: fine.map((i) => y[i]) };
}

/** The first step of each cell, and the end: the steps of the coarsest curve in the range that all have. */
export function makeCells(curves: Curve[]): { starts: number[]; end: number } {
  const low = Math.max(...curves.map(({ steps }) => steps[0]));
  const end = Math.min(...curves.map(({ steps }) => steps[steps.length - 1]));
  const inside = curves.map(({ steps }) => [...new Set(steps.filter((step) => step >= low && step <= end))]);
  const fewest = inside.reduce((a, b) => (b.length < a.length ? b : a));
  const stride = Math.max(1, Math.ceil(fewest.length / MOST));
  return { starts: fewest.filter((_, i) => i % stride === 0), end };
}

/** The median in each cell; one without a value lies on the line between its neighbours. */
function fillCells({ steps, values }: Curve, { starts, end }: { starts: number[]; end: number }): number[] {
  const cells = starts.map((start, i) => {
    const to = i + 1 < starts.length ? starts[i + 1] : end + 1;
    return median(values.slice(lowerBound(steps, steps.length, start), lowerBound(steps, steps.length, to)));
  });
  const known = cells.flatMap((value, i) => (Number.isFinite(value) ? [i] : []));
  return cells.map((value, i) => {
    if (Number.isFinite(value)) return value;
    const after = known.find((k) => k > i) ?? known[known.length - 1];
    const before = known.filter((k) => k < i).at(-1) ?? after;
    const share = after > before ? (i - before) / (after - before) : 0;
    return cells[before] + share * (cells[after] - cells[before]);
  });
}

const column = (table: number[][], i: number) => table.map((row) => row[i]);

/** The largest range over runs in the cells around; for one run, how far a value lies from the mean of its neighbours. */
function spreadOf(table: number[][]): number[] {
  const size = table[0].length;
  const bend = (i: number) => {
    const at = Math.max(1, Math.min(size - 2, i));
    return Math.abs(table[0][at - 1] - 2 * table[0][at] + table[0][at + 1]) / Math.sqrt(1.5) / 2;
  };
  const width = Array.from({ length: size }, (_, i) =>
    table.length > 1 ? Math.max(...column(table, i)) - Math.min(...column(table, i)) : bend(i),
  );
  const half = CELLS / 2;
  return width.map((_, i) => Math.max(...width.slice(Math.max(0, i - half), i + half + 1)));
}

/** The first of four cells in a row that are apart in one direction; tables are [runs][cells]. */
export function findFirst(a: number[][], b: number[][], logarithmic: boolean): number | null {
  const middle = [a, b].map((table) => table[0].map((_, i) => median(column(table, i))));
  const spreads = [spreadOf(a), spreadOf(b)];
  const factor = factorOf(Math.min(a.length, b.length));
  const scale = logarithmic ? 1 : Math.max(1e-300, ...middle.flat().map(Math.abs));
  const signs = middle[0].map((value, i) => {
    const distance = value - middle[1][i];
    const [x, y] = [column(a, i), column(b, i)];
    const disjoint = Math.min(...x) > Math.max(...y) || Math.min(...y) > Math.max(...x);
    const far = Math.abs(distance) > Math.max(factor * Math.max(spreads[0][i], spreads[1][i]), SMALLEST * scale);
    return far && disjoint ? Math.sign(distance) : 0;
  });
  const at = signs.findIndex(
    (sign, i) => sign && i + CELLS <= signs.length && signs.slice(i, i + CELLS).every((s) => s === sign),
  );
  return at < 0 ? null : at;
}

function difference(name: string, reference: ShownRun[], other: ShownRun[]): Difference | null {
  const curves = [reference, other].map((runs) =>
    runs.map((run) => curveOf(run, name)).filter(({ steps }) => steps.length),
  );
  if (!curves[0].length || !curves[1].length) return null;
  const cells = makeCells(curves.flat());
  const alone = curves.some((group) => group.length < 2);
  if (cells.starts.length < (alone ? FEWEST : CELLS)) return null;
  const tables = curves.map((group) => group.map((curve) => fillCells(curve, cells)));
  const logarithmic = name !== "signal share" && tables.flat(2).every((value) => value > 0);
  const scaled = logarithmic ? tables.map((table) => table.map((row) => row.map(Math.log))) : tables;
  const at = findFirst(scaled[0], scaled[1], logarithmic);
  if (at === null) return null;
  const [a, b] = tables.map((table) => median(table.flatMap((row) => row.slice(at, at + CELLS))));
  return { name, step: cells.starts[at], reference: a, other: b, alone: tables.some((table) => table.length < 2) };
}

const networkOf = ({ data }: ShownRun) => JSON.stringify(data.header?.layers.map(({ name, shape }) => [name, shape]));

/** All quantities that separate, in the order of the steps at which they do. */
export function firstDifferences(reference: ShownRun[], other: ShownRun[]): Difference[] {
  const same = new Set([...reference, ...other].map(networkOf)).size === 1;
  const columns = [...(reference[0]?.data.columns.keys() ?? [])];
  const made = Object.keys(derived).filter((name) => derived[name].of.every((part) => columns.includes(part)));
  const names = [...new Set([...columns, "Alpha", ...made])].filter(
    (name) =>
      (!name.includes("/") || name.startsWith("log/") || made.includes(name)) &&
      !NOT_COMPARED.includes(name) &&
      (same || !OF_NETWORK.includes(name)),
  );
  const differing = names.flatMap((name) => difference(name, reference, other) ?? []);
  return differing.sort((a, b) => a.step - b.step);
}
