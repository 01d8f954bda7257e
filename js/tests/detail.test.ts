import { afterEach, describe, expect, it, vi } from "vitest";
import type { Batch } from "../src/data/wire.ts";
import { drawnRecords, tilesOf, visibleRecords } from "../src/view/detail.ts";
import { type Cockpit, makeBatch, open } from "./helpers.ts";

let cockpit: Cockpit | null = null;
afterEach(() => {
  cockpit?.destroy();
  cockpit = null;
  document.body.replaceChildren();
  vi.useRealTimers();
});

/** Every `stride`-th of the records [from, to), as a server sends a long run. */
function thinned(from: number, to: number, stride: number): Batch {
  const whole = makeBatch({ from, to, names: ["Loss"], layers: [], change: { alphas: [], top_samples: [] } });
  const keep = (_: unknown, i: number) => i % stride === 0 || i === to - from - 1;
  const [seq, step, time, wall_time] = [whole.seq, whole.step, whole.time, whole.wall_time].map((own) =>
    own.filter(keep),
  );
  const columns = whole.columns.map((own) => ({ ...own, seq, values: own.values.filter(keep), decimated: true }));
  const rows = { seq, step, time, wall_time, epoch: null, columns } as Partial<Batch>;
  return { ...whole, ...rows, alphas: [], top_samples: [], replace: from === 0 };
}

const COUNT = 100_000;
type Asked = [string, number, number, number];

function begin(): { own: Cockpit; asked: Asked[] } {
  vi.useFakeTimers();
  const own = open([thinned(0, COUNT, 50)], { panels: ["loss"] });
  const asked: Asked[] = [];
  own.source.detail = async (...query: Asked) => {
    asked.push(query);
    own.store.merge({ ...thinned(query[1], Math.min(query[2], COUNT), Math.max(1, (query[2] - query[1]) / query[3])) });
  };
  cockpit = own;
  return { own, asked };
}

describe("tiles", () => {
  it("are of one size, a power of two, and hold what is seen", () => {
    expect(tilesOf({ from: 5000, to: 5100 })).toEqual([{ from: 4096, to: 5120 }]);
    expect(tilesOf({ from: 1000, to: 3000 })).toEqual([
      { from: 0, to: 1024 },
      { from: 1024, to: 2048 },
      { from: 2048, to: 3072 },
    ]);
    for (const from of [0, 17, 12_345, 99_999])
      for (const width of [1, 1024, 2048, 2049, 50_000]) {
        const tiles = tilesOf({ from, to: from + width });
        expect(tiles.length).toBeLessThanOrEqual(3);
        expect(tiles[0].from).toBeLessThanOrEqual(from);
        expect(tiles.at(-1)?.to).toBeGreaterThanOrEqual(from + width);
      }
  });
});

describe("zooming into a thinned run", () => {
  it("fetches the stretch once, finer, and says how much of it is drawn", async () => {
    const { own, asked } = begin();
    expect(own.text(".ck-status")).toContain("2,001 of 100,000 records drawn");
    own.app.zoom([50_000, 50_500]);
    own.app.draw();
    expect(own.text(".ck-status")).toMatch(/1[0-9] of [0-9]{3} records drawn/);
    await vi.advanceTimersByTimeAsync(500);
    expect(asked).toEqual([
      ["a", 49_152, 50_176, 1024],
      ["a", 50_176, 51_200, 1024],
    ]);
    own.app.draw();
    expect(own.text(".ck-status")).not.toContain("records drawn");
    const loss = own.store.runs.get("a")?.series("Loss", "", "step");
    expect(loss?.at(50_123)).toMatchObject({ step: 50_123, value: 1 + Math.sin(50_123 / 7) ** 2 });
    own.app.zoom([50_100, 50_300]);
    own.app.draw();
    await vi.advanceTimersByTimeAsync(500);
    expect(asked).toHaveLength(2);
  });

  it("asks for nothing while everything is seen, nor for every frame of a gesture", async () => {
    const { own, asked } = begin();
    await vi.advanceTimersByTimeAsync(1000);
    own.app.zoom([10, 90_000]); // hardly closer: the first picture is as fine
    own.app.draw();
    await vi.advanceTimersByTimeAsync(1000);
    expect(asked).toEqual([]);
    for (let i = 0; i < 30; i++) {
      own.app.zoom([20_000 + 100 * i, 21_000 + 100 * i]);
      own.app.draw();
    }
    await vi.advanceTimersByTimeAsync(500);
    expect(asked.length).toBeLessThanOrEqual(3);
  });

  it("asks a host that pushes only after the user did something", async () => {
    const { own, asked } = begin();
    Object.assign(own.source, { pushes: true });
    own.app.zoom([50_000, 50_500]); // as a re-run cell remembers it
    own.app.draw();
    await vi.advanceTimersByTimeAsync(500);
    expect(asked).toEqual([]);
    own.app.root.dispatchEvent(new KeyboardEvent("keydown", { key: "Shift", bubbles: true }));
    own.app.draw();
    await vi.advanceTimersByTimeAsync(500);
    expect(asked.length).toBeGreaterThan(0);
  });

  it("tries again after a failure", async () => {
    const { own, asked } = begin();
    const works = own.source.detail;
    own.source.detail = async () => {
      throw new Error("no connection");
    };
    own.app.zoom([50_000, 50_100]);
    own.app.draw();
    await vi.advanceTimersByTimeAsync(200);
    own.source.detail = works;
    own.app.draw();
    await vi.advanceTimersByTimeAsync(500);
    expect(asked.length).toBeGreaterThan(0);
  });

  it("counts by the fullest curve", () => {
    const { own } = begin();
    const ctx = own.app.context();
    expect(visibleRecords(ctx, ctx.runs[0])).toEqual({ from: 0, to: COUNT });
    expect(drawnRecords(ctx, ctx.runs[0])).toEqual([2001, COUNT]);
  });
});
