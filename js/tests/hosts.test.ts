import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { SourceStatus } from "../src/data/source.ts";
import { decodeBatch, decodeHistogram } from "../src/data/wire.ts";
import { splitFrames } from "../src/hosts/frames.ts";
import { HttpSource } from "../src/hosts/http.ts";
import { readAddress, writeAddress } from "../src/hosts/parent.ts";
import { feed, Store } from "../src/view/mount.ts";
import { fixture, joinFrames } from "./helpers.ts";

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
  document.body.replaceChildren();
});

describe("the wire", () => {
  it("reads what Python wrote", () => {
    const batch = decodeBatch(fixture("lenet-sgd"));
    expect(batch.run).toBe("lenet-sgd");
    expect(batch.header?.layers.map((layer) => layer.name)).toEqual([
      "conv1.weight",
      "conv1.bias",
      "fc2.weight",
      "fc2.bias",
    ]);
    const loss = batch.columns.find((column) => column.name === "Loss" && column.layer === "");
    expect(loss?.values).toHaveLength(60);
    expect(batch.alphas).toHaveLength(59); // the last one is known one step later
    expect(batch.status?.state).toBe("finished");
    const histogram = batch.histograms.find((own) => own.quantity === "GradHist2d" && !own.layer);
    expect(histogram?.shape).toEqual([40, 50]);
    expect(histogram?.counts.reduce((a, b) => a + b, 0)).toBe(20_000);
  });

  it("marks thinned columns", () => {
    const batch = decodeBatch(fixture("lenet-sgd.thinned"));
    const loss = batch.columns.find((column) => column.name === "Loss");
    expect(loss?.decimated).toBe(true);
    expect(loss?.values.length).toBeLessThan(30);
  });

  it("counts a message that cannot be read and goes on", () => {
    vi.spyOn(console, "warn").mockImplementation(() => {});
    const store = new Store();
    const bytes = fixture("lenet-sgd");
    feed(store, bytes.slice(0, 1000));
    feed(store, Uint8Array.from([1, 2, 3, 255, 254]));
    expect(store.broken).toBe(2);
    feed(store, bytes);
    expect(store.runs.get("lenet-sgd")?.rows.n).toBeGreaterThan(60);
    expect(() => decodeHistogram(Uint8Array.from([255, 255]))).toThrow();
  });

  it("splits several Batches, and uses what is whole of a cut one", () => {
    const joined = joinFrames(Uint8Array.from([1, 2]), Uint8Array.from([3]));
    expect(splitFrames(joined).map((frame) => Array.from(frame))).toEqual([[1, 2], [3]]);
    expect(splitFrames(joined.slice(0, -1))).toHaveLength(1);
  });
});

