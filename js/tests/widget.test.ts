import { afterEach, describe, expect, it, vi } from "vitest";
import { decodeBatch } from "../src/data/wire.ts";
import { KernelSource } from "../src/hosts/kernel.ts";
import { openReport } from "../src/hosts/report.ts";
import createWidget from "../src/hosts/widget.ts";
import { fixture, joinFrames } from "./helpers.ts";

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
  document.body.replaceChildren();
});

class FakeModel {
  sent: Record<string, unknown>[] = [];
  saved = 0;
  private acts = new Map<string, ((...args: never[]) => void)[]>();
  constructor(readonly values: Record<string, unknown>) {}
  get = (name: string) => this.values[name];
  set = (name: string, value: unknown) => {
    this.values[name] = value;
  };
  save_changes = () => {
    this.saved++;
  };
  on = (name: string, act: (...args: never[]) => void) => {
    this.acts.set(name, [...(this.acts.get(name) ?? []), act]);
  };
  off = () => {};
  send = (content: unknown) => {
    this.sent.push(content as Record<string, unknown>);
  };
  emit(name: string, ...args: unknown[]): void {
    for (const act of this.acts.get(name) ?? []) (act as (...all: unknown[]) => void)(...args);
  }
}

describe("the widget", () => {
  const view = (bytes: Uint8Array) => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const frame = async () => new Promise((resolve) => setTimeout(resolve, 60));

  it("says how many runs of a folder are not shown", async () => {
    const values = { _keyframe: view(joinFrames(fixture("lenet-sgd"))), ui: {}, panels: [], height: 0, theme: "auto" };
    const model = new FakeModel({ ...values, _meta: { left_out: "the last 10 of 12 runs in sweep" } });
    const el = document.body.appendChild(document.createElement("div"));
    createWidget().render({ model, el });
    model.emit("msg:custom", { op: "batch", status: { runs: {} } }, []);
    await frame();
    expect(el.querySelector(".ck-status")?.textContent).toContain("the last 10 of 12 runs in sweep");
  });

  it("shows keyframes and messages in two views, and sends nothing by itself", async () => {
    const model = new FakeModel({
      _keyframe: view(joinFrames(fixture("lenet-sgd"))),
      ui: {},
      panels: [],
      height: 0,
      theme: "auto",
    });
    const widget = createWidget();
    widget.initialize({ model });
    const [first, second] = [document.createElement("div"), document.createElement("div")];
    document.body.append(first, second);
    const clean = widget.render({ model, el: first });
    const end = new AbortController();
    widget.render({ model, el: second, signal: end.signal });
    model.emit("msg:custom", { op: "batch", status: { runs: {} } }, [view(joinFrames(fixture("lenet-sigmoid")))]);
    await frame();
    for (const el of [first, second]) expect(el.textContent).toContain("lenet-sigmoid");
    expect(model.sent).toEqual([]);
    clean();
    end.abort();
    expect([first.childNodes.length, second.childNodes.length]).toEqual([0, 0]);
  });

  it("asks for a histogram when the user chose a step, and for a stop when asked to", async () => {
    const model = new FakeModel({
      _keyframe: view(joinFrames(fixture("lenet-sigmoid"))),
      ui: { step: 10 },
      status: { runs: { "lenet-sigmoid": { can_stop: true } } },
    });
    const widget = createWidget();
    const el = document.createElement("div");
    document.body.append(el);
    widget.initialize({ model });
    const clean = widget.render({ model, el });
    await frame();
    expect(model.sent).toEqual([]); // a step that was remembered is no wish of the user's
    el.querySelector(".ck-track")?.dispatchEvent(new KeyboardEvent("keydown", { key: "Shift", bubbles: true }));
    const wanted = { op: "histogram", run: "lenet-sigmoid", step: 10 };
    await vi.waitFor(() => expect(model.sent).toContainEqual(expect.objectContaining(wanted)), 3000);
    const stop = [...el.querySelectorAll("button")].find((button) => button.textContent === "Stop training");
    stop?.click();
    expect(model.sent.at(-1)).toEqual({ op: "stop", run: "lenet-sigmoid" });
    clean();
  });

  it("asks the kernel for a stretch in detail, and knows when it has come", async () => {
    const model = new FakeModel({ _keyframe: view(joinFrames(fixture("lenet-sgd"))) });
    const source = new KernelSource(model as never);
    let done = false;
    source.detail("lenet-sgd", 10, 40, 1024).then(() => (done = true));
    const { id, ...asked } = model.sent[0] as { id: number };
    expect(asked).toEqual({ op: "detail", run: "lenet-sgd", from: 10, to: 40, points: 1024 });
    await Promise.resolve();
    expect(done).toBe(false);
    source.answered(id);
    await Promise.resolve();
    expect(done).toBe(true);
  });

  it("says that the kernel is gone, unless the run had ended, and that nothing comes", async () => {
    vi.useFakeTimers();
    for (const name of ["lenet-sgd", "lenet-sigmoid"]) {
      const store = decodeBatch(fixture(name)).status?.state;
      const model = new FakeModel({ _keyframe: view(joinFrames(fixture(name))), ui: {} });
      const el = document.createElement("div");
      document.body.append(el);
      const clean = createWidget().render({ model, el });
      const words = async (passed: number) => {
        await vi.advanceTimersByTimeAsync(passed);
        return el.querySelector(".ck-status")?.textContent ?? "";
      };
      expect(await words(30_000)).not.toMatch(/no news|disconnected/);
      if (store === "finished") expect(await words(60_000)).not.toContain("no news");
      else expect(await words(60_000)).toMatch(/no news for 1:\d\d: a long step, or the kernel is gone/);
      model.emit("msg:custom", { op: "batch", status: { runs: {} } }, []);
      expect(await words(1000)).not.toContain("no news");
      model.emit("comm_live_update");
      if (store === "finished") expect(await words(100)).not.toContain("disconnected");
      else expect(await words(100)).toMatch(/^\W*disconnected: the kernel is gone(?!.*live)/);
      clean();
      expect(vi.getTimerCount()).toBe(0);
    }
  });

  it("remembers what the user chose", async () => {
    const model = new FakeModel({ _keyframe: view(joinFrames(fixture("lenet-sgd"))), ui: {} });
    const el = document.createElement("div");
    document.body.append(el);
    const clean = createWidget().render({ model, el });
    await frame();
    [...el.querySelectorAll("button")].find((button) => button.textContent === "log x")?.click();
    await new Promise((resolve) => setTimeout(resolve, 250));
    expect(model.values.ui).toEqual({ xlog: true });
    expect(model.saved).toBe(1);
    clean();
  });
});

describe("the report", () => {
  it("opens from what is in the page", async () => {
    const tag = document.createElement("script");
    tag.type = "application/octet-stream";
    tag.className = "cockpit-batch";
    let text = "";
    for (const byte of joinFrames(fixture("lenet-sgd"))) text += String.fromCharCode(byte);
    tag.textContent = btoa(text);
    const place = document.createElement("main");
    place.id = "cockpit";
    document.body.append(place, tag);
    const report = openReport(document);
    report.app.draw();
    expect(place.textContent).toContain("lenet-sgd");
    expect(place.querySelectorAll(".ck-card").length).toBeGreaterThan(15);
    report.destroy();
  });
});
