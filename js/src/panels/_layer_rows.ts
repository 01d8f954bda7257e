// What the map of the network shows: which measure of which layers, tensor by tensor or joined by block, over time.

import type { MapRow } from "../charts/map.ts";
import { allLayers, type Context, type ShownRun } from "../contract/panel.ts";
import { groupBlocks, nameInBlock } from "../data/blocks.ts";
import { shorten } from "../data/format.ts";
import type { Series } from "../data/series.ts";
import type { Mark } from "../draw/scene.ts";
import { isSick } from "../judge/health.ts";

/** What can be shown of a layer. Norms are joined as lengths, everything else by its mean. */
export interface Measure {
  id: string;
  label: string;
  name: string;
  over?: string;
  perElement?: boolean;
}
const own: Measure[] = [
  { id: "GradNorm", label: "gradient RMS", name: "GradNorm", perElement: true },
  { id: "UpdateRatio", label: "update-to-weight ratio", name: "UpdateSize", over: "ParamNorm" },
];
const plain = (name: string) =>
  shorten(
    name
      .replace(/([a-z])([A-Z])/g, "$1 $2")
      .replace("/", ", ")
      .toLowerCase(),
    30,
  );
export const LOWEST = 11; // pixels of a row with a name
export const LEFT = 128;

export function measures(ctx: Context): Measure[] {
  const names = new Set<string>();
  for (const { data } of ctx.runs) {
    for (const { name, kind, layerwise } of data.header?.quantities ?? [])
      if (layerwise && kind === "scalar") names.add(name);
    for (const [name, layers] of data.columns) if (layers.size > (layers.has("") ? 1 : 0)) names.add(name);
  }
  const first = own.filter(({ name, over }) => names.has(name) && (!over || names.has(over)));
  const rest = [...names].filter((name) => !first.some(({ id }) => id === name));
  return [...first, ...rest.slice(0, 20).map((name) => ({ id: name, label: plain(name), name }))];
}

export const chosen = (ctx: Context): Measure | undefined => {
  const all = measures(ctx);
  return all.find(({ id }) => id === ctx.state.map) ?? all[0];
};

/** Whether two networks have a tensor of the same name, so that one can be divided by the other. */
function areAlike([a, b]: ShownRun[]): boolean {
  const names = new Set(a?.data.header?.layers.map(({ name }) => name));
  return !b || (b.data.header?.layers ?? []).some(({ name }) => names.has(name));
}

/** Whose map: with two runs the second over the first; otherwise the first sick run, else the first. */
export function subjects(ctx: Context): ShownRun[] {
  const known = ctx.runs.filter(({ data }) => data.header?.layers.length);
  if (known.length <= 2 && areAlike(known)) return known;
  return [known.find((run) => isSick(run, null)) ?? known[0]];
}

export interface Row {
  label: string;
  block: string;
  layers: string[];
  foldable: boolean;
  first: boolean; // of its block
}

/** Tensors while they fit, else blocks; a block that the user unfolded shows its tensors. */
export function mapRows(names: string[], room: number, toggled: string[]): Row[] {
  const blocks = groupBlocks(names);
  const fits = names.length <= room;
  return blocks.flatMap((block) => {
    const foldable = block.layers.length > 1;
    const open = !foldable || fits !== toggled.includes(block.path);
    const base = { block: block.path, foldable };
    if (!open) return [{ ...base, label: block.name, layers: block.layers, first: true }];
    return block.layers.map((layer, i) => {
      const inner = nameInBlock(layer, block);
      return {
        ...base,
        label: inner === block.name ? inner : `${block.name}.${inner}`,
        layers: [layer],
        first: i === 0,
      };
    });
  });
}

function kindOf({ runs }: Context, { layers }: Row): string {
  const infos = runs.flatMap(({ data }) => data.header?.layers ?? []);
  const kinds = new Set(infos.filter(({ name }) => layers.includes(name)).map(({ module }) => module));
  return kinds.size === 1 ? ` ${[...kinds][0]}` : "";
}

/** The name beside a row. "0" alone says little: of a block of one kind the kind is named, too. */
export function rowName(ctx: Context, row: Row, right: number, y: number, slow = false): Mark {
  const { theme, state } = ctx;
  const many = row.layers.length > 1;
  const kind = many && /^\d+$/.test(row.label) ? kindOf(ctx, row) : "";
  const active = row.layers.includes(state.layer);
  return {
    type: "text",
    x: right - 5,
    y,
    text: (many ? "▸ " : "") + shorten(row.label + kind, Math.floor(right / 5.6)),
    title: many ? row.block : row.layers[0],
    anchor: "end",
    size: 10,
    color: slow ? theme.warn : active ? theme.accent : theme.quiet,
    bold: slow || active,
  };
}

/** What a click on a row does, and of what it speaks. */
export function rowTarget(ctx: Context, row: Row) {
  const many = row.layers.length > 1;
  const toggle = () => {
    const now = ctx.state.unfolded;
    ctx.set({ unfolded: now.includes(row.block) ? now.filter((one) => one !== row.block) : [...now, row.block] });
  };
  return {
    name: many ? `${row.block}, ${row.layers.length} tensors` : row.layers[0],
    layer: many ? undefined : row.layers[0],
    act: row.foldable ? toggle : undefined,
  };
}

