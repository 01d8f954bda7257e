// The notebook widget (anywidget). Data comes as custom messages and keyframes; nothing is sent unless the user asks.
import { encodeState, feed, mount, sanitizeState, Store } from "../mount.ts";
import type { Source, SourceStatus } from "../source.ts";
import { watchTheme } from "./theme.ts";

interface Model {
  get(name: string): unknown;
  set(name: string, value: unknown): void;
  save_changes(): void;
  on(name: string, act: (...args: never[]) => void): void;
  off(name?: string | null, act?: ((...args: never[]) => void) | null): void;
  send(content: unknown): void;
}
interface RenderProps {
  model: Model;
  el: HTMLElement;
  signal?: AbortSignal;
}

const toBytes = (data: DataView | ArrayBuffer | Uint8Array): Uint8Array =>
  data instanceof Uint8Array ? data : data instanceof DataView ? new Uint8Array(data.buffer, data.byteOffset, data.byteLength) : new Uint8Array(data);

/** Questions to the kernel by number; while it is busy they simply wait. */
class KernelSource implements Source {
  private waiting = new Map<number, (bytes: Uint8Array | null) => void>();
  private next = 1;
  constructor(private readonly model: Model) {}

  start(): void {}
  stop(): void {
    for (const resolve of this.waiting.values()) resolve(null);
    this.waiting.clear();
  }
  answer(id: number, bytes: Uint8Array | null): void {
    this.waiting.get(id)?.(bytes);
    this.waiting.delete(id);
  }
  private ask(content: Record<string, unknown>): Promise<Uint8Array | null> {
    const id = this.next++;
    this.model.send({ ...content, id });
    return new Promise((resolve) => this.waiting.set(id, resolve));
  }
  histogram(run: string, quantity: string, step: number, layer: string | null): Promise<Uint8Array | null> {
    return this.ask({ op: "histogram", run, quantity, step, layer: layer ?? "" });
  }
  async layers(run: string, name: string): Promise<void> {
    this.model.send({ op: "layers", run, name });
  }
  requestStop(run: string): void {
    this.model.send({ op: "stop", run });
  }
}

// One store per widget, shared by its views. It lives in this closure, not in the module: some hosts share modules.
export default () => {
  const store = new Store();
  let source: KernelSource | null = null;
  let status: SourceStatus = { connection: "live" };
  const views = new Set<ReturnType<typeof mount>>();

  const tell = (change: Partial<SourceStatus>) => {
    status = { ...status, ...change };
    for (const view of views) view.update({ status });
  };
  const takeStatus = (model: Model) => {
    const text = String(model.get("status") ?? "");
    tell({ connection: text === "disconnected" ? "disconnected" : "live", message: text || undefined });
  };
  const takeKeyframe = (model: Model) => {
    const value = model.get("_keyframe") as DataView | null;
    if (!value?.byteLength) return;
    // A keyframe holds one Batch per run, each after its length: a comparison needs several.
    let at = 0;
    const bytes = toBytes(value);
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    while (at + 4 <= bytes.length) {
      const size = view.getUint32(at, true);
      feed(store, bytes.slice(at + 4, at + 4 + size));
      at += 4 + size;
    }
  };
  const takeMessage = (content: { op?: string; id?: number }, buffers: (DataView | ArrayBuffer)[]) => {
    const bytes = buffers?.[0] ? toBytes(buffers[0]) : null;
    if (content?.op === "batch") for (const buffer of buffers) feed(store, toBytes(buffer));
    else if (content?.op === "histogram" && typeof content.id === "number") source?.answer(content.id, bytes);
  };

  const connect = (model: Model) => {
    if (source) return source;
    source = new KernelSource(model);
    model.on("msg:custom", takeMessage as never);
    model.on("change:_keyframe", (() => takeKeyframe(model)) as never);
    model.on("change:status", (() => takeStatus(model)) as never);
    takeKeyframe(model);
    takeStatus(model);
    return source;
  };

  return {
    initialize({ model }: { model: Model }) {
      connect(model);
    },
    render({ model, el, signal }: RenderProps) {
      const own = connect(model);
      const options = (model.get("options") ?? {}) as { height?: number; theme?: string; panels?: string[] };
      const theme = watchTheme(el, (theme) => view.update({ theme }));
      const view = mount(el, own, {
        store,
        status,
        theme: theme.now(),
        state: { ...sanitizeState(model.get("ui")), ...(options.theme === "light" || options.theme === "dark" ? { theme: options.theme } : {}) },
        panels: options.panels?.length ? options.panels : undefined,
        height: options.height || undefined,
        onState: (state) => {
          model.set("ui", JSON.parse(encodeState({ ...state, paused: false }) || "{}"));
          model.save_changes();
        },
      });
      views.add(view);
      const clean = () => {
        theme.stop();
        views.delete(view);
        view.destroy();
      };
      signal?.addEventListener("abort", clean, { once: true });
      return clean;
    },
  };
};
