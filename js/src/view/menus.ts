// The drop-down parts of the bar: how things are shown, and what can be saved.

import { defaults, type UiState } from "../contract/state.ts";
import { shorten } from "../data/format.ts";
import { h, popover } from "../draw/dom.ts";
import type { BarHost } from "./bar_host.ts";

export function select(
  label: string,
  choices: [string, string][],
  act: (value: string) => void,
  signal: AbortSignal,
): HTMLSelectElement {
  const element = h(
    "select",
    { class: "ck-select", "aria-label": label, title: label },
    ...choices.map(([value, text]) => h("option", { value }, text)),
  );
  element.addEventListener("change", () => act(element.value), { signal });
  return element;
}

export function button(text: string, label: string, act: () => void, signal?: AbortSignal): HTMLButtonElement {
  const element = h("button", { type: "button", class: "ck-chip", title: label, "aria-label": label }, text);
  element.addEventListener("click", act, { signal });
  return element;
}

export function viewMenu(host: BarHost, signal: AbortSignal): HTMLElement {
  const view = h("button", { type: "button", class: "ck-chip" }, "View ▾");
  const check = (text: string, on: boolean, act: (on: boolean) => void) => {
    const box = h("input", { type: "checkbox" });
    box.checked = on;
    box.addEventListener("change", () => act(box.checked));
    return h("label", { class: "ck-check" }, box, text);
  };
  const items = () => {
    const { state } = host;
    const theme = select(
      "Theme",
      [
        ["auto", "theme: as the page"],
        ["light", "theme: light"],
        ["dark", "theme: dark"],
      ],
      (value) => host.set({ theme: value as UiState["theme"] }),
      signal,
    );
    theme.value = state.theme;
    const recent = select(
      "Alpha: recent part",
      [0.05, 0.1, 0.25, 0.5].map((part) => [String(part), `alpha: last ${part * 100} %`]),
      (value) => host.set({ recent: Number(value) }),
      signal,
    );
    recent.value = String(state.recent);
    const toggle = (id: string, aside: boolean) => (on: boolean) => {
      const [hidden, wanted] = [host.state.hidden, host.state.shown].map((ids) => ids.filter((own) => own !== id));
      host.set({ hidden: on ? hidden : [...hidden, id], shown: on && aside ? [...wanted, id] : wanted });
    };
    return [
      h("h4", {}, "View"),
      theme,
      recent,
      check("colour-blind safe run colours", state.safe, (safe) => host.set({ safe })),
      h("h4", {}, "Panels"),
      ...host.panelTitles().map(({ id, title, shown, aside }) => check(shorten(title, 34), shown, toggle(id, aside))),
      button("Reset arrangement", "Put all panels back in their places", () =>
        host.set({ order: defaults.order, hidden: [], shown: [], enlarged: "", split: {}, ylog: {} }),
      ),
    ];
  };
  return popover(view, items, signal, { label: "View", className: "ck-menu ck-right" });
}

export function exportMenu(host: BarHost, signal: AbortSignal): HTMLElement {
  const open = h("button", { type: "button", class: "ck-chip" }, "Export ▾");
  const items = () => [
    h("p", {}, "Each panel saves PNG, SVG and CSV from its own ⋯ menu."),
    button("All values as CSV", "Every loaded value of the chosen runs", () => host.exportAll()),
  ];
  return popover(open, items, signal, { label: "Export", className: "ck-menu ck-right" });
}
