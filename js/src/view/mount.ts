// The entry point for hosts: takes an element, a source and options; returns a handle that updates and destroys.

import { decodeState, encodeState, sanitizeState, type UiState } from "../contract/state.ts";
import type { Source, SourceStatus } from "../data/source.ts";
import { Store } from "../data/store.ts";
import { decodeBatch } from "../data/wire.ts";
import { App } from "./app.ts";
import type { MountOptions } from "./options.ts";

export interface Mounted {
  /** The host's theme, state or connection changed. */
  update(changes: { theme?: "light" | "dark"; state?: UiState; status?: SourceStatus }): void;
  destroy(): void;
  readonly app: App;
}

/** Bytes into the store. A message that cannot be read is counted and shown, never fatal. */
export function feed(store: Store, bytes: Uint8Array): void {
  try {
    store.merge(decodeBatch(bytes));
  } catch (error) {
    store.broken++;
    store.changed();
    console.warn("cockpit: a message could not be read", error);
  }
}

export function mount(element: HTMLElement, source: Source, options: MountOptions = {}): Mounted {
  const store = options.store ?? new Store();
  const app = new App(element, store, source, options);
  if (options.status) app.setStatus(options.status);
  if (!options.store)
    source.start(
      (bytes) => feed(store, bytes),
      (status) => app.setStatus(status),
    );
  return {
    app,
    update({ theme, state, status }) {
      if (theme) app.setHostTheme(theme);
      if (state) app.set(state);
      if (status) app.setStatus(status);
    },
    destroy() {
      if (!options.store) source.stop();
      app.destroy();
    },
  };
}

export { decodeState, encodeState, Store, sanitizeState, type UiState };
