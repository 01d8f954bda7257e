// What has no value: little room while it may still come, one list with the reasons when it will not.
import { afterEach, describe, expect, it } from "vitest";
import type { Batch, RunStatus } from "../src/data/records.ts";
import { type Cockpit, makeBatch, makeHeader, open } from "./helpers.ts";

let cockpit: Cockpit | null = null;
afterEach(() => {
  cockpit?.destroy();
  cockpit = null;
  document.body.replaceChildren();
});

const missing = [{ seq: 2, name: "HessTrace", reason: "the network has a layer without second derivatives" }];
const start = (state: string, names: string[], change: Partial<Batch> = {}, options: Record<string, string> = {}) => {
  const batch = makeBatch({ to: 5, names, layers: [], change: { alphas: [], heavy: [], missing, ...change } });
  cockpit = open([{ ...batch, header: makeHeader({ options }), status: { ...(batch.status as RunStatus), state } }]);
  cockpit.app.draw();
  return cockpit;
};
const finished = (batch: Batch): Batch => ({ ...batch, status: { ...(batch.status as RunStatus), state: "finished" } });
const ids = (own: Cockpit) =>
  [...own.element.querySelectorAll<HTMLElement>("[data-panel]")].map((card) => card.dataset.panel);
const height = (own: Cockpit, id: string) => own.card(id).querySelector<HTMLElement>(".ck-chart")?.style.minHeight;

describe("a panel without a value", () => {
  it("is low while the run goes on, and grows with the first value", () => {
    const own = start("running", ["Loss"]);
    expect(height(own, "alpha")).toBe("44px");
    expect(own.card("alpha").textContent).toContain("Waiting for the first Alpha");
    expect(ids(own)).not.toContain("unmeasured");
    own.store.merge(makeBatch({ from: 5, to: 8, names: ["Loss"], layers: [] }));
    own.app.draw();
    expect(Number.parseInt(height(own, "alpha") ?? "", 10)).toBeGreaterThan(200);
    expect(height(own, "mean_gsnr")).toBe("44px");
  });

  it("is a line of one list when the run is over, with the reason, and is not in the View menu", () => {
    const own = start("finished", ["Loss"]);
    for (const id of ["alpha", "hess_trace", "grad_hist_2d", "grad_hist_layers", "gradient_tests"])
      expect(ids(own)).not.toContain(id);
    const rows = [...own.card("unmeasured").querySelectorAll("tr")].map((row) =>
      [...row.children].map(({ textContent }) => textContent),
    );
    expect(rows).toContainEqual(["Hessian trace", "The network has a layer without second derivatives."]);
    const rest = rows.find(([what]) => what?.includes("Alpha")) ?? [];
    expect(rest[0]).toContain("Gradient × parameter");
    expect(rest[1]).toBe("The run ended before the first one was due.");
    const titles = own.app.panelTitles().map(({ title }) => title);
    expect(titles).toContain("Not measured");
    expect(titles).not.toContain("Alpha");
  });

  it("names the budget that left no time for it", () => {
    const own = start("finished", ["Loss"], {}, { budget: "0.1" });
    expect(own.card("unmeasured").textContent).toContain("tracking kept to 10 % of the time");
  });

  it("is shown where one of several runs has a value", () => {
    const own = start("finished", ["Loss"]);
    own.store.merge(finished(makeBatch({ run: "b", run_id: "2", to: 5 })));
    own.app.draw();
    expect(ids(own)).toContain("alpha");
    expect(ids(own)).not.toContain("unmeasured");
  });
});

it("every instrument has a title in words, not the name of its class", () => {
  const names = ["ActivationScale", "AttentionEntropy", "EffectiveRank", "EpsilonShare", "LayerProgress", "SpikeScore"];
  const more = ["UpdateRatio", "UpdateRatio/angle", "ActivationScale/largest", "AttentionEntropy/largest_logit"];
  const rest = [
    "EpsilonShare/rms",
    "SpikeScore/share",
    "EffectiveRank/largest",
    "DeadUnits",
    "Saturation",
    "Coherence",
  ];
  const own = start("running", ["Loss", ...names, ...more, ...rest]);
  expect(ids(own).filter((id) => id?.startsWith("other:"))).toEqual(["other:Custom"]); // of the user
  expect(ids(own)).toContain("update_ratio"); // as measured, where the two lengths were not tracked
  expect(own.card("update_ratio").textContent).toContain("A step turns the weights by");
});

it("a run that is the folder itself is called as it was made, not by a dot", () => {
  cockpit = open([{ ...makeBatch({ run: ".", to: 5 }), header: makeHeader({ name: "digits" }) }]);
  cockpit.app.draw();
  expect(cockpit.text(".ck-runs")).toContain("digits");
});
