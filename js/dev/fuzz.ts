// Tries one message after another in a real page: decoded, kept, drawn. See scripts/fuzz_page.py.

import type { Source } from "../src/data/source.ts";
import { decodeHistogram } from "../src/data/wire.ts";
import { feed, mount, Store } from "../src/view/mount.ts";

const silent: Source = {
  pushes: true,
  start: () => {},
  stop: () => {},
  histogram: async () => null,
  layers: async () => {},
};
const failures: string[] = [];

// A panel that fails says so in its place; here that counts.
const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text: string, ...place: [number, number]) {
  if (text.startsWith("This panel failed")) failures.push(text);
  write.call(this, text, ...place);
};
window.addEventListener("error", (event) => failures.push(`${event.message} ${event.error?.stack ?? ""}`));
window.addEventListener("unhandledrejection", (event) => failures.push(`rejected: ${event.reason?.stack}`));
console.warn = () => {};

const frame = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 0)));

async function tryMessages(messages: string[]): Promise<{ read: boolean; failures: string[]; ms: number }> {
  failures.length = 0;
  const begun = performance.now();
  const store = new Store();
  const place = document.body.appendChild(document.createElement("div"));
  const mounted = mount(place, silent, { store, status: { connection: "static" } });
  for (const text of messages) {
    const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
    feed(store, bytes);
    try {
      decodeHistogram(bytes);
    } catch {
      // It is none, or a damaged one: whoever asked for it is told.
    }
  }
  await frame();
  await frame();
  mounted.destroy();
  place.remove();
  return { read: store.runs.size > 0, failures: [...failures], ms: performance.now() - begun };
}

Object.assign(window, { tryMessages });
