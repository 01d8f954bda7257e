// What tracking costs, by quantity: seconds of the chosen step, and the share of the tracked steps' time over the run.
import { columnsCsv } from "../contract/export.ts";
import { type Context, type Panel, type ShownRun, type Size, valueAt } from "../contract/panel.ts";
import { formatDuration, formatShare, shorten } from "../data/format.ts";
import { emptyScene, messageScene, type Scene } from "../draw/scene.ts";
import { costSums, trackingBudget, trackingShare } from "../judge/costs.ts";
import { quartiles } from "../judge/judging.ts";

interface Item {
  name: string;
  seconds: number; // at the chosen step
  usual: number; // the median: the first step may have compiled something
}

export function costItems(ctx: Context, run: ShownRun): Item[] {
  const items: Item[] = [];
  for (const name of run.data.columns.keys()) {
    if (!name.startsWith("cost/") || costSums.includes(name)) continue;
    const series = run.data.series(name, "", "step");
    const seconds = valueAt(ctx, run, name)?.value ?? 0;
    items.push({ name: name.slice(5), seconds, usual: quartiles(series.y.subarray(0, series.n))?.[1] ?? 0 });
  }
  return items.sort((a, b) => b.usual - a.usual);
}

function draw(ctx: Context, size: Size): Scene {
  const lists = ctx.runs.map((run) => ({ run, items: costItems(ctx, run) })).filter(({ items }) => items.length);
  if (!lists.length) return messageScene(size.width, size.height, "No costs recorded yet.", ctx.theme.quiet);
  const { theme } = ctx;
  const names = [...new Set(lists.flatMap(({ items }) => items.map((item) => item.name)))];
  const room = Math.max(1, Math.floor((size.height - 8) / 20));
  const shown = names.slice(0, names.length > room ? room - 1 : room);
  const most = Math.max(1e-9, ...lists.flatMap(({ items }) => items.map((item) => Math.max(item.usual, item.seconds))));
  const longest = Math.max(...shown.map((name) => name.length));
  const left = Math.min(Math.max(90, 6.6 * longest + 12), size.width * 0.42);
  const width = size.width - left - 62;
  const scene = emptyScene(size.width, size.height);
  const pitch = Math.min(30, (size.height - 8) / Math.max(shown.length + (names.length > shown.length ? 1 : 0), 1));
  shown.forEach((name, i) => {
    const y = 4 + i * pitch;
    const thick = Math.max(2, (pitch - 7) / lists.length);
    scene.marks.push({
      type: "text",
      x: left - 8,
      y: y + (pitch - 7) / 2,
      text: shorten(name, Math.floor((left - 8) / 6.4)),
      title: name.slice(0, 400),
      anchor: "end",
      color: theme.quiet,
    });
    const hint = lists.flatMap(({ run, items }) => {
      const item = items.find((own) => own.name === name);
      const whose = lists.length > 1 ? `${run.label} ` : "";
      return item ? [`${whose}${formatDuration(item.seconds)}, usually ${formatDuration(item.usual)}`] : [];
    });
    scene.spots.push({ x: 0, y, width: size.width, height: pitch, hint: `${shorten(name, 60)}: ${hint.join("; ")}` });
    lists.forEach(({ run, items }, r) => {
      const item = items.find((own) => own.name === name);
      if (!item) return;
      const at = y + r * thick;
      scene.marks.push({
        type: "rect",
        x: left,
        y: at,
        width: width * (item.seconds / most),
        height: thick,
        fill: run.color,
        alpha: 0.8,
      });
      const [end, usual] = [item.seconds, item.usual].map((seconds) => left + width * (seconds / most));
      scene.marks.push({
        type: "line",
        xs: [usual, usual],
        ys: [at - 1, at + thick + 1],
        stroke: theme.text,
        weight: 1.5,
      });
      if (lists.length === 1)
        scene.marks.push({
          type: "text",
          x: (usual > end && usual - end < 56 ? usual : end) + 6, // beside its bar, but not across the tick
          y: at + thick / 2,
          text: formatDuration(item.seconds),
          color: theme.text,
        });
    });
  });
  if (names.length > shown.length)
    scene.marks.push({
      type: "text",
      x: left,
      y: 4 + shown.length * pitch + 6,
      text: `and ${names.length - shown.length} smaller`,
      color: theme.quiet,
    });
  return scene;
}

const panel: Panel = {
  id: "cost",
  title: "What tracking costs",
  group: "training",
  order: 200,
  height: 160,
  names: ["Time", "Parameters"],
  timeless: true,
  help: [
    "Seconds that measuring took at the chosen step, by quantity (bars), and usually (ticks: the median). “shared” is work that several quantities use together, “writing” the log file.",
    "The number above is the share of the training time that tracking took, beside the budget if one was set (track(budget=0.1)). When the budget is used up, tracked steps are left out. Steps that are not tracked cost next to nothing.",
  ],
  shows: (ctx) => ctx.runs.some(({ data }) => [...data.columns.keys()].some((name) => name.startsWith("cost/"))),
  readings: (ctx) =>
    ctx.runs.flatMap((run) => {
      const share = trackingShare(run);
      const budget = trackingBudget(run);
      const several = ctx.runs.length > 1;
      const label = several ? run.label : "share of training time";
      return share === null
        ? []
        : [
            {
              label,
              value: share,
              text:
                budget === null || several
                  ? formatShare(share)
                  : `budget ${formatShare(budget)}, used ${formatShare(share)}`,
              run: run.run,
              color: ctx.runs.length > 1 ? run.color : undefined,
            },
          ];
    }),
  details: (ctx) =>
    ctx.runs.flatMap((run) =>
      costItems(ctx, run).flatMap(({ name, seconds, usual }) => {
        const own = ctx.runs.length > 1 ? `${run.label} ${name}` : name;
        return [
          { label: own, value: seconds, text: formatDuration(seconds), run: run.run, step: ctx.step ?? undefined },
          { label: `${own}, usually`, value: usual, text: formatDuration(usual), run: run.run },
        ];
      }),
    ),
  note: () => "Bars: the chosen step. Ticks: the median.",
  draw,
  csv: (ctx) =>
    columnsCsv(ctx, [
      ...new Set(ctx.runs.flatMap(({ data }) => [...data.columns.keys()].filter((name) => name.startsWith("cost/")))),
    ]),
};
export default panel;
