// The line on top: is it well, and if not, what is wrong, since when, where. A click opens the list of findings.

import type { Context, RunGroup, ShownRun } from "../contract/panel.ts";
import { formatNumber, shorten, shortNames } from "../data/format.ts";
import type { Finding } from "../data/records.ts";
import { h, press, refill, setAttribute, setHidden, swatch } from "../draw/dom.ts";
import { groupRuns } from "../judge/groups.ts";
import { countSick, evidenceWords, type Health, healthOf, sentence, toneRank } from "../judge/health.ts";
import { type Difference, firstDifferences } from "../judge/twin.ts";

export interface HealthHost {
  /** Shows a step and a layer in all panels, and brings the panel of a column into view. */
  reveal(name: string, step: number, layer: string): void;
}

const MOST_TWINS = 12;
const MOST_DIFFERENCES = 5;
const MOST_LINES = 3; // runs with a line of their own
const MOST_LAYERS = 12;
const signs: Record<Health["tone"], string> = { broken: "✖", likely: "▲", advice: "✓", well: "✓", waiting: "…" };
const words: Record<string, string> = { broken: "broken", likely: "likely", advice: "advice" };

interface Row {
  health: Health;
  run: ShownRun | null; // null: a line about all
  text: string;
}

function rowsOf({ runs, names }: Context): Row[] {
  const all = runs.map((run) => ({ run, health: healthOf(run) }));
  if (all.length <= MOST_LINES) return all.map(({ run, health }) => ({ run, health, text: health.text }));
  const worst = all.reduce((a, b) => (toneRank(b.health.tone) < toneRank(a.health.tone) ? b : a));
  const { sick } = countSick(runs);
  const count = sick ? `${sick} of ${runs.length} runs have faults.` : tellWell(all, names.length);
  const text = sick ? `${count} Worst, ${worst.run.label}: ${worst.health.text}` : count;
  return [{ run: null, health: worst.health, text }];
}

/** Nothing is known about runs that are still loading, so they do not count as well. */
function tellWell(all: { health: Health }[], total: number): string {
  const known = all.filter(({ health }) => health.tone !== "waiting").length;
  if (!known) return `Nothing measured yet in ${all.length} runs.`;
  const rest = known < all.length ? `; nothing measured yet in ${all.length - known}` : "";
  return `No faults found in ${known}${total > known ? ` of ${total}` : ""} runs${rest}.`;
}

const known = new WeakMap<ShownRun["data"], { key: string; differences: Difference[] }>();

/** The other settings, each with where its runs leave the reference (and what was made like it). */
function leavings({ runs, groups, state }: Context): (RunGroup & { differences: Difference[] })[] {
  const alike = groups.find((group) => group.runs.some(({ run }) => run === state.reference))?.runs;
  const reference = alike ?? runs.filter(({ run }) => run === state.reference);
  if (!reference.length) return [];
  const others = runs.filter((run) => !reference.some((own) => own.run === run.run));
  return groupRuns(others).map((group) => {
    const [{ data, label }, ...more] = group.runs;
    const own = more.length ? group : { ...group, label };
    const key = JSON.stringify([...reference, ...group.runs].map((run) => [run.run, run.data.version]));
    const cached = known.get(data);
    if (cached?.key === key) return { ...own, differences: cached.differences };
    const differences = firstDifferences(reference, group.runs);
    known.set(data, { key, differences });
    return { ...own, differences };
  });
}

export class HealthLine {
  readonly element: HTMLElement;
  private readonly line = h("div", { class: "ck-healths" });
  private readonly list = h("div", { class: "ck-findings", hidden: true });
  private readonly toggle: HTMLButtonElement;
  private open = false;
  private ctx: Context | null = null;

  constructor(
    private readonly host: HealthHost,
    signal: AbortSignal,
  ) {
    this.toggle = h("button", { type: "button", class: "ck-health", "aria-expanded": "false" }, this.line);
    this.element = h("div", { class: "ck-healthbar", role: "group", "aria-label": "Health" }, this.toggle, this.list);
    this.toggle.addEventListener("click", () => this.show(!this.open), { signal });
    this.element.addEventListener(
      "keydown",
      (event) => {
        if (event.key !== "Escape" || !this.open) return;
        event.stopPropagation();
        this.show(false);
        this.toggle.focus();
      },
      { signal },
    );
  }

  private show(open: boolean): void {
    this.open = open;
    if (this.ctx) this.update(this.ctx);
  }

  update(ctx: Context): void {
    this.ctx = ctx;
    const rows = rowsOf(ctx);
    setHidden(this.element, !rows.length);
    const key = JSON.stringify(rows.map(({ run, health, text }) => [run?.run, run?.color, health.tone, text]));
    refill(this.line, `${ctx.runs.length} ${key}`, () => rows.map((row) => lineNode(row, ctx.runs.length > 1)));
    setAttribute(this.toggle, "aria-expanded", String(this.open));
    setAttribute(
      this.toggle,
      "title",
      this.open ? "Close the list of findings" : "What was found, since when, where, and what to try",
    );
    setHidden(this.list, !this.open);
    if (!this.open) return;
    const content = ctx.runs.map(({ run, data }) => [run, data.version, data.findings.length]);
    refill(this.list, JSON.stringify([ctx.theme.dark, ctx.state.reference, content]), () => this.listNodes(ctx));
  }

