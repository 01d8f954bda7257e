// Histograms of many tensors: one row each, in network order, folded by block as on the map. Names stand beside the rows.
import { binMarks, histogramMark, largest } from "../charts/histogram.ts";
import type { Context, ShownRun, Size } from "../contract/panel.ts";
import { shorten } from "../data/format.ts";
import type { HistogramData } from "../data/wire.ts";
import { emptyScene, type Scene } from "../draw/scene.ts";
import { LEFT, LOWEST, mapRows, type Row, rowName, rowTarget } from "./_layer_rows.ts";

export interface Cell {
  layer: string;
  shown: { run: ShownRun; histogram: HistogramData }[];
}

interface Joined {
  run: ShownRun;
  counts: Float64Array;
}

/** The tensors of a block are counted together, run by run; what has other bins is left out. */
function join(cells: Cell[]): Joined[] {
  const byRun = new Map<ShownRun, Joined>();
  for (const { run, histogram } of cells.flatMap(({ shown }) => shown)) {
    const own = byRun.get(run);
    if (!own) byRun.set(run, { run, counts: Float64Array.from(histogram.counts) });
    else if (own.counts.length === histogram.counts.length)
      histogram.counts.forEach((count, i) => {
        own.counts[i] += count;
      });
  }
  return [...byRun.values()];
}

export function rowScene(ctx: Context, size: Size, cells: Cell[], slowIn: Map<string, ShownRun[]>): Scene {
  const { theme } = ctx;
  const scene = emptyScene(size.width, size.height);
  const left = Math.min(LEFT, size.width * 0.36);
  const box = { x: left, y: 4, width: Math.max(20, size.width - left - 8), height: Math.max(10, size.height - 24) };
  const byName = new Map(cells.map((cell) => [cell.layer, cell]));
  const room = Math.max(1, Math.floor(box.height / LOWEST));
  const rows = mapRows([...byName.keys()], room, ctx.state.unfolded);
  const joined = rows.map(({ layers }) => join(layers.flatMap((layer) => byName.get(layer) ?? [])));
  const each = box.height / rows.length;
  const isSlow = ({ layers }: Row, own: Joined[]) =>
    own.length > 0 && layers.every((layer) => own.every(({ run }) => slowIn.get(layer)?.includes(run)));
  let last = Number.NEGATIVE_INFINITY;
  rows.forEach((row, i) => {
    const y = box.y + i * each;
    const own = joined[i];
    const slow = isSlow(row, own);
    const most = Math.max(1, ...own.map(({ counts }) => largest(counts)));
    const inner = { x: box.x, y: y + 1, width: box.width, height: each * 0.9 };
    for (const { run, counts } of own)
      scene.marks.push(
        histogramMark(counts, most, inner, slow && own.length === 1 ? theme.warn : run.color, own.length),
      );
    if (y - last >= LOWEST - 1) {
      last = y;
      scene.marks.push(rowName(ctx, row, box.x, y + each / 2, slow));
    }
    const { name, ...target } = rowTarget(ctx, row);
    const whose = ctx.runs.filter((run) => row.layers.some((layer) => slowIn.get(layer)?.includes(run)));
    const which = ctx.runs.length > 1 ? ` in ${whose.map(({ label }) => label).join(", ")}` : "";
    const words = whose.length ? `: its gradients are far smaller than those of other layers${which}` : "";
    const click = target.layer ? "all panels show this layer" : "its tensors";
    const hint = `${shorten(name, 120)}${words}. Click: ${click}.`;
    scene.spots.push({
      x: 0,
      y,
      width: size.width,
      height: each,
      hint,
      ...target,
      act: target.layer ? undefined : target.act,
    });
  });
  const edges = cells.find(({ shown }) => shown.length)?.shown[0].histogram.edges;
  if (edges) scene.marks.push(...binMarks(edges, box, theme));
  return scene;
}
