// What the user chose. It fits into a URL, survives a re-run cell, and is the only thing that panels react to besides data.
import type { Axis } from "../data/series.ts";

export type YScale = "auto" | "linear" | "log";
export interface UiState {
  runs: string[] | null; // chosen runs; null = the first ten
  filter: string;
  step: number | null; // null = follow the latest
  layer: string; // "" = the whole network
  axis: Axis;
  xlog: boolean;
  yscale: YScale;
  ylog: Record<string, boolean>; // per panel, where it differs from the choice above
  smoothing: number;
  zoom: [number, number] | null; // in units of the axis
  recent: number; // the last part of the run that Alpha sets apart
  split: Record<string, boolean>; // panels that show one line per layer
  hidden: string[];
  shown: string[]; // panels that stand aside and are wanted
  order: string[][] | null; // ids by column, the last entry is the row below
  enlarged: string;
  theme: "auto" | "light" | "dark";
  safe: boolean; // colour-blind safe run colours even where the host has its own
  view: "" | "compact" | "full"; // "" = as the host begins
  map: string; // what the map of the network shows
  unfolded: string[]; // blocks of it that are shown the other way: unfolded where they do not all fit, else folded
  sort: string; // column of the table of runs, "-" before it for the other way round
  colorBy: string; // a number of the header that colours the runs, e.g. "lr"
  grouped: boolean; // runs that differ only in their seed are one curve with a band
  reference: string; // the run that others are compared with
  lens: "" | "contrary" | "often"; // which of the hard samples come first
  settings: string; // the hyperparameter on the axis of the panel of settings
  difference: boolean; // 2D histogram: second run minus first
  paused: boolean;
}

export const defaults: Readonly<UiState> = {
  runs: null,
  filter: "",
  step: null,
  layer: "",
  axis: "step",
  xlog: false,
  yscale: "auto",
  ylog: {},
  smoothing: 0, // an average hides the step at which something broke
  zoom: null,
  recent: 0.1,
  split: {},
  hidden: [],
  shown: [],
  order: null,
  enlarged: "",
  theme: "auto",
  safe: false,
  view: "",
  map: "",
  unfolded: [],
  sort: "",
  colorBy: "",
  grouped: false,
  reference: "",
  lens: "",
  settings: "",
  difference: false,
  paused: false,
};

type Check = (value: unknown) => boolean;
const isText: Check = (v) => typeof v === "string" && v.length <= 20_000;
const isFlag: Check = (v) => typeof v === "boolean";
const isTextList: Check = (v) => Array.isArray(v) && v.length <= 1000 && v.every(isText);
const isFlags: Check = (v) =>
  typeof v === "object" && v !== null && !Array.isArray(v) && Object.values(v).every(isFlag);
const isBetween =
  (low: number, high: number): Check =>
  (v) =>
    typeof v === "number" && v >= low && v <= high;
const orNull =
  (check: Check): Check =>
  (v) =>
    v === null || check(v);
const oneOf =
  (...values: string[]): Check =>
  (v) =>
    values.includes(v as string);
const isRange: Check = (v) => Array.isArray(v) && v.length === 2 && v.every(Number.isFinite) && v[0] < v[1];

// The state comes from URLs and saved notebooks, so from strangers: what does not fit is left at its default.
const checks: Record<keyof UiState, Check> = {
  runs: orNull(isTextList),
  filter: isText,
  step: orNull(isBetween(0, 4294967295)),
  layer: isText,
  axis: oneOf("step", "epoch", "time"),
  xlog: isFlag,
  yscale: oneOf("auto", "linear", "log"),
  ylog: isFlags,
  smoothing: isBetween(0, 0.999),
  zoom: orNull(isRange),
  recent: isBetween(0.01, 1),
  split: isFlags,
  hidden: isTextList,
  shown: isTextList,
  order: orNull((v) => Array.isArray(v) && v.length <= 5 && v.every(isTextList)),
  enlarged: isText,
  theme: oneOf("auto", "light", "dark"),
  safe: isFlag,
  view: oneOf("", "compact", "full"),
  map: isText,
  unfolded: isTextList,
  sort: isText,
  colorBy: isText,
  grouped: isFlag,
  reference: isText,
  lens: oneOf("", "contrary", "often"),
  settings: isText,
  difference: isFlag,
  paused: isFlag,
};

export function sanitizeState(value: unknown): UiState {
  const state: Record<string, unknown> = { ...defaults };
  if (typeof value === "object" && value !== null)
    for (const [key, check] of Object.entries(checks)) {
      const own = (value as Record<string, unknown>)[key];
      if (own !== undefined && check(own)) state[key] = own;
    }
  return state as unknown as UiState;
}

/** Only what differs from the defaults, as short JSON. */
export function encodeState(state: UiState): string {
  const keys = Object.keys(defaults) as (keyof UiState)[];
  const changed = keys.filter((key) => JSON.stringify(state[key]) !== JSON.stringify(defaults[key]));
  return changed.length ? JSON.stringify(Object.fromEntries(changed.map((key) => [key, state[key]]))) : "";
}

export function decodeState(text: string): UiState {
  try {
    return sanitizeState(JSON.parse(text));
  } catch {
    return sanitizeState(null);
  }
}
