import { describe, expect, it } from "vitest";
import { panBy, zoomAround } from "../src/contract/navigation.ts";
import { type Cockpit, makeBatch, opener, startWith, distinct as value } from "./helpers.ts";

const start = startWith(opener());
const reading = (own: Cockpit, id: string) => own.card(id).querySelector<HTMLElement>(".ck-reading")?.dataset;

describe("scrubbing", () => {
  it("shows the values of the chosen step in all panels", () => {
    const own = start();
    for (const step of [0, 37, 100]) {
      own.app.set({ step });
      own.app.draw();
      expect(Number(reading(own, "loss")?.value)).toBe(value(step, "Loss"));
      expect(Number(reading(own, "grad_norm")?.value)).toBe(value(step, "GradNorm"));
      expect(Number(reading(own, "update_ratio")?.value)).toBe(value(step, "UpdateSize") / value(step, "ParamNorm"));
      expect(reading(own, "hess_max_ev")?.step).toBe(String(step));
    }
  });

  it("follows the latest record until the user chooses a step", () => {
    const own = start();
    own.store.merge(makeBatch({ from: 101, to: 111, value }));
    own.app.draw();
    expect(own.text(".ck-where")).toContain("step 110");
    own.app.set({ step: 5 });
    own.store.merge(makeBatch({ from: 111, to: 120, value }));
    own.app.draw();
    expect(own.text(".ck-where")).toContain("step 5 · epoch 0.5");
  });

  it("works with the keyboard alone", () => {
    const own = start();
    const track = own.element.querySelector<HTMLElement>(".ck-track") as HTMLElement;
    const press = (key: string) => {
      track.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
      own.app.draw();
    };
    press("Home");
    expect(track.getAttribute("aria-valuenow")).toBe("0");
    press("ArrowRight");
    press("ArrowRight");
    expect(track.getAttribute("aria-valuenow")).toBe("2");
    press("PageUp");
    expect(track.getAttribute("aria-valuetext")).toContain("step 12");
    press("End");
    expect(own.app.state.step).toBeNull();
  });

  it("plays through the whole training and stops at its end", () => {
    const own = start();
    own.app.play();
    for (let now = 1; now < 20_000; now += 250) own.app.draw(now);
    expect(own.element.querySelector(".ck-play")?.getAttribute("aria-label")).toBe("Play through the training");
    expect(own.app.state.step).toBe(100);
  });
});

describe("hovering and zooming", () => {
  it("shows the hovered step everywhere and returns", () => {
    const own = start();
    own.app.hover(42.3);
    own.app.draw();
    expect(Number(reading(own, "loss")?.value)).toBe(value(42, "Loss"));
    expect(Number(reading(own, "hess_trace")?.value)).toBe(value(42, "HessTrace"));
    own.app.hover(null);
    own.app.draw();
    expect(Number(reading(own, "loss")?.value)).toBe(value(100, "Loss"));
  });

  it("zooms all time charts together, and forgets the zoom with the axis", () => {
    const own = start();
    own.app.zoom([20, 40]);
    own.app.draw();
    for (const id of ["loss", "grad_norm", "alpha", "gradient_tests"])
      for (const frame of own.app.card(id)?.scene.frames ?? []) expect(frame.xscale.domain).toEqual([20, 40]);
    own.app.set({ axis: "time" });
    expect(own.app.context().domain).toEqual([0, 10]);
  });

  it("gives a run that grows some room, so that the axis stands still for a while; a finished one has none", () => {
    const own = start();
    const highs = new Set<number>();
    for (let i = 1000; i < 1200; i += 4) {
      own.store.merge(makeBatch({ to: i + 1, names: ["Loss"], layers: [], change: { alphas: [], top_samples: [] } }));
      const [low, high] = own.app.context().domain;
      expect(low).toBe(0);
      expect(high).toBeGreaterThanOrEqual(i);
      expect(high).toBeLessThan(i * (1 + 1 / 30));
      highs.add(high);
    }
    expect(highs.size).toBeLessThan(15);
    const { status, ...last } = makeBatch({ from: 1197, to: 1198 });
    if (status) own.store.merge({ ...last, status: { ...status, state: "finished" } });
    expect(own.app.context().domain).toEqual([0, 1197]);
  });

  it("answers to a pointer: a click chooses, a drag zooms", () => {
    const own = start();
    const card = own.app.card("loss");
    const frame = card?.scene.frames[0];
    if (!card || !frame) throw new Error("no chart");
    const at = (type: string, part: number) =>
      card.body.dispatchEvent(
        new MouseEvent(type, { clientX: frame.x + frame.width * part, clientY: frame.y + 5, button: 0, bubbles: true }),
      );
    at("pointerdown", 0.5);
    at("pointerup", 0.5);
    expect(own.app.state.step).toBe(50);
    at("pointerdown", 0.25);
    at("pointermove", 0.6);
    at("pointerup", 0.75);
    expect(own.app.state.zoom?.map(Math.round)).toEqual([25, 75]);
  });
});

