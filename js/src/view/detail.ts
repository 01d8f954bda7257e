// A long run arrives thinned. Zooming in fetches that stretch again, finer; nothing is fetched twice.
import type { Context, ShownRun } from "../contract/panel.ts";
import type { Source } from "../data/source.ts";
import type { RunStore } from "../data/store.ts";
import { lowerBound } from "../data/table.ts";

export const TILE_POINTS = 1024; // per column and tile; one to three tiles fill the screen
const PATIENCE = 120; // ms: while the user zooms on, most stretches are outdated before they could arrive
const MAX_PARALLEL = 2;

export interface Tile {
  from: number; // records, the end excluded
  to: number;
}

/** The records that can be seen, by number, one more on either side. */
export function visibleRecords(ctx: Context, { data }: ShownRun): Tile | null {
  const { rows } = data;
  if (!rows.n) return null;
  const xs = data.axis(ctx.axis);
  const first = Math.max(0, lowerBound(xs, rows.n, ctx.domain[0]) - 1);
  const last = Math.min(rows.n - 1, Math.max(first, lowerBound(xs, rows.n, ctx.domain[1])));
  return { from: rows.seq[first], to: rows.seq[last] + 1 };
}

/** Tiles of one size, a power of two of at least TILE_POINTS, that hold the visible records: at most three. */
export function tilesOf({ from, to }: Tile): Tile[] {
  let size = TILE_POINTS;
  while (2 * size < to - from) size *= 2;
  const tiles: Tile[] = [];
  for (let at = Math.floor(from / size) * size; at < to; at += size) tiles.push({ from: at, to: at + size });
  return tiles;
}

/** How many of the visible records the fullest curve has: [drawn, there are]. */
export function drawnRecords(ctx: Context, run: ShownRun): [number, number] {
  const seen = visibleRecords(ctx, run);
  if (!seen) return [0, 0];
  let most = 0;
  for (const layers of run.data.columns.values())
    for (const { seq, n } of layers.values())
      most = Math.max(most, lowerBound(seq, n, seen.to) - lowerBound(seq, n, seen.from));
  return [most, seen.to - seen.from];
}

export class DetailFetcher {
  private asked = new WeakMap<RunStore, { tiles: Set<string>; thinnings: number }>();
  private active = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private ctx: Context | null = null;

  constructor(private readonly source: Source) {}

  /** After each picture: what is seen now may be worth a closer look soon. */
  look(ctx: Context): void {
    this.ctx = ctx;
    if (!this.source.detail || !ctx.state.zoom || this.timer !== undefined || !this.wishes(ctx).length) return;
    this.timer = setTimeout(() => {
      this.timer = undefined;
      this.grant();
    }, PATIENCE);
  }

  private wishes(ctx: Context): { run: ShownRun; tile: Tile }[] {
    return ctx.runs.flatMap((run) => {
      const seen = run.data.decimated.size ? visibleRecords(ctx, run) : null;
      const tiles = seen ? tilesOf(seen) : [];
      const asked = this.askedOf(run.data);
      const coarse = tiles.length && 2 * (tiles[0].to - tiles[0].from) > run.data.to_seq; // the first picture is as fine
      return coarse ? [] : tiles.filter(({ from, to }) => !asked.has(`${from} ${to}`)).map((tile) => ({ run, tile }));
    });
  }

  private askedOf(data: RunStore): Set<string> {
    let asked = this.asked.get(data);
    if (asked?.thinnings !== data.thinnings) {
      asked = { tiles: new Set(), thinnings: data.thinnings };
      this.asked.set(data, asked);
    }
    return asked.tiles;
  }

  private grant(): void {
    if (!this.ctx) return;
    for (const { run, tile } of this.wishes(this.ctx)) {
      if (this.active >= MAX_PARALLEL) return;
      this.fetch(run, tile);
    }
  }

  private fetch(run: ShownRun, tile: Tile): void {
    const key = `${tile.from} ${tile.to}`;
    const asked = this.askedOf(run.data);
    asked.add(key);
    this.active++;
    this.source.detail?.(run.run, tile.from, tile.to, TILE_POINTS).then(
      () => {
        this.active--;
        this.grant();
      },
      () => {
        this.active--;
        asked.delete(key); // the next picture asks again
      },
    );
  }

  stop(): void {
    clearTimeout(this.timer);
    this.ctx = null;
  }
}
