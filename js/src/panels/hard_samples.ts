// Which samples own the gradient? Those with the largest individual gradients over the run, by their id.
import { csvLines } from "../contract/export.ts";
import { type Context, isTracked, type Panel, type ShownRun, valueAt } from "../contract/panel.ts";
import { formatNumber, formatShare } from "../data/format.ts";
import type { Sample } from "../data/source.ts";
import type { HistogramData } from "../data/wire.ts";
import { h, press, refill } from "../draw/dom.ts";

const NAME = "HardSamples";
const WIDTH = 6; // id, mean norm, mean cosine with the gradient, times seen, label, last step
const ENOUGH = 3; // times: before, every sample has a large gradient
const NO_IDS = "Samples have no ids: call run.batch(ids=...) before each forward pass to follow them over the run.";

export interface HardSample {
  id: number;
  norm: number;
  agreement: number;
  times: number;
  label: number | null;
  step: number;
}

export function readSamples({ shape, counts }: HistogramData): HardSample[] {
  if (shape.length !== 2 || shape[1] !== WIDTH) return [];
  return Array.from({ length: shape[0] }, (_, i) => {
    const [id, norm, agreement, times, label, step] = counts.subarray(i * WIDTH, (i + 1) * WIDTH);
    return { id, norm, agreement, times, label: label >= 0 ? label : null, step };
  });
}

/** The table at the step in question, of the first run that has one. */
function findTable(ctx: Context): { run: ShownRun; step: number; samples: HardSample[] } | null {
  for (const run of ctx.runs) {
    const step = ctx.heavyStep(run, NAME);
    const table = step === null ? null : ctx.histogram(run, NAME, step, "");
    if (table?.counts.length)
      return { run, step: table.step, samples: sortSamples(readSamples(table), ctx.state.lens) };
  }
  return null;
}

const sortSamples = (samples: HardSample[], by: Context["state"]["lens"]) =>
  by ? [...samples].sort((a, b) => (by === "contrary" ? a.agreement - b.agreement : b.times - a.times)) : samples;

const orders = [
  ["", "largest gradient"],
  ["contrary", "most contrary"],
  ["often", "most often seen"],
] as const;

function orderButtons(ctx: Context): HTMLElement {
  const chips = orders.map(([lens, text]) => {
    const pressed = String(ctx.state.lens === lens);
    return press("ck-chip", () => ctx.set({ lens }), { "aria-pressed": pressed }, text);
  });
  return h("div", { class: "ck-tools" }, "First: ", ...chips);
}

function sampleCell(sample: Sample | null | undefined): HTMLElement {
  const picture = sample?.picture ? h("img", { class: "ck-sample", src: sample.picture, alt: "" }) : null;
  return h("td", {}, picture, sample === undefined ? "…" : (sample?.text ?? "").slice(0, 300));
}

function row(ctx: Context, sample: HardSample, shows: boolean): HTMLElement {
  const { id, norm, agreement, times, label, step } = sample;
  const go = press("ck-link", () => ctx.goTo(step), { title: `Show step ${step} in all panels` }, String(step));
  const number = (text: string | HTMLElement, title = "") => h("td", { class: "ck-n", title }, text);
  return h(
    "tr",
    { "data-sample": id },
    number(String(id)),
    shows ? sampleCell(ctx.sample?.(id)) : null,
    number(label === null ? "–" : String(label)),
    number(formatNumber(norm), String(norm)),
    number(formatNumber(agreement, 2), String(agreement)),
    number(String(times)),
    number(go),
  );
}

const panel: Panel = {
  id: "hard_samples",
  title: "Hard samples",
  group: "gradients",
  order: 19,
  height: 200,
  names: [NAME],
  needs: [NAME],
  help: [
    "The samples with the largest individual gradients, averaged over the tracked steps that had them in their batch: id, label as the loss got it, mean length of the gradient, mean cosine with that of its batch, how often and when last seen.",
    "Large and contrary (a cosine below 0) is what a wrong label looks like: with 5 % of the labels of handwritten digits flipped, 94 % of the fifty worst were flipped ones after ten epochs. Rare and hard samples are there too: look before you throw them out.",
    "The number above is the share of the five largest in the squared norms of one batch. Ids come from run.batch(ids=...); in a notebook CockpitWidget(run, show_sample=function) shows what your function makes of an id.",
  ],
  shows: (ctx) => isTracked(ctx, [NAME]),
  readings: (ctx) =>
    ctx.runs.flatMap((run) => {
      const hit = valueAt(ctx, run, NAME);
      const several = ctx.runs.length > 1;
      const label = several ? `${run.label} five largest` : "five largest";
      const text =
        hit && Number.isFinite(hit.value) ? `${several ? "" : "five largest: "}${formatShare(hit.value)}` : undefined;
      const color = several ? run.color : undefined;
      return hit ? [{ label, value: hit.value, text, step: hit.step, run: run.run, color }] : [];
    }),
  note: (ctx) => {
    const table = findTable(ctx);
    if (!table) return "";
    const whose = ctx.runs.length > 1 ? `Of ${table.run.label}, until` : "Until";
    const most = Math.max(...table.samples.map(({ times }) => times));
    const chance =
      most < ENOUGH ? ` Seen ${most === 1 ? "once" : `${most} times`} at most: the order is mostly chance.` : "";
    return `${whose} step ${formatNumber(table.step)}.${chance}`;
  },
  fill(ctx, element) {
    const table = findTable(ctx);
    const shows = ctx.sample !== undefined;
    const pictures = shows ? (table?.samples ?? []).map(({ id }) => ctx.sample?.(id) !== undefined) : [];
    const ids = ctx.runs.some(({ data }) => data.heavy.get(NAME)?.length);
    const key = JSON.stringify([ctx.theme.dark, ids, table?.run.run, table?.step, ctx.state.lens, shows, pictures]);
    refill(element, key, () => {
      if (!table) return [h("p", { class: "ck-fine" }, ids ? "No table of samples yet." : NO_IDS)];
      const names = ["id", ...(shows ? ["sample"] : []), "label", "norm", "cosine", "seen", "last step"];
      const head = names.map((name) => h("th", { class: name === "sample" ? "" : "ck-n" }, name));
      const body = table.samples.map((sample) => row(ctx, sample, shows));
      return [orderButtons(ctx), h("table", {}, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...body))];
    });
  },
  csv: (ctx) => {
    const table = findTable(ctx);
    const lines = (table?.samples ?? []).map((own): (string | number)[] => [
      ...[table?.run.run ?? "", table?.step ?? "", own.id, own.label ?? ""],
      ...[own.norm, own.agreement, own.times, own.step],
    ]);
    const head = ["run", "step", "id", "label", "norm", "cosine", "times seen", "last step"];
    return csvLines([head, ...lines]);
  },
};
export default panel;
