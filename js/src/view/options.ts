// What a host may choose when it mounts the cockpit.
import type { UiState } from "../contract/state.ts";
import type { SourceStatus } from "../data/source.ts";
import type { Store } from "../data/store.ts";

export interface MountOptions {
  store?: Store; // shared by several views; then the caller feeds it (see `feed`) and starts the source
  state?: UiState;
  onState?: (state: UiState) => void;
  theme?: "light" | "dark"; // what the host shows; without it the system's choice is followed
  palette?: "tensorboard" | "safe";
  panels?: string[]; // ids, if only some are wanted
  compact?: boolean; // begin as a low strip (true) that can be expanded; without it there is no strip
  height?: number | string; // of the whole; it scrolls inside. Without it the cockpit is as tall as it needs
  status?: SourceStatus;
  onTheme?: (dark: boolean, page: string) => void; // so that the page around can follow
}
