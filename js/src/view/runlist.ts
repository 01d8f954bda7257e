// The list behind "+ n more": filter, choose, all, none.

import { chooseRuns, matchesFilter } from "../contract/choosing.ts";
import { shorten } from "../data/format.ts";
import { h, press } from "../draw/dom.ts";
import type { BarHost } from "./bar_host.ts";

export function runList(host: BarHost, signal: AbortSignal): Node[] {
  const list = h("div", { class: "ck-list" });
  const fill = () => {
    const chosen = new Set(chooseRuns(host.names, host.state));
    const visible = host.names.filter((name) => matchesFilter(name, host.state.filter));
    const row = (name: string) => {
      const box = h("input", { type: "checkbox" });
      box.checked = chosen.has(name);
      box.addEventListener("change", () => {
        const now = new Set(chooseRuns(host.names, host.state));
        if (box.checked) now.add(name);
        else now.delete(name);
        host.set({ runs: host.names.filter((own) => now.has(own)) });
      });
      const only = press("ck-link", () => choose([name]), { "aria-label": `only ${shorten(name)}` }, "only");
      return h(
        "div",
        { class: "ck-listrow" },
        h("label", { class: "ck-check", title: name.slice(0, 400) }, box, shorten(name, 44)),
        only,
      );
    };
    list.replaceChildren(...visible.slice(0, 500).map(row));
    if (!visible.length) list.append("No run matches.");
  };
  const filter = h("input", {
    type: "search",
    class: "ck-input",
    placeholder: "Filter runs (regex)",
    "aria-label": "Filter runs",
  });
  filter.value = host.state.filter;
  filter.addEventListener(
    "input",
    () => {
      host.set({ filter: filter.value });
      fill();
    },
    { signal },
  );
  const choose = (runs: string[]) => {
    host.set({ runs });
    fill();
  };
  const filtered = () => host.names.filter((name) => matchesFilter(name, host.state.filter));
  fill();
  return [
    filter,
    h(
      "div",
      { class: "ck-buttons" },
      press("ck-chip", () => choose(filtered()), {}, "All"),
      press("ck-chip", () => choose([]), {}, "None"),
    ),
    list,
  ];
}