  /** Which run is the healthy one, and where the others leave it. */
  private twinNodes(ctx: Context): Node[] {
    if (ctx.runs.length < 2) return [];
    const chips = ctx.runs.slice(0, MOST_TWINS).map(({ run, label, color }) => {
      const pressed = ctx.state.reference === run;
      const act = () => ctx.set({ reference: pressed ? "" : run });
      return press("ck-chip", act, { "aria-pressed": String(pressed) }, swatch(color), label);
    });
    const title = h("p", { class: "ck-tools" }, "Compare with a healthy run: ", ...chips);
    return [title, ...leavings(ctx).map((own) => this.twinNode(own))];
  }

  private twinNode({ label, color, differences }: RunGroup & { differences: Difference[] }): HTMLElement {
    const few = differences.slice(0, MOST_DIFFERENCES).flatMap(({ name, step, other, reference }) => {
      const words = `${name.replace("log/", "")} ${formatNumber(other)} against ${formatNumber(reference)} from step ${formatNumber(step)} on`;
      return [this.go(words, name, step, ""), "; "];
    });
    const weak = differences.some(({ alone }) => alone)
      ? " One run each: seeds of one setting may come apart like this."
      : "";
    const text = few.length
      ? ["first differs from it in ", ...few.slice(0, -1), `.${weak}`]
      : ["does not differ from it by more than seeds do."];
    return h("p", { class: "ck-fine ck-twin" }, swatch(color), h("strong", {}, `${label} `), ...text);
  }

  private listNodes(ctx: Context): Node[] {
    const all = ctx.runs.map((run) => ({ run, health: healthOf(run) }));
    all.sort((a, b) => toneRank(a.health.tone) - toneRank(b.health.tone));
    const nodes = all.flatMap(({ run, health }) => {
      const title = ctx.runs.length > 1 && health.findings.length ? [h("h4", {}, swatch(run.color), run.label)] : [];
      return [...title, ...health.findings.map((finding) => this.findingNode(finding))];
    });
    const twin = this.twinNodes(ctx);
    if (!nodes.length)
      nodes.push(
        h("p", {}, "Nothing was found. Only what was measured can be judged; what was not tracked may still be wrong."),
      );
    return [...twin, ...nodes]; // below a long list nobody sees it
  }

  private go(text: string, name: string, step: number, layer: string): HTMLElement {
    const title = `Show step ${step}${layer ? ` and ${shorten(layer, 60)}` : ""}, and the panel of ${name || "it"}`;
    return press("ck-link", () => this.host.reveal(name, step, layer), { title }, text);
  }

  private findingNode(finding: Finding): HTMLElement {
    const { severity, since, layers, evidence, remedy, confidence } = finding;
    const name = evidence[0]?.name ?? "";
    const short = shortNames(layers.slice(0, MOST_LAYERS), 40);
    const where = layers.slice(0, MOST_LAYERS).map((layer) => this.go(short.get(layer) ?? layer, name, since, layer));
    const more = layers.length > MOST_LAYERS ? ` and ${layers.length - MOST_LAYERS} more` : "";
    const sure = confidence > 0 && confidence < 1 ? `, right in ${Math.round(100 * confidence)} % of our tests` : "";
    return h(
      "div",
      { class: "ck-finding", "data-finding": finding.name, "data-severity": severity },
      h(
        "p",
        {},
        h("strong", { class: `ck-tone-${severity}` }, `${words[severity] ?? shorten(severity, 20)}: `),
        shorten(sentence(finding.text), 600),
      ),
      h(
        "p",
        { class: "ck-fine" },
        "Since ",
        this.go(`step ${formatNumber(since)}`, name, since, layers.length === 1 ? layers[0] : ""),
        sure,
      ),
      layers.length ? h("p", { class: "ck-fine ck-layers" }, "Where: ", ...where, more) : null,
      ...evidence
        .slice(0, 8)
        .map((own) =>
          h(
            "p",
            { class: "ck-fine" },
            this.go(shorten(evidenceWords(own, since), 200), own.name, own.step || since, own.layer),
          ),
        ),
      remedy ? h("p", {}, h("strong", {}, "Try: "), shorten(remedy, 600)) : null,
    );
  }
}

function lineNode({ run, health, text }: Row, several: boolean): HTMLElement {
  return h(
    "span",
    { class: `ck-healthrow ck-tone-${health.tone}`, "data-tone": health.tone, "data-run": run?.run },
    h("span", { class: "ck-sign", "aria-hidden": "true" }, signs[health.tone]),
    several && run ? swatch(run.color) : null,
    several && run ? h("strong", {}, `${run.label}: `) : null,
    h("span", { class: "ck-healthtext" }, shorten(text, 400)),
  );
}
