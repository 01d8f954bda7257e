// The network over time: which layer, since when? Blocks or tensors in network order against steps, colour for the value.
import { timeMarks } from "../charts/axes.ts";
import { type MapRow, mapColors, mapLegend, mapPixels } from "../charts/map.ts";
import { csvLines } from "../contract/export.ts";
import { playhead } from "../contract/navigation.ts";
import { type Context, type Panel, type Reading, type Size, waitingFor } from "../contract/panel.ts";
import { formatNumber, shorten } from "../data/format.ts";
import { lowerBound } from "../data/table.ts";
import { makeScale } from "../draw/scale.ts";
import { type Box, emptyScene, type Mark, messageScene, type Scene } from "../draw/scene.ts";
import {
  chosen,
  LEFT,
  LOWEST,
  makePicture,
  measures,
  type Picture,
  type Row,
  rowName,
  rowTarget,
  subjects,
} from "./_layer_rows.ts";

/** The value that a row shows at a place of the axis. */
function valueIn({ xs, values }: MapRow, x: number): number | null {
  let at = lowerBound(xs, xs.length, x);
  while (at < xs.length && xs[at] <= x) at++; // of several at one place the last
  return xs.length ? values[Math.max(0, at - 1)] : null;
}

const odd = new WeakMap<MapRow[], number[]>();

/** What has a colour of its own; looked for once, not with every frame. */
function oddValues(rows: MapRow[]): number[] {
  let found = odd.get(rows);
  if (!found) {
    const isOdd = (value: number) => value === 0 || !Number.isFinite(value);
    odd.set(rows, (found = [...new Set(rows.flatMap(({ values }) => values.filter(isOdd)))]));
  }
  return found;
}

function draw(ctx: Context, size: Size): Scene {
  const left = Math.min(LEFT, size.width * 0.36);
  const box: Box = {
    x: left,
    y: 20,
    width: Math.max(20, size.width - left - 12),
    height: Math.max(10, size.height - 54),
  };
  const picture = makePicture(ctx, box.height);
  const measure = picture?.measure;
  if (!picture?.rows.length || !measure) {
    const wanted = chosen(ctx)?.name ?? "GradNorm";
    const coming = ctx.runs.some(({ data }) => data.has(wanted)); // those of the network are here, those of layers follow
    const words = coming ? "Fetching the layers …" : waitingFor(ctx, [wanted]);
    return messageScene(size.width, size.height, words, ctx.theme.quiet);
  }
  const { theme } = ctx;
  const scene = emptyScene(size.width, size.height);
  const { rows, values, runs } = picture;
  const colors = mapColors(values, runs.length > 1);
  const xscale = makeScale(ctx.state.xlog ? "log1p" : "linear", ctx.domain, [box.x, box.x + box.width]);
  const each = box.height / rows.length;
  const rgba = mapPixels(values, xscale, box, colors, theme);
  scene.marks.push({
    type: "image",
    ...box,
    columns: Math.max(1, Math.round(box.width)),
    rows: rows.length,
    rgba,
    of: values,
  });
  const legend = mapLegend(size.width, colors, theme, oddValues(values));
  scene.marks.push(...legend.marks);
  scene.marks.push({
    type: "text",
    x: 4,
    y: 9,
    text: titleOf(ctx, picture, Math.floor((legend.x - 44) / 6.2)),
    color: theme.quiet,
  });
  scene.marks.push(
    ...nameMarks(ctx, picture, box, each),
    ...timeMarks({ theme, axis: ctx.axis, xlog: ctx.state.xlog }, box, xscale),
    ...cursorMarks(ctx, rows, box, each, xscale),
  );
  scene.frames.push({ ...box, xscale });
  rows.forEach((row, i) => {
    scene.spots.push(
      spotOf(ctx, row, values[i], picture, { x: 0, y: box.y + i * each, width: size.width, height: each }),
    );
  });
  return scene;
}

/** Whose values they are, where there is room for it: the sentence below says it too. */
function titleOf(ctx: Context, { measure, runs }: Picture, letters: number): string {
  const whose = runs.map(({ label }) => label).reverse();
  const whole = ctx.runs.length > 1 ? `${measure.label}, ${whose.join(" / ")}` : measure.label;
  return shorten([...whole].length <= letters ? whole : measure.label, Math.max(8, letters));
}

