// What is known about a run besides its curves, as flat text: how two runs differ, and which differ only in their seed.
import { groupBlocks } from "../data/blocks.ts";
import { formatNumber, formatShare } from "../data/format.ts";
import type { Header, LayerInfo } from "../data/records.ts";
import { countColor, toHex } from "../draw/colors.ts";

const SEED = /(^|[^a-z])seed($|[^a-z])/i;

/** "4 × (LayerNorm, Linear 32→96, …), Linear 32→86": the modules in order, equal blocks in a row once. */
export function describeNetwork(layers: LayerInfo[]): string {
  const known = new Map(layers.map((layer) => [layer.name, layer]));
  const words = groupBlocks(layers.map(({ name }) => name)).map((block) => {
    const tensors = block.layers.flatMap((name) => known.get(name) ?? []);
    const own = tensors.filter(({ name, shape }) => shape.length > 1 || !/bias$/.test(name));
    return own.map(({ module, shape: [out, inner] }) => `${module}${inner ? ` ${inner}→${out}` : ""}`).join(", ");
  });
  const parts: { text: string; times: number }[] = [];
  for (const text of words.filter(Boolean)) {
    const last = parts.at(-1);
    if (last?.text === text) last.times++;
    else parts.push({ text, times: 1 });
  }
  return parts.map(({ text, times }) => (times > 1 ? `${times} × (${text})` : text)).join(", ");
}

/** How many weights follow each other: tensors with two dimensions or more. */
export const countDepth = (layers: LayerInfo[]) => layers.filter(({ shape }) => shape.length > 1).length;

const DEFAULTS = new Set(["False", "None", "0", "0.0", "(0.9, 0.999)", "1e-08", "268435456"]);
/** What nobody has to read: options with their default values. */
export const isDefault = (name: string, value: string) => DEFAULTS.has(value) || name === "decoupled_weight_decay";

/** The curvature of the run, and of what was measured with another one. */
function describeCurvature({ curvature, quantities }: Header): string {
  const others = quantities.filter(({ options }) => options.curvature && options.curvature !== curvature);
  return [curvature, ...others.map(({ name, options }) => `${name}: ${options.curvature}`)].join("; ");
}

/** Lists of layers that diagnoses read, and nobody else. */
const WIRING = /^activations$|^(constant|copied|fresh) weights$|^linear pairs$/;

/** A schedule begins with a rate of its own: the one that it leads to is what the user chose. */
function withPeak({ initial_lr, max_lr, ...group }: Record<string, string>): Record<string, string> {
  const lr = max_lr ?? initial_lr;
  return lr === undefined ? group : { ...group, lr };
}

/** Everything a header says that a reader may want to know. */
export function describeHeader(header: Header): Map<string, string> {
  const facts = new Map<string, string>();
  const put = (name: string, value: string | number) => String(value) && facts.set(name, String(value));
  put("model", header.model);
  put("parameters", formatNumber(header.num_parameters));
  put("loss", header.loss);
  header.optimizers.forEach((optimizer, i) => {
    const prefix = header.optimizers.length > 1 ? `optimizer ${i}` : "optimizer";
    put(prefix, optimizer.name);
    optimizer.groups.forEach((group, g) => {
      for (const [name, value] of Object.entries(withPeak(group)))
        put(optimizer.groups.length > 1 ? `${name} (group ${g})` : name, value);
    });
  });
  put("batch size", header.batch_size || "");
  put("config", header.config);
  put("schedule", header.schedule);
  put("curvature", describeCurvature(header));
  put("git commit", header.git_commit.slice(0, 12));
  for (const [name, value] of Object.entries(header.versions)) put(`${name} version`, value);
  for (const [name, value] of Object.entries(header.options)) if (!WIRING.test(name)) put(name, value);
  if (header.covered < 0.9995) put("parameters covered", formatShare(header.covered));
  const left = header.layers.filter(({ method }) => method === "not covered");
  for (const { name, reason } of left.slice(0, 12)) put(`${name} not covered`, reason);
  for (const [i, note] of header.notes.entries()) put(header.notes.length > 1 ? `note ${i + 1}` : "note", note);
  return facts;
}

/** Names of facts that are not the same in all of these headers. */
export function differingNames(headers: (Header | null)[]): string[] {
  const facts = headers.map((header) => (header ? describeHeader(header) : new Map<string, string>()));
  const names = [...new Set(facts.flatMap((own) => [...own.keys()]))];
  return names.filter((name) => new Set(facts.map((own) => own.get(name))).size > 1);
}

// How a run was watched, where and when, not how it was trained: as `cockpit compare` has it.
const ASIDE = new Set([
  ...["logdir", "batch_dim", "memory_budget", "budget", "hardware", "threads", "trial", "stage", "git commit"],
  ...["left out", "start kept", "lent for early steps", "loss function"],
  ...["config", "schedule", "curvature", "parameters covered", "foreach", "fused", "capturable", "differentiable"],
]);
export const isAside = (name: string) =>
  SEED.test(name) || ASIDE.has(name) || /^note( \d+)?$| version$| not covered$/.test(name);

/** The same text for runs that differ only in their seed. */
export function groupKey(header: Header | null): string {
  if (!header) return "";
  const facts = [...describeHeader(header)].filter(([name]) => !isAside(name));
  return JSON.stringify(facts);
}

/** What runs of one group are called: what their names have in common, without the seed. */
export function groupLabel(names: string[]): string {
  if (names.length === 1) return names[0];
  let size = 0;
  while (names.every((name) => size < name.length && name[size] === names[0][size])) size++;
  const common = names[0].slice(0, size).replace(/[\W_]*(seed|s|run)?[\W_\d]*$/i, "") || names[0].slice(0, size);
  return `${common || names[0]} (${names.length})`;
}

/** Dark to light along the values of a number, on a log scale where they span decades; null where there is no number. */
export function sequentialColors(values: (number | null)[], dark: boolean): (string | null)[] {
  const known = values.filter((value): value is number => value !== null && Number.isFinite(value));
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const log = low > 0 && high / low > 20;
  const to = (value: number) => (log ? Math.log(value) : value);
  const [from, until] = dark ? [0.25, 1] : [0, 0.8]; // what can be seen on the card
  return values.map((value) => {
    if (value === null || !Number.isFinite(value)) return null;
    const share = high > low ? (to(value) - to(low)) / (to(high) - to(low)) : 0.5;
    return toHex(countColor(from + (until - from) * share));
  });
}
