// Everything that was recorded as worth a look. A click goes to its step and layer.

import { csvLines } from "../contract/export.ts";
import type { Context, Panel } from "../contract/panel.ts";
import { formatNumber, shorten, shortNames } from "../data/format.ts";
import type { Notice } from "../data/records.ts";
import { h, press, refill, swatch } from "../draw/dom.ts";
import { countWords, groupWarnings, isHint, type Line } from "../judge/notices.ts";

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
const MOST_LAYERS = 12;

function goButton(ctx: Context, { step, layer }: Notice, className: string, ...content: (Node | string)[]) {
  const where = layer ? ` and ${shorten(layer, 60)}` : "";
  const title = `Show step ${step}${where} in all panels`;
  return press(className, () => ctx.goTo(step, layer), { title }, ...content);
}

/** With several layers each of them can be gone to. */
function layerButtons(ctx: Context, layers: Map<string, Notice>): Node[] {
  const names = shortNames([...layers.keys()], 30);
  const few = [...layers].slice(0, MOST_LAYERS);
  const buttons = few.map(([layer, notice]) => goButton(ctx, notice, "ck-link", names.get(layer) || "whole network"));
  const rest = layers.size - few.length;
  return rest > 0 ? [...buttons, h("span", {}, `and ${rest} more`)] : buttons;
}

const others = (names: Set<string>) =>
  names.size > 1 ? `, then ${names.size - 1} other ${names.size === 2 ? "quantity" : "quantities"}` : "";

function row(ctx: Context, { run, notice, count, layers, names }: Line): HTMLElement {
  const kind = h(
    "span",
    { class: isHint(notice) ? "ck-kind ck-hint" : "ck-kind" },
    Object.hasOwn(words, notice.kind) ? words[notice.kind] : shorten(notice.kind, 24),
  );
  const single = layers.size === 1 ? notice.layer : "";
  const where = [notice.quantity, single].filter(Boolean).map((name) => ` · ${shorten(name, 40)}`);
  const what = h(
    "span",
    {},
    ctx.runs.length > 1 && swatch(run.color),
    kind,
    ...where,
    count > 1 ? ` (${count} times)` : "",
  );
  const go = goButton(ctx, notice, "ck-go", what, h("br"), shorten(notice.message, 300) + others(names));
  const more = layers.size > 1 ? h("div", { class: "ck-layers" }, ...layerButtons(ctx, layers)) : null;
  return h("tr", {}, h("td", { class: "ck-n" }, formatNumber(notice.step)), h("td", {}, go, more));
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
    "Everything worth a look: errors inside a quantity (training went on), values that are not finite, more than 1 % of the elements outside a histogram's range, layers without any gradient, and what was left out.",
    "Hints only ask for a better setting, such as a wider range, or tell what tracking did. They are no reason for alarm.",
    "A click shows that step, and that layer, in all panels. The triangles above the scrubber mark the same warnings; hints are grey.",
  ],
  shows: (ctx) => ctx.runs.some(({ data }) => data.warnings.length > 0),
  readings: (ctx) => [{ label: "recorded", value: total(ctx), text: countWords(groupWarnings(ctx)).text }],
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
