// The small reader of messages against the library that reads any schema.
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";
import { decode } from "../src/data/protobuf.ts";
import { type Batch, BatchSchema, HistogramSchema } from "../src/gen/cockpit_pb.ts";
import { fields } from "../src/gen/fields.ts";
import { fixture, seeded } from "./helpers.ts";

const snake = (name: string) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);

/** Plain objects of both: the library marks its messages and names fields as JavaScript does; its maps have no prototype. */
function plain(value: unknown): unknown {
  if (value instanceof Uint8Array) return [...value];
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value !== "object" || value === null) return value;
  const entries = Object.entries(value).filter(([key, own]) => !key.startsWith("$") && own !== undefined);
  const name = "$typeName" in value ? snake : String;
  return Object.fromEntries(entries.map(([key, own]) => [name(key), plain(own)]));
}

const oddNumbers = [0, 1, -1, 1e-300, 1e300, Number.NaN, Number.POSITIVE_INFINITY, 0.1];
const oddTexts = ["", "a", "ü…✓", "__proto__", "x".repeat(300), "\u0000"];

function randomBatch(seed: number): Batch {
  const random = seeded(seed);
  const pick = <T>(list: T[]): T => list[Math.floor(random() * list.length)];
  const number = () => pick(oddNumbers);
  const text = () => pick(oddTexts);
  const whole = () => Math.floor(random() * 2 ** pick([3, 8, 16, 32]));
  const some = <T>(make: () => T) => Array.from({ length: Math.floor(random() * 4) }, make);
  const array = () => ({
    dtype: whole() % 7,
    shape: some(whole),
    codec: whole() % 2,
    data: Uint8Array.from(some(() => whole() % 256)),
  });
  const evidence = () => ({
    name: text(),
    value: number(),
    low: number(),
    high: number(),
    step: whole(),
    layer: text(),
  });
  return create(BatchSchema, {
    protocol: whole(),
    run: text(),
    runId: text(),
    replace: random() < 0.5,
    header:
      random() < 0.5
        ? undefined
        : {
            name: text(),
            versions: { torch: text(), [`k${text()}`]: "1" },
            layers: some(() => ({ name: text(), shape: some(whole), size: number() })),
            notes: some(text),
            optimizers: some(() => ({ name: text(), groups: some(() => ({ hyperparameters: { lr: text() } })) })),
          },
    seq: array(),
    columns: some(() => ({
      name: text(),
      layer: text(),
      rows: random() < 0.5 ? undefined : array(),
      values: array(),
      decimated: random() < 0.5,
    })),
    alphas: some(() => ({ step: whole(), alpha: number(), hasAlpha: random() < 0.5, w2: number() })),
    findings: some(() => ({
      name: text(),
      since: whole(),
      layers: some(text),
      evidence: some(evidence),
      retracted: random() < 0.5,
    })),
    notes: some(() => ({
      row: whole(),
      topSamples: some(whole),
      missing: some(() => ({ name: text(), reason: text() })),
    })),
    dropFromStep: number(),
  });
}

describe("the reader of messages", () => {
  it("knows every field that the page reads", () => {
    expect(Object.keys(fields)).toContain("Finding");
    const names = (list: string) => list.split(";").map((row) => row.split(" ")[1]);
    expect(names(fields.Batch).sort()).toEqual(BatchSchema.fields.map((field) => field.name).sort());
    expect(names(fields.Histogram).sort()).toEqual(HistogramSchema.fields.map((field) => field.name).sort());
  });

  it("reads whatever the library writes", () => {
    for (let seed = 1; seed <= 150; seed++) {
      const bytes = toBinary(BatchSchema, randomBatch(seed));
      expect(plain(decode("Batch", bytes)), String(seed)).toEqual(plain(fromBinary(BatchSchema, bytes)));
    }
  });

  it.each(["lenet-sgd", "lenet-sigmoid", "lenet-sgd.thinned"])("reads what Python wrote: %s", (name) => {
    const bytes = fixture(name);
    expect(plain(decode("Batch", bytes))).toEqual(plain(fromBinary(BatchSchema, bytes)));
  });

  it("skips what it does not know, and refuses what is cut off or no message", () => {
    const batch = toBinary(BatchSchema, randomBatch(7));
    const unknown = Uint8Array.from([...batch, 0xf8, 0x07, 0x05, 0xfa, 0x07, 0x02, 1, 2, 0xfd, 0x07, 1, 2, 3, 4]);
    expect(plain(decode("Batch", unknown))).toEqual(plain(decode("Batch", batch)));
    for (let size = 0; size < batch.length; size++) {
      const part = batch.subarray(0, size);
      let expected: unknown = "throws";
      try {
        expected = plain(fromBinary(BatchSchema, part));
      } catch {
        // cut inside a field
      }
      let found: unknown = "throws";
      try {
        found = plain(decode("Batch", part));
      } catch {
        // so does ours
      }
      expect(found, String(size)).toEqual(expected);
    }
    expect(() => decode("Batch", Uint8Array.from([0, 1]))).toThrow();
    expect(() => decode("Batch", new Uint8Array(20).fill(255))).toThrow("no end");
    expect(() => decode("Batch", Uint8Array.from([11]))).toThrow("kind 3");
  });
});
