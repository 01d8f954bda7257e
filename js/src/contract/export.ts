// Files for the user: PNG and SVG of one panel, CSV of what it shows.

import { shorten } from "../data/format.ts";
import { drawScene } from "../draw/draw.ts";
import type { Scene } from "../draw/scene.ts";
import { sceneToSvg } from "../draw/svg.ts";
import type { Context } from "./panel.ts";

export function csvField(value: string | number): string {
  const text = String(value);
  // A spreadsheet runs what begins like a formula: names come from strangers, numbers do not.
  const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
}

export const csvLines = (rows: (string | number)[][]) =>
  `${rows.map((row) => row.map(csvField).join(",")).join("\n")}\n`;

/** Every value of these columns in the chosen runs: run, step, epoch, time, name, layer, value. */
export function columnsCsv(ctx: Context, names: string[] | null): string {
  const rows: (string | number)[][] = [["run", "step", "epoch", "time", "name", "layer", "value"]];
  for (const { run, data } of ctx.runs) {
    for (const [name, layers] of data.columns) {
      if (names && !names.includes(name)) continue;
      for (const [layer, table] of layers)
        for (let i = 0; i < table.n; i++) {
          const row = data.rows.find(table.seq[i]);
          if (row < 0) continue;
          const [step, time, , epoch] = data.rows.columns.map((column) => column[row]);
          rows.push([run, step, Number.isNaN(epoch) ? "" : epoch, time, name, layer, table.columns[0][i]]);
        }
    }
    if (!names || names.includes("Alpha")) rows.push(...alphaRows(run, data));
  }
  return csvLines(rows);
}

function alphaRows(run: string, data: Context["runs"][number]["data"]): (string | number)[][] {
  const series = data.series("Alpha", "", "time");
  const epochs = data.hasEpochs ? data.series("Alpha", "", "epoch") : null;
  return Array.from({ length: series.n }, (_, i) => {
    const at = epochs?.at(series.step[i]);
    const epoch = at && epochs ? epochs.x[at.index] : "";
    return [run, series.step[i], epoch, series.x[i], "Alpha", "", series.y[i]];
  });
}

export function download(name: string, content: Blob): void {
  const link = document.createElement("a");
  const url = URL.createObjectURL(content);
  link.href = url;
  link.download = name.replace(/[^\w.-]+/g, "_").slice(0, 160);
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** Where the entries of a legend stand, in as many lines as they need. */
function placeLegend({ legend, width }: Scene): { x: number; y: number }[] {
  let [x, y] = [10, 33];
  return legend.map(({ label }) => {
    const own = 34 + label.length * 6.2;
    if (x > 10 && x + own > width) [x, y] = [10, y + 16];
    const place = { x, y };
    x += own;
    return place;
  });
}

/** The chart with its title and legend above, as it goes into a file. */
export function framedScene(scene: Scene, title: string, theme: Context["theme"]): Scene {
  const places = placeLegend(scene);
  const top = (places.at(-1)?.y ?? 15) + 11;
  const moved = scene.marks.map((mark) => {
    const clip = "clip" in mark && mark.clip ? { clip: { ...mark.clip, y: mark.clip.y + top } } : {};
    if (mark.type === "line" || mark.type === "dots")
      return { ...mark, ...clip, ys: Array.from(mark.ys, (y) => y + top) };
    if (mark.type === "bars")
      return { ...mark, ...clip, boxes: Array.from(mark.boxes, (v, i) => (i % 4 === 1 ? v + top : v)) };
    if (mark.type === "ellipse") return { ...mark, ...clip, cy: mark.cy + top };
    return { ...mark, ...clip, y: mark.y + top };
  });
  const framed: Scene = { ...scene, height: scene.height + top, marks: moved };
  framed.marks.push({ type: "text", x: 10, y: 14, text: title, color: theme.text, bold: true, size: 13 });
  scene.legend.forEach(({ label, color, dash }, i) => {
    const { x, y } = places[i];
    framed.marks.push({ type: "line", xs: [x, x + 16], ys: [y, y], stroke: color, weight: 2, dash });
    framed.marks.push({ type: "text", x: x + 20, y, text: label, color: theme.quiet });
  });
  return framed;
}

/** On the page the bar tells the runs' colours; a file must do so itself. */
export function withRuns(scene: Scene, ctx: Context): Scene {
  if (ctx.runs.length < 2) return scene;
  const runs = ctx.runs.map(({ label, color }) => ({ label: shorten(label, 24), color }));
  return { ...scene, legend: [...runs, ...scene.legend] };
}

/** What a file is called: the panel, the run (or how many), and the step that it shows. */
export function fileTitle(title: string, ctx: Context): string {
  const runs = ctx.runs.length === 1 ? ctx.runs[0].run : ctx.runs.length ? `${ctx.runs.length} runs` : "";
  return [title, runs.slice(-60), ctx.step === null ? "" : `step ${ctx.step}`].filter(Boolean).join(" ");
}

export function exportSvg(scene: Scene, title: string, ctx: Context): void {
  const text = sceneToSvg(framedScene(withRuns(scene, ctx), title, ctx.theme), ctx.theme.card);
  download(`${fileTitle(title, ctx)}.svg`, new Blob([text], { type: "image/svg+xml" }));
}

export function exportPng(scene: Scene, title: string, ctx: Context): void {
  const framed = framedScene(withRuns(scene, ctx), title, ctx.theme);
  const { width, height } = framed;
  framed.marks.unshift({ type: "rect", x: 0, y: 0, width, height, fill: ctx.theme.card });
  const canvas = document.createElement("canvas");
  drawScene(canvas, framed, 2, true);
  canvas.toBlob((blob) => blob && download(`${fileTitle(title, ctx)}.png`, blob));
}

export function exportCsv(text: string, title: string): void {
  download(`${title}.csv`, new Blob([text], { type: "text/csv" }));
}
