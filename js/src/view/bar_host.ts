// What the bar and its menus ask of the cockpit around them.
import type { Context } from "../contract/panel.ts";
import type { UiState } from "../contract/state.ts";
import type { Source } from "../data/source.ts";

export interface BarHost {
  state: UiState;
  names: string[];
  context(): Context;
  set(patch: Partial<UiState>): void;
  panelTitles(): { id: string; title: string }[];
  exportAll(): void;
  readonly compact: boolean;
  readonly folds: boolean;
  source: Source;
}