function nameMarks(ctx: Context, { rows }: Picture, box: Box, each: number): Mark[] {
  const marks: Mark[] = [];
  let last = Number.NEGATIVE_INFINITY;
  rows.forEach((row, i) => {
    const y = box.y + (i + 0.5) * each;
    if (row.first && i && !(row.layers.length > 1 && rows[i - 1].layers.length > 1))
      marks.push({ type: "line", xs: [4, box.x], ys: [y - each / 2, y - each / 2], stroke: ctx.theme.line });
    if (y - last < LOWEST - 0.5) return;
    last = y;
    marks.push(rowName(ctx, row, box.x, y));
  });
  return marks;
}

function cursorMarks(ctx: Context, rows: Row[], box: Box, each: number, xscale: ReturnType<typeof makeScale>): Mark[] {
  const marks: Mark[] = [];
  const at = playhead(ctx);
  const line = { type: "line", live: true, stroke: ctx.theme.card, weight: 1.5 } as const;
  if (at !== null && at >= ctx.domain[0] && at <= ctx.domain[1]) {
    const x = xscale.to(at);
    marks.push({ ...line, xs: [x, x], ys: [box.y, box.y + box.height] });
  }
  rows.forEach((row, i) => {
    if (ctx.state.layer && row.layers.includes(ctx.state.layer))
      marks.push({
        type: "rect",
        live: true,
        x: box.x,
        y: box.y + i * each,
        width: box.width,
        height: each,
        stroke: ctx.theme.accent,
        weight: 2,
      });
  });
  return marks;
}

function spotOf(ctx: Context, row: Row, values: MapRow, { measure, runs }: Picture, box: Box): Scene["spots"][number] {
  const { name, ...target } = rowTarget(ctx, row);
  const times = runs.length > 1 ? " ×" : "";
  const words = (value: number | null) => {
    if (value === Number.POSITIVE_INFINITY && times) return `exactly 0 in ${runs[0].label}`;
    return value === null ? "no value" : `${formatNumber(value)}${times}`;
  };
  const at = playhead(ctx) ?? 0;
  const tell = (x: number) => `${name}: ${measure.label} ${words(valueIn(values, x))}`;
  return { ...box, hint: tell(at), tell, ...target };
}

/** Whose map this is, where it is of one run among several. */
function note(ctx: Context): string {
  const [run, other] = subjects(ctx);
  if (ctx.runs.length < 2 || !run) return "";
  if (other) return `${shorten(other.label, 40)} divided by ${shorten(run.label, 40)}.`;
  const rest =
    ctx.runs.length > 2 ? "choose one run, or two for their ratio" : "the other has no tensor of the same name";
  return `Of ${shorten(run.label, 40)}; ${rest}.`;
}

/** Every tensor's value at the step in question. */
function details(ctx: Context): Reading[] {
  const picture = makePicture(ctx);
  const at = playhead(ctx);
  if (!picture || at === null) return [];
  return picture.rows.map(({ layers }, i) => ({
    label: layers[0],
    value: valueIn(picture.values[i], at),
    run: picture.runs.at(-1)?.run,
  }));
}

function csv(ctx: Context): string {
  const rows: (string | number)[][] = [["run", "measure", "block", "layers", ctx.axis, "value"]];
  const picture = makePicture(ctx);
  picture?.rows.forEach(({ block, layers }, i) => {
    const { xs, values } = picture.values[i];
    const run = picture.runs
      .map((one) => one.run)
      .reverse()
      .join(" / ");
    xs.forEach((x, k) => {
      rows.push([run, picture.measure.id, block, layers.join(" "), x, values[k]]);
    });
  });
  return csvLines(rows);
}

const panel: Panel = {
  id: "layer_map",
  title: "The network over time",
  group: "first",
  order: 3,
  height: 190,
  names: [],
  timeless: true,
  help: [
    "Rows are parameter tensors in the order of the network; colour is the value, on a log scale. The ⋯ menu chooses what is shown: gradient RMS (length per element), update-to-weight ratio, noise, whatever is measured by layer.",
    "Healthy: rows of similar colour that change slowly and together. Dark rows towards the input: gradients vanish. A row that turns black has a gradient of exactly zero from there on; red is not finite.",
    "Large networks are folded by block: a click on a block's name unfolds it. A click on the map chooses that step, and that tensor, in all panels. With two runs it shows the second divided by the first.",
  ],
  shows: (ctx) => ctx.runs.some(({ data }) => (data.header?.layers.length ?? 0) > 1) && measures(ctx).length > 0,
  readings: () => [],
  details,
  note,
  draw,
  csv,
  actions: (ctx) =>
    measures(ctx).map(({ id, label }) => ({
      label: `Show ${label}`,
      pressed: chosen(ctx)?.id === id,
      act: () => ctx.set({ map: id }),
    })),
};
export default panel;
