// Panels that stand aside: there for whoever looks for them, and where a finding points at what they show.
import { afterEach, describe, expect, it } from "vitest";
import type { Batch, Finding } from "../src/data/wire.ts";
import { type Cockpit, makeBatch, open } from "./helpers.ts";

let cockpit: Cockpit | null = null;
afterEach(() => {
  cockpit?.destroy();
  cockpit = null;
  document.body.replaceChildren();
});

const finding = (name: string): Finding => ({
  ...{ name: "inputs_not_scaled", severity: "likely", text: "The inputs are not scaled.", since: 3, layers: [] },
  evidence: [{ name, value: 120, low: 0, high: 10, unit: "", step: 3, layer: "", text: "" }],
  ...{ remedy: "", confidence: 1, explains: [], retracted: false, step: 3 },
});
const start = (change: Partial<Batch> = {}) => {
  cockpit = open([makeBatch({ to: 20, names: ["Loss", "signal/input_rms", "signal/dead"], layers: [], change })]);
  return cockpit;
};
const box = (own: Cockpit, title: string) => {
  const view = [...own.element.querySelectorAll<HTMLButtonElement>(".ck-bar button")].find(
    ({ textContent }) => textContent === "View ▾",
  );
  view?.click();
  const label = [...own.element.querySelectorAll(".ck-check")].find(({ textContent }) => textContent === title);
  return label?.querySelector("input") as HTMLInputElement;
};

describe("a panel that stands aside", () => {
  it("is not in the page, but in the View menu, and comes and goes from there", () => {
    const own = start();
    expect(own.card("signal_inputs")).toBeNull();
    for (const wanted of [true, false]) {
      const check = box(own, "Inputs");
      expect(check.checked).toBe(!wanted);
      check.checked = wanted;
      check.dispatchEvent(new Event("change"));
      own.app.draw();
      expect(own.card("signal_inputs") !== null).toBe(wanted);
      box(own, "Inputs"); // closes the menu
    }
    expect(own.app.state).toMatchObject({ shown: [], hidden: ["signal_inputs"] });
  });

  it("is there where a finding rests on what it shows, and the finding leads to it", () => {
    const own = start({ findings: [finding("input_rms")] });
    expect(own.card("signal_inputs")).not.toBeNull();
    expect(own.card("signal_activations")).toBeNull();
    own.element.querySelector<HTMLButtonElement>(".ck-health")?.click();
    const link = [...own.element.querySelectorAll<HTMLButtonElement>(".ck-finding .ck-link")].find(({ textContent }) =>
      textContent?.startsWith("input_rms"),
    );
    link?.click();
    expect(document.activeElement?.closest("[data-panel]")?.getAttribute("data-panel")).toBe("signal_inputs");
    expect(own.app.state.step).toBe(3);
  });
});
