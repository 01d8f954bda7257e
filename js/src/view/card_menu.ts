// The entries of a card's own menu.

import { exportCsv, exportPng, exportSvg, fileTitle } from "../contract/export.ts";
import type { Context, Panel } from "../contract/panel.ts";
import { press } from "../draw/dom.ts";
import type { Scene } from "../draw/scene.ts";
import type { CardHost } from "./card_host.ts";

export function cardMenu(
  panel: Panel,
  host: CardHost,
  ctx: Context,
  picture: () => Scene,
  root: HTMLElement | null,
): Node[] {
  const item = (label: string, act: () => void, pressed?: boolean) => {
    const choose = () => {
      root?.dispatchEvent(new CustomEvent("ck-close"));
      act();
    };
    return press("ck-item", choose, { "aria-pressed": pressed === undefined ? null : String(pressed) }, label);
  };
  const { state } = ctx;
  const big = state.enlarged === panel.id;
  const items: Node[] = [item(big ? "Back to normal size" : "Enlarge", () => host.enlarge(panel.id))];
  if (panel.canSplit)
    items.push(
      item(
        "One line per layer",
        () => ctx.set({ split: { ...state.split, [panel.id]: !state.split[panel.id] } }),
        Boolean(state.split[panel.id]),
      ),
    );
  if (panel.draw && !panel.timeless) {
    items.push(
      item("Log y axis", () => ctx.set({ ylog: { ...state.ylog, [panel.id]: true } }), state.ylog[panel.id] === true),
    );
    items.push(
      item(
        "Linear y axis",
        () => ctx.set({ ylog: { ...state.ylog, [panel.id]: false } }),
        state.ylog[panel.id] === false,
      ),
    );
  }
  for (const action of panel.actions?.(ctx) ?? []) items.push(item(action.label, action.act, action.pressed));
  for (const direction of ["up", "down", "left", "right"] as const)
    items.push(item(`Move ${direction}`, () => host.nudge(panel.id, direction)));
  items.push(item("Hide", () => host.hide(panel.id)));
  items.push(item("Save as PNG", () => exportPng(picture(), panel.title, ctx)));
  items.push(item("Save as SVG", () => exportSvg(picture(), panel.title, ctx)));
  items.push(item("Save as CSV", () => exportCsv(panel.csv(ctx), fileTitle(panel.title, ctx))));
  return items;
}
