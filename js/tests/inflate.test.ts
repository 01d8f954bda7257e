// The small reader of compressed bytes against zlib itself.
import { constants, deflateSync } from "node:zlib";
import { describe, expect, it } from "vitest";
import { inflate } from "../src/data/inflate.ts";
import { seeded } from "./helpers.ts";

const random = seeded(11);
const noise = Uint8Array.from({ length: 70_000 }, () => random() * 256);
const counts = new Uint8Array(
  Uint32Array.from({ length: 160 }, (_, i) => 5000 * Math.exp(-(((i - 80) / 20) ** 2))).buffer,
);
const words = new TextEncoder().encode(Array.from({ length: 9000 }, (_, i) => `row ${(i * 7919) % 977};`).join(""));
const samples: [string, Uint8Array][] = [
  ["nothing", new Uint8Array(0)],
  ["one byte", Uint8Array.of(7)],
  ["zeros", new Uint8Array(300_000)],
  ["noise", noise],
  ["counts", counts],
  ["words", words],
];
const pack = (raw: Uint8Array, options: object) => new Uint8Array(deflateSync(raw, options));
const strategies = [constants.Z_DEFAULT_STRATEGY, constants.Z_FIXED, constants.Z_HUFFMAN_ONLY, constants.Z_RLE];

describe("the reader of compressed bytes", () => {
  it.each(samples)("reads what zlib writes, at every level and by every strategy: %s", (_, raw) => {
    for (const strategy of strategies)
      for (let level = 0; level <= 9; level++)
        expect(Buffer.compare(inflate(pack(raw, { level, strategy }), raw.length), raw)).toBe(0);
  });

  it("takes no more than was declared", () => {
    for (const [, raw] of samples.slice(1))
      for (const level of [0, 6]) expect(() => inflate(pack(raw, { level }), raw.length - 1)).toThrow("damaged");
    expect(inflate(pack(counts, {}), counts.length + 5)).toHaveLength(counts.length);
  });

  it("refuses what is cut off, and ends whatever the bytes are", () => {
    for (const options of [{ level: 0 }, { level: 9 }, { strategy: constants.Z_FIXED }]) {
      const packed = pack(counts, options);
      for (let size = 0; size < packed.length - 4; size++)
        expect(() => inflate(packed.subarray(0, size), counts.length), String(size)).toThrow();
      for (let trial = 0; trial < 3000; trial++) {
        const broken = packed.slice();
        for (let i = 0; i < 3; i++) broken[2 + Math.floor(random() * (broken.length - 2))] = random() * 256;
        try {
          expect(inflate(broken, counts.length).length).toBeLessThanOrEqual(counts.length);
        } catch (error) {
          expect(String(error)).toContain("damaged");
        }
      }
    }
    for (const bytes of [[], [0x78], [0x78, 0x9c], [1, 2, 3, 4, 5, 6], [0x78, 0xbb, 1, 2, 3, 4, 5]])
      expect(() => inflate(Uint8Array.from(bytes), 100)).toThrow("damaged");
  });
});
