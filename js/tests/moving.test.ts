// A hand that moves along the axis: only what shows the axis is drawn again, and the picture is the one of a fresh page.
import { describe, expect, it, vi } from "vitest";
import type { Context, Panel } from "../src/contract/panel.ts";
import { defaults } from "../src/contract/state.ts";
import { endsOf } from "../src/judge/metrics.ts";
import { makePicture } from "../src/panels/_layer_rows.ts";
import { panels } from "../src/panels/index.ts";
import { type Cockpit, makeBatch, opener } from "./helpers.ts";

const show = opener();
const panel = (id: string) => panels.find((own) => own.id === id) as Required<Panel>;
const runs = (to = 60) => ["a", "b", "c"].map((run, i) => makeBatch({ run, to, value: (seq) => 1 + i + (seq % 7) }));
const pictures = ({ app }: Cockpit) =>
  panels.flatMap(({ id }) => {
    const card = app.card(id);
    return card ? [[id, card.scene.marks, card.scene.legend, card.element.textContent]] : [];
  });

describe("moving along the axis", () => {
  it("draws again only what shows it, without judging again", () => {
    const own = show(runs());
    const spies = ["loss", "layer_map", "grad_hist_2d"].map((id) => vi.spyOn(panel(id), "draw"));
    const readings = vi.spyOn(panel("grad_norm"), "readings");
    const verdict = vi.spyOn(panel("alpha"), "verdict");
    const counts = () => spies.map((spy) => spy.mock.calls.length);
    own.app.zoom([10, 20]);
    own.app.draw();
    expect(counts()).toEqual([1, 1, 0]);
    own.app.pan(0.5);
    own.app.draw();
    expect(counts()).toEqual([2, 2, 0]);
    expect([readings, verdict].map((spy) => spy.mock.calls.length)).toEqual([0, 0]);
    own.app.set({ step: 12 });
    own.app.draw();
    expect(counts()).toEqual([3, 3, 1]);
    expect([readings, verdict].every((spy) => spy.mock.calls.length > 0)).toBe(true);
    vi.restoreAllMocks();
  });

  it("leaves the picture of a page that was opened there", () => {
    const moved = show(runs());
    for (const zoom of [
      [5, 30],
      [8, 33],
      [12, 37],
    ] as [number, number][]) {
      moved.app.zoom(zoom);
      moved.app.draw();
    }
    const after = pictures(moved);
    const fresh = pictures(show(runs(), { state: { ...defaults, zoom: [12, 37] } }));
    expect(after.length).toBeGreaterThan(15);
    expect(after).toEqual(fresh);
    moved.destroy();
  });

  it("is right again when something else changes in the same frame", () => {
    const moved = show(runs());
    moved.app.set({ step: 20 });
    moved.app.zoom([12, 37]);
    moved.app.draw();
    const fresh = pictures(show(runs(), { state: { ...defaults, step: 20, zoom: [12, 37] } }));
    expect(pictures(moved)).toEqual(fresh);
    moved.destroy();
  });

  it("forgets no histogram that was asked for at this step", async () => {
    vi.useFakeTimers();
    const own = show(runs());
    const asked = () =>
      own.source.asked.filter(([what, , name]) => what === "histogram" && name === "GradHist2d").length;
    for (const data of own.store.runs.values()) data.heavy.set("GradHist2d", Uint32Array.of(30));
    own.app.set({ step: 30 });
    own.app.draw(); // asks, after a pause
    own.app.zoom([12, 37]);
    own.app.draw();
    await vi.advanceTimersByTimeAsync(200);
    expect(asked()).toBeGreaterThan(0);
  });

  it("is nothing that numbers and sentences look at", () => {
    const { app } = show(runs());
    const ctx: Context = Object.defineProperty({ ...app.context() }, "domain", {
      get: () => {
        throw new Error("asked for the part in sight");
      },
    });
    for (const own of panels) {
      own.readings(ctx);
      own.note?.(ctx);
      for (const run of ctx.runs) own.verdict?.(ctx, run);
    }
  });
});

describe("the map while more arrives", () => {
  const opened = () => {
    const own = show([makeBatch({ to: 40 })]);
    return { own, picture: () => makePicture(own.app.context(), 200)?.values as NonNullable<unknown>[] };
  };

  it("is worked out again for its own columns, not for others", () => {
    const { own, picture } = opened();
    const before = picture();
    own.store.merge(makeBatch({ to: 40, names: ["Loss"], layers: [], value: () => 7, change: { replace: false } }));
    expect(picture()).toBe(before);
    own.store.merge(makeBatch({ from: 40, to: 44 }));
    expect(picture()).not.toBe(before);
    expect((picture()[0] as { xs: number[] }).xs.length).toBe(44);
  });

  it("sees a value that was replaced", () => {
    const { own, picture } = opened();
    const before = picture();
    own.store.merge(makeBatch({ from: 10, to: 11, value: () => 99, change: { replace: false } }));
    expect(picture()).not.toBe(before);
  });
});

describe("beside it", () => {
  it("the best value is the best finite one", () => {
    const ends = (values: number[], least: boolean) => {
      const { store, app, destroy } = show([makeBatch({ to: values.length, value: (seq) => values[seq] })]);
      const found = endsOf(app.context().runs[0], { name: "Loss", title: "", least });
      expect(store.runs.size).toBe(1);
      destroy();
      return found;
    };
    expect(ends([3, 1, 2], true)).toEqual([2, 1]);
    expect(ends([3, 1, 2], false)).toEqual([2, 3]);
    expect(ends([3, Number.NEGATIVE_INFINITY, 1, Number.NaN], true)).toEqual([Number.NaN, 1]);
    expect(ends([Number.NaN, Number.NaN], true)).toEqual([Number.NaN, null]);
  });

  it("one run alone has a panel about it, several have one about their differences", () => {
    const title = (own: Cockpit) => own.card("about").querySelector(".ck-title > span")?.textContent;
    const one = show([makeBatch({ to: 9 })]);
    expect(title(one)).toBe("About this run");
    expect(one.app.panelTitles().find(({ id }) => id === "about")?.title).toBe("About this run");
    one.store.merge(makeBatch({ run: "b", to: 9 }));
    one.app.draw();
    expect(title(one)).toBe("Runs and their differences");
  });
});
