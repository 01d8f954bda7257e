// Numbers for people: four significant digits at most, the same width everywhere, a real minus sign.

const minus = (text: string) => text.replace("-", "−");

// toLocaleString does the same, a hundred times slower: it was a tenth of every frame.
const thousands = (value: number) => String(value).replace(/\B(?=(\d{3})+$)/g, ",");

export function formatNumber(value: number, digits = 3): string {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e7) return minus(thousands(value));
  if (size >= 1e5 || size < 1e-3) {
    const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
    return minus(`${Number(mantissa)}e`) + minus(String(Number(exponent)));
  }
  if (size >= 1000) return minus(thousands(Math.round(value)));
  return minus(String(Number(value.toPrecision(digits))));
}

export function formatCount(value: number): string {
  if (value >= 1e9) return `${Number((value / 1e9).toPrecision(3))}G`;
  if (value >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (value >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
  return formatNumber(value);
}

export function formatShare(share: number): string {
  const percent = share * 100;
  if (!(percent > 0)) return "0 %";
  if (percent < 0.01) return "< 0.01 %";
  if (percent >= 99.5 && percent < 100) return "> 99 %";
  return `${Number(percent.toPrecision(2))} %`;
}

export function formatDuration(seconds: number): string {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 1) return `${Number((seconds * 1000).toPrecision(2))} ms`;
  if (seconds < 60) return `${Number(seconds.toFixed(1))} s`;
  if (seconds > 1e8) return `${formatNumber(seconds)} s`;
  const whole = Math.floor(seconds);
  const two = (value: number) => String(value).padStart(2, "0");
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

/** Axis labels: 0.1, 1, 10, 1k, 1e6. */
export function formatTick(value: number): string {
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size >= 1e6 || size < 1e-3) {
    const [mantissa, exponent] = value.toExponential(2).split("e");
    const head = Number(mantissa);
    return minus(`${head}e`) + minus(String(Number(exponent)));
  }
  if (size >= 1000) return minus(`${Number((value / 1000).toPrecision(6))}k`);
  return minus(String(Number(value.toPrecision(6))));
}

/** Names come from users: control and direction characters are made visible, and the middle of a long one is left out. */
export function shorten(name: string, length = 40): string {
  const clean = name.replace(/[\u0000-\u001f\u007f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "·");
  const points = [...clean.slice(0, 20_000)];
  if (points.length <= length) return clean;
  const head = Math.ceil((length - 1) / 2);
  return `${points.slice(0, head).join("")}…${points.slice(points.length - (length - 1 - head)).join("")}`;
}

const initials = (word: string) =>
  word
    .split("_")
    .map((part) => part.slice(0, 1).replace(/\d/, "") + (/\d+$/.exec(part)?.[0] ?? "")) // linear1 -> l1
    .join("");

/**
 * Dotted names in at most `length` letters each, so that they can still be told apart: first without their common beginning,
 * then with modules by their initials (`encoder.layers.0.self_attn.in_proj_weight` -> `e.l.0.sa.in_proj_weight`), at last
 * by number. The whole name belongs in a title.
 */
export function shortNames(names: string[], length: number): Map<string, string> {
  const words = new Map(names.map((name) => [name, shorten(name, 20_000).split(".")]));
  const lists = [...words.values()];
  let shared = 0;
  while (lists.length > 1 && lists.every((own) => own.length > shared + 1 && own[shared] === lists[0][shared]))
    shared++;
  const forms: ((own: string[]) => string)[] = [
    (own) => own.join("."),
    (own) => (shared ? `…${own.slice(shared).join(".")}` : own.join(".")),
    (own) => [...own.slice(shared, -1).map(initials), own[own.length - 1]].join("."),
    (own) => own.slice(shared).map(initials).join("."),
  ];
  const short = new Map<string, string>();
  for (const form of forms) {
    const texts = new Map([...words].map(([name, own]) => [name, form(own)]));
    const times = new Map<string, number>();
    for (const text of [...texts.values(), ...short.values()]) times.set(text, (times.get(text) ?? 0) + 1);
    for (const [name, text] of texts)
      if (!short.has(name) && [...text].length <= length && times.get(text) === 1) short.set(name, text);
  }
  names.forEach((name, i) => {
    if (short.has(name)) return;
    const number = `${i + 1} `;
    const room = Math.max(1, length - number.length - 1);
    short.set(name, `${number}…${[...shorten(name, 20_000)].slice(-room).join("")}`);
  });
  return short;
}
