// The notebook widget (anywidget). Data comes as custom messages and keyframes; nothing is sent unless the user asks.
import { formatDuration } from "../data/format.ts";
import type { SourceStatus } from "../data/source.ts";
import { encodeState, feed, mount, Store, sanitizeState, type UiState } from "../view/mount.ts";
import { splitFrames, toBytes } from "./frames.ts";
import { KernelSource, type Model, type RunState } from "./kernel.ts";
import { watchTheme } from "./theme.ts";

interface RenderProps {
  model: Model;
  el: HTMLElement;
  signal?: AbortSignal;
}
interface Content {
  op?: string;
  reply?: { id?: unknown };
  message?: unknown;
  samples?: { id?: unknown; text?: unknown; picture?: unknown }[];
  status?: { runs?: Record<string, RunState>; last_error?: string };
}

const SILENCE = 60; // seconds

// One store per widget, shared by its views. It lives in this closure, not in the module: some hosts share modules.
export default () => {
  const store = new Store();
  const views = new Set<ReturnType<typeof mount>>();
  let source: KernelSource | null = null;
  let status: SourceStatus = { connection: "live" };
  let heard = performance.now();
  let usual: string | undefined; // what is said where there is nothing else to say

  const tell = (change: Partial<SourceStatus>) => {
    status = { ...status, ...change };
    for (const view of views) view.update({ status });
  };
  const isOpen = () => [...store.runs.values()].some(({ status: { state } }) => /^(running|waiting)$/.test(state));
  // A kernel that disappears after the runs have ended does not matter: they are shown as they were.
  const lose = () => isOpen() && tell({ connection: "disconnected", message: "disconnected: the kernel is gone" });
  // A busy kernel cannot be asked whether it is still there; the page can only say that nothing comes.
  const listen = () => {
    const passed = (performance.now() - heard) / 1000;
    if (status.connection === "live" && passed > SILENCE && isOpen())
      tell({ message: `no news for ${formatDuration(passed)}: a long step, or the kernel is gone` });
  };
  const takeStatus = (value: Content["status"]) => {
    if (source && value?.runs) source.states = value.runs;
    tell({ message: value?.last_error || usual });
  };
  const takeFrames = (value: unknown) => {
    if (value instanceof DataView || value instanceof ArrayBuffer || value instanceof Uint8Array)
      for (const frame of splitFrames(toBytes(value))) feed(store, frame);
  };
  const takeSamples = ({ samples }: Content, buffers: unknown[]) => {
    for (const { id, text, picture } of Array.isArray(samples) ? samples : []) {
      const buffer = typeof picture === "number" ? buffers?.[picture] : null;
      source?.takeSample(id, text, buffer instanceof DataView || buffer instanceof Uint8Array ? toBytes(buffer) : null);
    }
  };
  const takeMessage = (content: Content, buffers: unknown[]) => {
    if (content?.op !== "batch" && content?.op !== "error" && content?.op !== "samples") return;
    heard = performance.now();
    status = { ...status, connection: "live" };
    if (content.op === "samples") takeSamples(content, buffers);
    else for (const buffer of buffers ?? []) takeFrames(buffer);
    takeStatus(content.status);
    source?.answered(content.reply?.id);
  };

  const connect = (model: Model): KernelSource => {
    if (source) return source;
    source = new KernelSource(model);
    const meta = model.get("_meta") as { shows_samples?: unknown; left_out?: unknown } | undefined;
    if (meta?.shows_samples) source.showSamples();
    usual = meta?.left_out ? String(meta.left_out) : undefined;
    model.on("msg:custom", takeMessage as never);
    model.on("change:_keyframe", (() => takeFrames(model.get("_keyframe"))) as never);
    model.on("change:status", (() => takeStatus(model.get("status") as Content["status"])) as never);
    for (const name of ["comm:close", "comm_live_update"]) model.on(name, lose as never);
    takeFrames(model.get("_keyframe"));
    takeStatus(model.get("status") as Content["status"]);
    return source;
  };

  const remember = (model: Model) => (state: UiState) => {
    model.set("ui", JSON.parse(encodeState({ ...state, paused: false }) || "{}"));
    model.save_changes();
  };

  return {
    initialize({ model }: { model: Model }) {
      connect(model);
    },
    render({ model, el, signal }: RenderProps) {
      const own = connect(model);
      const wanted = model.get("theme");
      const fixed = wanted === "light" || wanted === "dark" ? wanted : undefined;
      const panels = model.get("panels");
      const watch = watchTheme(el, (theme) => !fixed && view.update({ theme }));
      const view = mount(el, own, {
        store,
        status,
        theme: fixed ?? watch.now(),
        state: sanitizeState(model.get("ui")),
        panels: Array.isArray(panels) && panels.length ? panels.map(String) : undefined,
        height: Number(model.get("height")) || undefined,
        // Whoever names panels or a height has made up their mind.
        compact:
          Boolean(model.get("compact")) && !(Array.isArray(panels) && panels.length) && !Number(model.get("height")),
        onState: remember(model),
      });
      views.add(view);
      const timer = setInterval(listen, 5000);
      const clean = () => {
        clearInterval(timer);
        watch.stop();
        views.delete(view);
        view.destroy();
      };
      signal?.addEventListener("abort", clean, { once: true });
      return clean;
    },
  };
};
