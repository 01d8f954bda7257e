// The report: everything is in the page already, as base64 in data tags. No network, no kernel.
import { inflate } from "../data/inflate.ts";
import type { Source, SourceStatus } from "../data/source.ts";
import { type Mounted, mount } from "../view/mount.ts";
import { splitFrames } from "./frames.ts";

function readTag(tag: Element): Uint8Array[] {
  const binary = atob((tag.textContent ?? "").replace(/\s+/g, ""));
  const bytes = Uint8Array.from(binary, (char) => char.charCodeAt(0));
  const size = tag.getAttribute("data-size");
  return splitFrames(size ? inflate(bytes, Number(size)) : bytes);
}

class PageSource implements Source {
  readonly pushes = true; // histograms travel inside the Batches; what is not there was left out
  constructor(private readonly tags: Element[]) {}
  start(onBatch: (bytes: Uint8Array) => void, onStatus: (status: SourceStatus) => void): void {
    for (const tag of this.tags) for (const frame of readTag(tag)) onBatch(frame);
    onStatus({ connection: "static" });
  }
  stop(): void {}
  async histogram(): Promise<null> {
    return null;
  }
  async layers(): Promise<void> {}
}

function readOptions(root: Document): { theme?: unknown; panels?: unknown } {
  try {
    return JSON.parse(root.getElementById("cockpit-options")?.textContent ?? "{}");
  } catch {
    return {};
  }
}

export function openReport(root: Document): Mounted {
  const tags = [...root.querySelectorAll('script[type="application/octet-stream"].cockpit-batch')];
  const { theme, panels } = readOptions(root);
  return mount(root.getElementById("cockpit") ?? root.body, new PageSource(tags), {
    onTheme: (dark, page) => {
      root.documentElement.style.colorScheme = dark ? "dark" : "light";
      root.body.style.background = page;
    },
    theme: theme === "dark" || theme === "light" ? theme : undefined,
    panels: Array.isArray(panels) && panels.length ? panels.map(String) : undefined,
  });
}

if (document.readyState === "loading")
  document.addEventListener("DOMContentLoaded", () => openReport(document), { once: true });
else openReport(document);