describe("the HTTP source", () => {
  let requests: string[] = [];
  let runs: { run: string; run_id: string; seq: number; state: string }[] = [];
  let fails = false;

  beforeEach(() => {
    vi.useFakeTimers();
    requests = [];
    fails = false;
    runs = [{ run: "lenet-sgd", run_id: "synthetic-lenet-sgd", seq: 64, state: "running" }];
    vi.stubGlobal("fetch", async (url: string) => {
      requests.push(url);
      if (fails) throw new TypeError("no connection");
      if (url.startsWith("./runs")) return new Response(JSON.stringify(runs));
      if (url.startsWith("./histogram")) return new Response("", { status: 404 });
      return new Response(fixture("lenet-sgd") as unknown as BodyInit);
    });
  });

  const begin = () => {
    const source = new HttpSource("./");
    const batches: Uint8Array[] = [];
    const states: SourceStatus[] = [];
    source.start(
      (bytes) => batches.push(bytes),
      (status) => states.push(status),
    );
    return { source, batches, states };
  };

  it("fetches a run once, then only what is new", async () => {
    const { source, batches } = begin();
    await vi.advanceTimersByTimeAsync(50);
    expect(requests.filter((url) => url.includes("batch"))).toEqual([
      "./batch?run=lenet-sgd&since=0&layers=0&max_points=1000",
    ]);
    await vi.advanceTimersByTimeAsync(3000);
    expect(requests.filter((url) => url.includes("batch"))).toHaveLength(1);
    runs[0].seq = 70;
    await vi.advanceTimersByTimeAsync(1100);
    expect(requests.filter((url) => url.includes("batch")).at(-1)).toBe("./batch?run=lenet-sgd&since=64&layers=0");
    expect(batches).toHaveLength(2);
    source.stop();
  });

  it("asks three times as often while a run that is looked at grows", async () => {
    const { source } = begin();
    const looks = () => requests.filter((url) => url.includes("runs")).length;
    const within = async (ms: number) => {
      const before = looks();
      await vi.advanceTimersByTimeAsync(ms);
      return looks() - before;
    };
    runs[0].state = "finished";
    await vi.advanceTimersByTimeAsync(2000);
    expect(await within(10_000)).toBe(10);
    runs[0].state = "running";
    await vi.advanceTimersByTimeAsync(2000);
    expect(await within(10_000)).toBeGreaterThanOrEqual(25);
    source.focus([]); // nobody looks at it
    await vi.advanceTimersByTimeAsync(2000);
    expect(await within(10_000)).toBe(10);
    source.stop();
  });

  it("asks for the rest at once where a long run comes in parts", async () => {
    runs[0].seq = 100_000;
    const answer = fetch;
    vi.stubGlobal("fetch", async (url: string, options?: RequestInit) => {
      const response = await answer(url, options);
      if (!url.includes("batch")) return response;
      const since = Number(new URL(url, "http://x").searchParams.get("since"));
      const headers = { "X-Cockpit-To-Seq": String(Math.min(100_000, since + 40_000)) };
      return new Response(await response.arrayBuffer(), { headers });
    });
    const { source, states } = begin();
    await vi.advanceTimersByTimeAsync(100);
    const since = requests.filter((url) => url.includes("batch")).map((url) => /since=(\d+)/.exec(url)?.[1]);
    expect(since).toEqual(["0", "40000", "80000"]);
    expect(states.map((status) => status.progress)).toContain(0.4);
    await vi.advanceTimersByTimeAsync(3000);
    expect(requests.filter((url) => url.includes("batch"))).toHaveLength(3);
    source.stop();
  });

  it("does not ask for ever where records are missing", async () => {
    runs[0].seq = 100;
    const answer = fetch;
    vi.stubGlobal("fetch", async (url: string, options?: RequestInit) => {
      const response = await answer(url, options);
      const headers = { "X-Cockpit-To-Seq": "50" };
      return url.includes("batch") ? new Response(await response.arrayBuffer(), { headers }) : response;
    });
    const { source } = begin();
    await vi.advanceTimersByTimeAsync(50);
    expect(requests.filter((url) => url.includes("batch"))).toHaveLength(2);
    source.stop();
  });

  it("starts over when the run was started anew", async () => {
    const { source } = begin();
    await vi.advanceTimersByTimeAsync(50);
    runs[0] = { ...runs[0], run_id: "other", seq: 3 };
    await vi.advanceTimersByTimeAsync(1100);
    expect(requests.filter((url) => url.includes("batch")).at(-1)).toContain("since=0");
    source.stop();
  });

  it("stops asking while nobody looks, and when it is stopped", async () => {
    const { source } = begin();
    await vi.advanceTimersByTimeAsync(50);
    const height = window.innerHeight;
    Object.defineProperty(window, "innerHeight", { value: 0, configurable: true });
    const before = requests.length;
    await vi.advanceTimersByTimeAsync(10_000);
    expect(requests.length).toBe(before);
    Object.defineProperty(window, "innerHeight", { value: height, configurable: true });
    await vi.advanceTimersByTimeAsync(1100);
    expect(requests.length).toBeGreaterThan(before);
    source.stop();
    const after = requests.length;
    await vi.advanceTimersByTimeAsync(10_000);
    expect(requests.length).toBe(after);
  });

  it("says so when TensorBoard does not answer, asks less often, and recovers", async () => {
    const { source, states } = begin();
    await vi.advanceTimersByTimeAsync(50);
    fails = true;
    await vi.advanceTimersByTimeAsync(30_000);
    expect(states.at(-1)).toMatchObject({ connection: "disconnected", message: "TensorBoard does not answer" });
    expect(requests.length).toBeLessThan(12);
    fails = false;
    await vi.advanceTimersByTimeAsync(17_000);
    expect(states.at(-1)?.connection).toBe("live");
    source.stop();
  });

  it("asks for layers once and keeps them up to date", async () => {
    const { source } = begin();
    await vi.advanceTimersByTimeAsync(50);
    await source.layers("lenet-sgd", "GradNorm");
    await source.layers("lenet-sgd", "GradNorm");
    expect(requests.filter((url) => url.includes("layers=1"))).toEqual([
      "./batch?run=lenet-sgd&since=0&names=GradNorm&layers=1&max_points=2000",
    ]);
    runs[0].seq = 70;
    await vi.advanceTimersByTimeAsync(1100);
    expect(requests.filter((url) => url.includes("layers=1")).at(-1)).toBe(
      "./batch?run=lenet-sgd&since=64&names=GradNorm&layers=1",
    );
    expect(await source.histogram("lenet-sgd", "GradHist1d", 3, null)).toBeNull();
    source.stop();
  });

  it("fetches a run of some length whole after its first picture", async () => {
    runs[0].seq = 10_000;
    const { source } = begin();
    await vi.advanceTimersByTimeAsync(50);
    expect(requests.filter((url) => url.includes("batch"))).toEqual([
      "./batch?run=lenet-sgd&since=0&layers=0&max_points=1000",
      "./batch?run=lenet-sgd&since=0&layers=0",
    ]);
    source.stop();
  });

  it("fetches a stretch of a long run again, finer, with the layers that are shown", async () => {
    runs[0].seq = 1_000_000;
    const { source, batches } = begin();
    await vi.advanceTimersByTimeAsync(50);
    await source.layers("lenet-sgd", "GradNorm");
    requests = [];
    const before = batches.length;
    await source.detail("lenet-sgd", 2048, 4096, 1024);
    expect(requests).toEqual([
      "./batch?run=lenet-sgd&since=2048&until=4096&max_points=1024&layers=0",
      "./batch?run=lenet-sgd&since=2048&until=4096&max_points=1024&names=GradNorm&layers=1",
    ]);
    expect(batches.length).toBe(before + 2);
    source.stop();
  });

  it("loads only chosen runs out of many", async () => {
    runs = Array.from({ length: 100 }, (_, i) => ({ run: `r${i}`, run_id: `${i}`, seq: 5, state: "finished" }));
    const { source } = begin();
    await vi.advanceTimersByTimeAsync(50);
    expect(requests.filter((url) => url.includes("batch"))).toHaveLength(10);
    source.focus(["r50"]);
    await vi.advanceTimersByTimeAsync(1100);
    expect(requests.filter((url) => url.includes("run=r50"))).toHaveLength(1);
    source.stop();
  });
});

describe("the address", () => {
  it("carries the state and leaves other parts alone", () => {
    window.location.hash = "#cockpit&p.other.x=1";
    writeAddress('{"step":7}');
    expect(readAddress()).toBe('{"step":7}');
    expect(window.location.hash).toContain("p.other.x=1");
    writeAddress("");
    expect(readAddress()).toBeNull();
    window.location.hash = "#scalars";
    writeAddress('{"step":7}');
    expect(window.location.hash).toBe("#scalars");
    window.location.hash = "";
  });
});