interface Part {
  above: Series;
  below: Series | null;
  size: number;
}
const cache = new WeakMap<ShownRun["data"], Map<string, { used: (Series | number)[]; row: MapRow }>>();

/** Worked out again only if one of its own columns grew or changed: most of what arrives is about others. */
function valuesOf(ctx: Context, run: ShownRun, measure: Measure, layers: string[]): MapRow {
  const { data } = run;
  const key = JSON.stringify([measure.id, ctx.axis, layers]);
  let known = cache.get(data);
  if (!known) cache.set(data, (known = new Map()));
  const parts = layers.map((layer) => ({
    above: data.series(measure.name, layer, ctx.axis),
    below: measure.over ? data.series(measure.over, layer, ctx.axis) : null,
    size: data.header?.layers.find(({ name }) => name === layer)?.size ?? 1,
  }));
  const used = parts.flatMap(({ above, below }) => [above, above.n, ...(below ? [below, below.n] : [])]);
  const cached = known.get(key);
  if (cached?.used.every((own, i) => own === used[i])) return cached.row;
  const row = computeRow(parts, measure);
  if (known.size > 3000) known.clear();
  known.set(key, { used, row });
  return row;
}

function computeRow(parts: Part[], measure: Measure): MapRow {
  const [first] = parts.filter(({ above }) => above.n);
  const row: MapRow = { xs: [], values: [] };
  for (let i = 0; first && i < first.above.n; i++) {
    row.xs.push(first.above.x[i]);
    row.values.push(joinParts(parts, first.above.step[i], measure));
  }
  return row;
}

function joinParts(parts: Part[], step: number, measure: Measure): number {
  let [above, below, size, count] = [0, 0, 0, 0];
  const squared = measure.perElement || measure.over;
  for (const part of parts) {
    const hit = part.above.at(step);
    if (!hit || hit.step !== step) continue;
    above += squared ? hit.value ** 2 : Math.abs(hit.value);
    below += (part.below?.at(step)?.value ?? 0) ** 2;
    size += part.size;
    count++;
  }
  if (!count) return Number.NaN;
  if (measure.over) return Math.sqrt(above / below);
  return measure.perElement ? Math.sqrt(above / size) : above / count;
}

/** As far as both go: a run that ended has no value to compare with. */
function ratioOf(first: MapRow, second: MapRow): MapRow {
  const end = first.xs.at(-1) ?? Number.NEGATIVE_INFINITY;
  const shared = second.xs.filter((x) => x <= end).length;
  let j = 0;
  const values = second.values.slice(0, shared).map((value, i) => {
    while (j + 1 < first.xs.length && first.xs[j + 1] <= second.xs[i]) j++;
    const below = first.values[j] ?? Number.NaN;
    if (!Number.isFinite(value) || !Number.isFinite(below)) return Number.NaN;
    return value === below ? 1 : value / below; // both exactly 0: the same
  });
  return { xs: second.xs.slice(0, shared), values };
}

export interface Picture {
  rows: Row[];
  values: MapRow[];
  runs: ShownRun[];
  measure: Measure;
}
interface Kept {
  key: string;
  picture: Picture;
}
const [pictures, wholes] = [new WeakMap<object, Kept>(), new WeakMap<object, Kept>()];

/** The list of before, if nothing in it is new: colours are remembered by it. Tensors that were measured together share their places. */
function settle(values: MapRow[], before: MapRow[] | undefined): MapRow[] {
  if (before?.length === values.length && values.every((row, i) => row === before[i])) return before;
  values.forEach((row, i) => {
    const xs = values[i - 1]?.xs;
    if (xs?.length === row.xs.length && xs.every((x, k) => x === row.xs[k])) row.xs = xs;
  });
  return values;
}

/** As many rows as fit into that height; without one, every tensor. */
export function makePicture(ctx: Context, height = Number.POSITIVE_INFINITY): Picture | null {
  const runs = subjects(ctx);
  const measure = chosen(ctx);
  if (!runs.length || !measure) return null;
  for (const run of runs) for (const name of [measure.name, measure.over ?? measure.name]) ctx.wantLayers(run, name);
  const names = allLayers({ ...ctx, runs }).filter((layer) =>
    runs.every(({ data }) => data.columns.get(measure.name)?.has(layer)),
  );
  const room = Math.max(1, Math.floor(height / LOWEST));
  const versions = runs.map(({ run, data }) => [run, data.version]);
  const key = JSON.stringify([versions, measure, room, ctx.axis, ctx.state.unfolded, names.length]);
  const kept = room < Number.POSITIVE_INFINITY ? pictures : wholes;
  const cached = kept.get(runs[0].data);
  if (cached?.key === key) return { ...cached.picture, runs };
  const rows = mapRows(names, room, ctx.state.unfolded);
  const [first, second] = runs;
  const values = rows.map(({ layers }) => {
    const row = valuesOf(ctx, first, measure, layers);
    return second ? ratioOf(row, valuesOf(ctx, second, measure, layers)) : row;
  });
  const picture = { rows, values: settle(values, cached?.picture.values), runs, measure };
  kept.set(first.data, { key, picture });
  return picture;
}