describe("moving a zoomed chart", () => {
  const chart = (own: Cockpit) => {
    own.app.zoom([40, 60]);
    own.app.draw();
    const card = own.app.card("loss");
    const frame = card?.scene.frames[0];
    if (!card || !frame) throw new Error("no chart");
    const at = (type: string, part: number, more: Record<string, unknown> = {}) => {
      const place = { clientX: frame.x + frame.width * part, clientY: frame.y + 5, button: 0, bubbles: true };
      const event = new MouseEvent(type, { ...place, cancelable: true, ...more });
      for (const [name, value] of Object.entries({ pointerId: 1, deltaMode: 0, deltaX: 0, deltaY: 0, ...more }))
        if (!(name in event)) Object.defineProperty(event, name, { value });
      card.body.dispatchEvent(event);
      return event;
    };
    const zoom = () => own.app.state.zoom?.map((x) => Math.round(x * 1000) / 1000);
    return { at, zoom, below: frame.y + frame.height + 12 };
  };

  it("works by dragging with Shift, and stops at both ends of the training", () => {
    const { at, zoom } = chart(start());
    at("pointerdown", 0.5, { shiftKey: true });
    at("pointermove", 0.25);
    expect(zoom()).toEqual([45, 65]);
    at("pointermove", -9);
    expect(zoom()).toEqual([80, 100]);
    at("pointermove", 9);
    expect(zoom()).toEqual([0, 20]);
    at("pointerup", 9);
    at("pointermove", 0.5);
    expect(zoom()).toEqual([0, 20]);
  });

  it("works by dragging the axis; a click there does nothing", () => {
    const own = start();
    const { at, zoom, below } = chart(own);
    at("pointerdown", 0.5, { clientY: below });
    at("pointerup", 0.5, { clientY: below });
    expect(own.app.state.step).toBeNull();
    at("pointerdown", 0.5, { clientY: below });
    at("pointermove", 0.75, { clientY: below });
    at("pointerup", 0.75, { clientY: below });
    expect(zoom()).toEqual([35, 55]);
  });

  it("leaves the bare wheel to the page, zooms with Ctrl around the pointer, moves with Shift", () => {
    const { at, zoom } = chart(start());
    expect(at("wheel", 0.5, { deltaY: 100 }).defaultPrevented).toBe(false);
    expect(zoom()).toEqual([40, 60]);
    expect(at("wheel", 0.25, { deltaY: -240 * Math.LN2, ctrlKey: true }).defaultPrevented).toBe(true);
    const [low, high] = zoom() ?? [];
    expect((45 - low) / (high - low)).toBeCloseTo(0.25); // what was under the pointer still is
    expect(high - low).toBeLessThan(20);
    at("wheel", 0.5, { deltaY: 100, shiftKey: true });
    expect(zoom()?.[0]).toBeGreaterThan(low);
  });

  it("works with one finger, and two fingers zoom", () => {
    const own = start();
    const { at, zoom } = chart(own);
    const touch = (pointerId: number) => ({ pointerId, pointerType: "touch" });
    at("pointerdown", 0.5, touch(1));
    at("pointermove", 0.25, touch(1));
    at("pointerup", 0.25, touch(1));
    expect(zoom()).toEqual([45, 65]);
    own.app.draw();
    at("pointerdown", 0.4, touch(1));
    at("pointerdown", 0.6, touch(2));
    at("pointermove", 0.3, touch(1));
    at("pointermove", 0.7, touch(2));
    const [low, high] = zoom() ?? [];
    expect(high - low).toBeCloseTo(10); // twice as far apart
    expect((55 - low) / (high - low)).toBeCloseTo(0.5);
    at("pointerup", 0.3, touch(1));
    at("pointerup", 0.7, touch(2));
  });

  it("works with keys", () => {
    const own = start();
    const { at, zoom } = chart(own);
    const press = (key: string) =>
      own.app.card("loss")?.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    press("]");
    expect(zoom()).toEqual([45, 65]);
    press("[");
    press("[");
    expect(zoom()).toEqual([35, 55]);
    press("0");
    expect(own.app.state.zoom).toBeNull();
    at("pointerdown", 0.5, { shiftKey: true }); // there is nowhere to go
    at("pointermove", 0.25);
    expect(own.app.state.zoom).toBeNull();
  });

  it("keeps its width on a log axis, as the eye sees it", () => {
    const moved = panBy([9, 99], [0, 999], 0.5, true);
    expect(moved[0]).toBeCloseTo(10 ** 1.5 - 1);
    expect(moved[1]).toBeCloseTo(10 ** 2.5 - 1);
    expect(zoomAround([0, 100], [0, 100], 2, 50, false)).toBeNull();
    expect(zoomAround([0, 99], [0, 99], 0.5, 9, true)?.[1]).toBeCloseTo(10 ** 1.5 - 1);
  });
});
