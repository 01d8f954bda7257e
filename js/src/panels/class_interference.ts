// Do classes learn at each other's expense? Mean cosines of their gradients over time, and pair by pair.
import { matrixMarks, matrixScale, reachOf } from "../charts/matrix.ts";
import { columnsCsv, csvLines } from "../contract/export.ts";
import type { Context, Panel, Reading, Size } from "../contract/panel.ts";
import { formatNumber } from "../data/format.ts";
import type { HistogramData } from "../data/wire.ts";
import type { Scene } from "../draw/scene.ts";
import { type CurvesSpec, curvePanel, drawCurves } from "./_curves.ts";

const NAME = "ClassInterference";

const spec: CurvesSpec = {
  id: "class_interference",
  title: "Interference of classes",
  group: "gradients",
  order: 18,
  height: 230,
  shown: [
    { name: NAME, label: "between classes" },
    { name: `${NAME}/same`, label: "within a class" },
    { name: `${NAME}/worst`, label: "worst pair" },
  ],
  ylabel: "cosine",
  guides: () => [{ value: 0, label: "no effect" }],
  help: [
    "The mean cosine between the gradients of two samples: for different classes, for the same class, and for the two classes that disagree most. The square shows every pair of classes, over about ten tracked steps: orange helps, blue harms, grey was not seen.",
    "Above 0 a step for one helps the other, below 0 it harms it. Classes that are confused harm each other. A class that disagrees with itself (the diagonal) has wrong labels, or is several classes.",
  ],
};

/** A row per class: its label, then its mean cosine with each class. */
export function readMatrix({ shape, counts }: HistogramData): { names: string[]; values: number[][] } | null {
  const [rows, columns] = shape;
  if (shape.length !== 2 || rows < 2 || columns !== rows + 1) return null;
  const row = (i: number) => Array.from(counts.subarray(i * columns, (i + 1) * columns));
  const table = Array.from({ length: rows }, (_, i) => row(i));
  return { names: table.map(([label]) => String(label)), values: table.map(([, ...values]) => values) };
}

function findMatrix(ctx: Context) {
  for (const run of ctx.runs) {
    const step = ctx.heavyStep(run, NAME);
    const table = step === null ? null : ctx.histogram(run, NAME, step, "");
    const matrix = table?.counts.length ? readMatrix(table) : null;
    if (table && matrix) return { run, step: table.step, matrix };
  }
  return null;
}

function draw(ctx: Context, size: Size): Scene {
  const measured = findMatrix(ctx);
  if (!measured) return drawCurves(ctx, size, spec);
  const { matrix, run, step } = measured;
  const wide = size.width > 380;
  const room = wide ? Math.min(size.height - 40, size.width * 0.42) : Math.min(size.width - 80, size.height * 0.5);
  const side = Math.max(30, room);
  const box = { x: 26, y: 18, width: side, height: side };
  const value = (i: number, k: number) =>
    Number.isFinite(matrix.values[i][k]) ? formatNumber(matrix.values[i][k], 2) : "not seen";
  const words = (i: number, k: number) => `classes ${matrix.names[i]} and ${matrix.names[k]}: ${value(i, k)}`;
  const area = wide
    ? { x: side + 62, y: 0, width: size.width - side - 62, height: size.height }
    : { x: 0, y: side + 32, width: size.width, height: size.height - side - 32 };
  const scene = drawCurves(ctx, size, spec, area);
  const { marks, spots } = matrixMarks(matrix, box, ctx.theme, words);
  const title = `step ${step}${ctx.runs.length > 1 ? `, ${run.label}` : ""}`;
  scene.marks.push(...marks, { type: "text", x: box.x, y: 7, text: title, color: ctx.theme.quiet });
  scene.marks.push(
    ...matrixScale(reachOf(matrix), { x: box.x + side + 6, y: box.y, width: 8, height: side }, ctx.theme),
  );
  scene.spots.push(...spots);
  return scene;
}

/** Every pair that was seen, each once. */
function details(ctx: Context): Reading[] {
  const measured = findMatrix(ctx);
  if (!measured) return [];
  const { matrix, run, step } = measured;
  return matrix.values.flatMap((row, i) =>
    row.flatMap((value, k) =>
      k <= i && Number.isFinite(value)
        ? [{ label: `classes ${matrix.names[i]} and ${matrix.names[k]}`, value, step, run: run.run }]
        : [],
    ),
  );
}

const panel: Panel = {
  ...curvePanel(spec),
  details,
  draw,
  csv: (ctx) => {
    const measured = findMatrix(ctx);
    if (!measured) return columnsCsv(ctx, [NAME, `${NAME}/same`, `${NAME}/worst`]);
    const { matrix, run, step } = measured;
    const rows = matrix.values.flatMap((row, i) =>
      row.map((value, k) => [run.run, step, matrix.names[i], matrix.names[k], value]),
    );
    return csvLines([["run", "step", "class", "other class", "mean cosine"], ...rows]);
  },
};
export default panel;
