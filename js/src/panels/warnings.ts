// Everything that was recorded as worth a look. A click goes to its step and layer.
import { h, refill } from "../dom.ts";
import { csvLines } from "../export.ts";
import { formatNumber, shorten } from "../format.ts";
import { groupWarnings, type Line } from "../notices.ts";
import type { Context, Panel } from "../panel.ts";

const words: Record<string, string> = {
  error: "error",
  not_finite: "not finite",
  outside_range: "outside the range",
  edge_of_stability: "edge of stability",
  zero_gradient: "no gradient",
  coverage: "coverage",
  trigger: "triggered",
  size: "size",
  note: "note",
};
function row(ctx: Context, { run, notice, count }: Line): HTMLElement {
  const swatch = h("i", { class: "ck-swatch" });
  swatch.style.setProperty("--c", run.color);
  const kind = h("span", { class: "ck-kind" }, words[notice.kind] ?? shorten(notice.kind, 24));
  const where = [notice.quantity, notice.layer].filter(Boolean).map((name) => ` · ${shorten(name, 40)}`);
  const what = h("span", {}, ctx.runs.length > 1 ? swatch : null, kind, ...where, count > 1 ? ` (${count} times)` : "");
  const label = `Step ${notice.step}: show it in all panels`;
  const go = h("button", { type: "button", class: "ck-go", title: label }, what, h("br"), shorten(notice.message, 300));
  go.addEventListener("click", () => ctx.goTo(notice.step, notice.layer));
  return h("tr", {}, h("td", { class: "ck-n" }, formatNumber(notice.step)), h("td", {}, go));
}

const total = (ctx: Context) => ctx.runs.reduce((sum, { data }) => sum + data.warnings.length, 0);

const panel: Panel = {
  id: "warnings",
  title: "Warnings",
  group: "about",
  order: 5,
  height: 170,
  names: [],
  help: [
    "What was recorded as worth a look: errors inside a quantity (training went on), values that are not finite, more than 1 % of the elements outside a histogram's range, layers without any gradient, an eigenvalue at which steps of this learning rate grow, and what was left out.",
    "A click shows that step, and that layer, in all panels. The triangles above the scrubber are the same warnings.",
  ],
  shows: (ctx) => ctx.runs.some(({ data }) => data.warnings.length > 0),
  readings: (ctx) => [{ label: "warnings", value: total(ctx), text: formatNumber(total(ctx)) }],
  fill(ctx, element) {
    const key = JSON.stringify([ctx.theme.dark, ctx.runs.map(({ run, color, data }) => [run, color, data.version])]);
    refill(element, key, () => {
      const head = h("tr", {}, h("th", { class: "ck-n" }, "step"), h("th", {}, "what"));
      return [
        h(
          "table",
          {},
          h("thead", {}, head),
          h(
            "tbody",
            {},
            ...groupWarnings(ctx)
              .slice(0, 200)
              .map((line) => row(ctx, line)),
          ),
        ),
      ];
    });
  },
  csv: (ctx) =>
    csvLines([
      ["run", "step", "kind", "quantity", "layer", "message"],
      ...ctx.runs.flatMap(({ run, data }) =>
        data.warnings.map((w) => [run, w.step, w.kind, w.quantity, w.layer, w.message]),
      ),
    ]),
};
export default panel;
