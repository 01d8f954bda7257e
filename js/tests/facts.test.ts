// What the table of one run says.
import { afterEach, expect, it } from "vitest";
import { countDepth, describeHeader, describeNetwork, isDefault } from "../src/judge/facts.ts";
import { differences } from "../src/panels/about.ts";
import { type Cockpit, makeBatch, makeHeader, open } from "./helpers.ts";

let cockpit: Cockpit | null = null;
afterEach(() => {
  cockpit?.destroy();
  cockpit = null;
  document.body.replaceChildren();
});

const layer = (name: string, module: string, ...shape: number[]) => ({
  name,
  shape,
  size: 1,
  module,
  method: "rule",
  reason: "",
});
const block = (i: number) => [
  layer(`h.${i}.ln.weight`, "LayerNorm", 8),
  layer(`h.${i}.ln.bias`, "LayerNorm", 8),
  layer(`h.${i}.fc.weight`, "Linear", 32, 8),
  layer(`h.${i}.fc.bias`, "Linear", 32),
];

it("the network is its modules in order, equal blocks once, and its depth", () => {
  const layers = [
    layer("wte.weight", "Embedding", 86, 8),
    ...block(0),
    ...block(1),
    ...block(2),
    layer("head.weight", "Linear", 86, 8),
  ];
  expect(describeNetwork(layers)).toBe("Embedding 8→86, 3 × (LayerNorm, Linear 8→32), Linear 8→86");
  expect(countDepth(layers)).toBe(5);
});

it("the learning rate is that of the schedule: now and at its highest, not the first of a warm-up", () => {
  const value = (seq: number, name: string) => (name === "LearningRate" ? [1e-4, 0.01, 0.002][Math.min(seq, 2)] : 1);
  cockpit = open([makeBatch({ to: 5, value })]);
  const facts = new Map(differences(cockpit.app.context()).map(([name, [own]]) => [name, own]));
  expect(facts.get("lr")).toBe("0.002 now, highest seen 0.01, 1e−4 at first");
});

it("a constant learning rate is as the header says, and defaults are folded away", () => {
  const header = makeHeader({
    optimizers: [{ name: "SGD", groups: [{ lr: "0.1", momentum: "0", nesterov: "False" }] }],
  });
  cockpit = open([makeBatch({ to: 5, value: () => 0.1, change: { header } })]);
  const [shown, folded] = [...cockpit.card("about").querySelectorAll("tbody")];
  expect(shown.textContent).toContain("lr0.1");
  expect(shown.textContent).not.toContain("nesterov");
  expect([folded.hidden, folded.textContent]).toEqual([true, "momentum0nesterovFalse"]);
  [...cockpit.card("about").querySelectorAll<HTMLButtonElement>(".ck-link")].at(-1)?.click();
  expect(folded.hidden).toBe(false);
  expect(["False", "None", "0", "0.1", "True"].map((value) => isDefault("x", value))).toEqual([
    true,
    true,
    true,
    false,
    false,
  ]);
});

it("another kind of curvature is named with what has it", () => {
  const header = makeHeader();
  header.quantities[0].options = { curvature: "ggn_mc" };
  expect(describeHeader(header).get("curvature")).toBe(`hessian; ${header.quantities[0].name}: ggn_mc`);
});

it("the module tree is shown where the log has one, with its activations", () => {
  const header = makeHeader({ options: { network: "Linear 4→4, Sigmoid, Linear 4→2" } });
  cockpit = open([makeBatch({ to: 5, change: { header } })]);
  const rows = differences(cockpit.app.context());
  expect(rows.filter(([name]) => name === "network")).toEqual([["network", ["Linear 4→4, Sigmoid, Linear 4→2"]]]);
  expect(rows.findIndex(([name]) => name === "network")).toBe(rows.findIndex(([name]) => name === "depth") + 1);
});

it("lists that only diagnoses read are not in the table", () => {
  const options = {
    "fresh weights": "0.weight 2.weight",
    activations: "1 3",
    "linear pairs": "0 2",
    network: "Linear",
  };
  const names = [...describeHeader(makeHeader({ options })).keys()];
  expect(names).toContain("network");
  for (const name of Object.keys(options).slice(0, 3)) expect(names).not.toContain(name);
});
