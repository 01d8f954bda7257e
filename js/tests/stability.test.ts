import { expect, test } from "vitest";
import type { ShownRun } from "../src/contract/panel.ts";
import { stabilityFactor } from "../src/judge/stability.ts";
import { makeHeader } from "./helpers.ts";

const run = (name: string, ...groups: Record<string, string>[]) =>
  ({ data: { header: makeHeader({ optimizers: [{ name, groups }] }) } }) as unknown as ShownRun;

test("plain gradient descent grows beyond 2 / learning rate", () => {
  expect(stabilityFactor(run("SGD", { lr: "0.1" }))).toBe(2);
  expect(stabilityFactor(run("SGD", { lr: "0.1", momentum: "0" }))).toBe(2);
});

test("heavy-ball momentum widens the limit", () => {
  expect(stabilityFactor(run("SGD", { lr: "0.1", momentum: "0.9", nesterov: "False", dampening: "0" }))).toBe(3.8);
});

test("where the limit is another or none, nothing is drawn", () => {
  expect(stabilityFactor(run("Adam", { lr: "0.1" }))).toBeNull();
  expect(stabilityFactor(run("SGD", { lr: "0.1", momentum: "0.9", nesterov: "True" }))).toBeNull();
  expect(stabilityFactor(run("SGD", { lr: "0.1", momentum: "0.9", dampening: "0.1" }))).toBeNull();
  expect(stabilityFactor(run("SGD", { lr: "0.1" }, { lr: "0.2" }))).toBeNull();
});
