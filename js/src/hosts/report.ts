// The report: everything is in the page already, as base64 in data tags. No network, no kernel.
import { mount } from "../mount.ts";
import type { Source, SourceStatus } from "../source.ts";

function decodeBase64(text: string): Uint8Array {
  const binary = atob(text.replace(/\s+/g, ""));
  return Uint8Array.from(binary, (char) => char.charCodeAt(0));
}

class PageSource implements Source {
  constructor(private readonly messages: Uint8Array[]) {}
  start(onBatch: (bytes: Uint8Array) => void, onStatus: (status: SourceStatus) => void): void {
    for (const bytes of this.messages) onBatch(bytes);
    onStatus({ connection: "static" });
  }
  stop(): void {}
  // Histograms travel inside the Batches and are in the store by now; what is not there was left out.
  async histogram(): Promise<null> {
    return null;
  }
  async layers(): Promise<void> {}
}

export function openReport(root: Document): void {
  const tags = [...root.querySelectorAll<HTMLElement>('script[type="application/octet-stream"][data-cockpit]')];
  const messages = tags.map((tag) => decodeBase64(tag.textContent ?? ""));
  const place = root.getElementById("cockpit") ?? root.body;
  const theme = root.documentElement.dataset.theme;
  mount(place, new PageSource(messages), { theme: theme === "dark" || theme === "light" ? theme : undefined });
}

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", () => openReport(document), { once: true });
else openReport(document);
