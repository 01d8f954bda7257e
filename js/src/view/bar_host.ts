// What the bar and its menus ask of the cockpit around them.
import type { Context } from "../contract/panel.ts";
import type { UiState } from "../contract/state.ts";
import type { Source } from "../data/source.ts";

/** A panel as the View menu lists it. */
export interface PanelTitle {
  id: string;
  title: string;
  shown: boolean;
  aside: boolean; // there only if somebody wants it
}

export interface BarHost {
  state: UiState;
  names: string[];
  context(): Context;
  set(patch: Partial<UiState>): void;
  panelTitles(): PanelTitle[];
  exportAll(): void;
  readonly compact: boolean;
  readonly folds: boolean;
  source: Source;
}
