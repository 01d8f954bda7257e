// The state of training in a few words: what it does, how fast, what tracking costs, what is missing.

import type { Context, ShownRun } from "../contract/panel.ts";
import { formatDuration, formatNumber, formatShare, shorten } from "../data/format.ts";
import type { SourceStatus } from "../data/source.ts";
import { ROW } from "../data/store.ts";
import { trackingBudget, trackingShare } from "../judge/costs.ts";
import { healthOf, toneRank } from "../judge/health.ts";
import { drawnRecords } from "./detail.ts";

export interface Summary {
  tone: "wait" | "live" | "done" | "bad" | "idle";
  words: { text: string; title?: string }[];
}

// A map, because a file may name a state as it likes: every object has a "constructor".
const stateWords = new Map<string, [Summary["tone"], string]>([
  ["waiting", ["wait", "waiting for the first step"]],
  ["running", ["live", "live"]],
  ["finished", ["done", "finished"]],
  ["stopped", ["done", "stopped"]],
  ["failed", ["bad", "failed"]],
  ["crashed", ["bad", "crashed"]],
]);

/** Steps per second over the last twenty records. */
export function speed(run: ShownRun): number | null {
  const { rows } = run.data;
  const from = Math.max(1, rows.n - 20); // the very first record says "start"; before the first step something may compile
  if (rows.n - from < 2) return null;
  const [steps, times] = [rows.columns[ROW.step], rows.columns[ROW.time]];
  const [seconds, taken] = [times[rows.n - 1] - times[from], steps[rows.n - 1] - steps[from]];
  return seconds > 0 && taken > 0 ? taken / seconds : null;
}

const QUIET = "A long step, or the training was interrupted: its cell, its process or its machine.";
const PATIENCE = 4; // seconds without a record before that is said; more if records came slower

/** Seconds since the last record of a run that should bring more, if that is longer than its records lead one to expect. */
export function silence({ data }: ShownRun, now = performance.now()): number | null {
  const { rows, status, heard } = data;
  if (status.state !== "running" || rows.n < 2) return null;
  const times = rows.columns[ROW.time];
  const from = Math.max(0, rows.n - 20);
  const usual = (times[rows.n - 1] - times[from]) / Math.max(1, rows.n - 1 - from);
  const passed = (now - heard) / 1000;
  return passed > Math.max(PATIENCE, 5 * usual) ? passed : null;
}

export function summarize(ctx: Context, status: SourceStatus, broken: number): Summary {
  const words: Summary["words"] = [];
  const run = ctx.runs.find(({ data }) => data.status.state === "running") ?? ctx.runs[0];
  if (status.connection === "disconnected")
    words.push({ text: status.message ?? "disconnected", title: "No connection to the host; trying again." });
  if (!run) {
    if (!words.length) words.push({ text: status.message ?? "no run yet" });
    return { tone: status.connection === "disconnected" ? "bad" : "wait", words };
  }
  const { data } = run;
  let [tone, state] = stateWords.get(data.status.state) ?? ["idle", data.status.state];
  const { tone: health } = healthOf(run); // what ended sick did not end well: no green
  if (tone === "done" && toneRank(health) < 2) tone = health === "broken" ? "bad" : "idle";
  if (status.connection === "disconnected") tone = "bad";
  else if (ctx.state.paused && tone === "live") [tone, state] = ["idle", "paused"];
  const quiet = tone === "live" ? silence(run) : null;
  if (quiet !== null) [tone, state] = ["wait", `no record for ${formatDuration(Math.floor(quiet))}`];
  if (ctx.runs.length > 1) words.push({ text: shorten(run.label, 24), title: run.label });
  if (status.connection !== "disconnected" || state !== "live")
    words.push({ text: state, title: data.status.error || (quiet === null ? undefined : QUIET) });
  if (data.status.error) words.push({ text: data.status.error.slice(0, 80), title: data.status.error });
  const begun = data.status.state !== "waiting"; // the record that says "start" is no step
  if (begun && data.lastStep !== null) words.push({ text: `step ${formatNumber(data.lastStep)}` });
  const rate = speed(run);
  if (tone === "live" && rate !== null) words.push({ text: `${formatNumber(rate, 2)} steps/s` });
  if (begun && data.rows.n)
    words.push({
      text: formatDuration(data.rows.columns[ROW.time][data.rows.n - 1]),
      title: "time since the run began",
    });
  const [share, budget] = [trackingShare(run), trackingBudget(run)];
  if (share !== null)
    words.push({
      text: `tracking ${formatShare(share)}${budget === null ? "" : ` (budget ${formatShare(budget)})`}`,
      title: `share of the training time that measuring took${budget === null ? "" : ", and the budget for it"}`,
    });
  if (status.message && status.connection !== "disconnected")
    words.push({ text: status.message.slice(0, 80), title: status.message });
  words.push(...gaps(ctx, run, status, broken));
  return { tone, words };
}

function gaps(ctx: Context, run: ShownRun, status: SourceStatus, broken: number): Summary["words"] {
  const words: Summary["words"] = [];
  const { data } = run;
  const { records, expected } = data.status;
  const covered = data.header?.covered ?? 1;
  if (covered < 0.9995)
    words.push({
      text: `${formatShare(covered)} of parameters covered`,
      title: "Individual gradients of the others cannot be measured; the panel about the run names them.",
    });
  if (records < expected)
    words.push({
      text: `${formatNumber(records)} of ${formatNumber(expected)} records`,
      title: "The host does not have all of them.",
    });
  const [drawn, inSight] = data.decimated.size ? drawnRecords(ctx, run) : [0, 0];
  const there = ctx.state.zoom ? Math.min(inSight, records) : records;
  if (data.decimated.size && drawn < there - Math.max(2, 0.002 * there))
    // start and end of a run have no values
    words.push({
      text: `${formatNumber(drawn)} of ${formatNumber(there)} records drawn`,
      title: `A long run is thinned for the screen; every extreme is drawn.${ctx.source.detail ? " Zoom in to see them all." : ""}`,
    });
  if (data.noticesLost)
    words.push({
      text: `${formatNumber(data.noticesLost)} warnings left out`,
      title: "The first and the newest are kept; the log has them all.",
    });
  if (status.progress !== undefined && status.progress < 1)
    words.push({ text: `loading ${Math.round(status.progress * 100)} %` });
  const damaged = data.status.broken + broken;
  if (damaged) words.push({ text: `${damaged} broken ${damaged === 1 ? "record" : "records"} skipped` });
  return words;
}
