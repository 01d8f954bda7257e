// Colours in two themes. Text meets contrast AA (4.5) on its background; data colours differ in lightness as well as hue.

export interface Theme {
  dark: boolean;
  page: string;
  card: string;
  line: string; // borders, grid
  text: string;
  quiet: string; // labels, still AA
  faint: string; // data in the background
  accent: string;
  warn: string;
  good: string;
  series: string[]; // series of one run in one panel
}

export const light: Theme = {
  dark: false,
  page: "#f4f5f7",
  card: "#ffffff",
  line: "#e1e4e8",
  text: "#16191d",
  quiet: "#59626d",
  faint: "#aab2bb",
  accent: "#0072b2",
  warn: "#b0306a",
  good: "#0b7a5c",
  series: ["#0072b2", "#d55e00", "#009e73", "#8a5aa8", "#b58900", "#3aa0d8"],
};

export const dark: Theme = {
  dark: true,
  page: "#0e1116",
  card: "#171c23",
  line: "#2b323b",
  text: "#eef1f4",
  quiet: "#9aa5b1",
  faint: "#66707c",
  accent: "#4db5f5",
  warn: "#f48fb1",
  good: "#4fd1a5",
  series: ["#4db5f5", "#ffb454", "#4fd1a5", "#c9a0e8", "#e8d44d", "#9bd3f5"],
};

// TensorBoard's own, so that a run has one colour in all of its tabs.
const tensorboard = ["#425066", "#12b5cb", "#e52592", "#f9ab00", "#9334e6", "#7cb342", "#e8710a"];

const mix = (from: string, to: string, share: number) => {
  const target = parseColor(to);
  const mixed = parseColor(from).map((c, i) => Math.round(c + (target[i] - c) * share));
  return `#${mixed.map((c) => c.toString(16).padStart(2, "0")).join("")}`;
};

/** TensorBoard begins again after seven runs; here the second round is lighter, the third darker, so that they differ. */
export function runColor(index: number, palette: "tensorboard" | "safe", theme: Theme): string {
  const colors = palette === "safe" ? theme.series : tensorboard;
  const plain = colors[index % colors.length];
  const color = theme.dark && plain === "#425066" ? "#8e98a3" : plain;
  const round = Math.floor(index / colors.length) % 3;
  return round ? mix(color, round === 1 ? theme.card : theme.text, 0.42) : color;
}

/** Colours of further series of a run: none that looks like the run's own. */
export function seriesColor(own: string, index: number, theme: Theme): string {
  const [first, ...rest] = theme.series;
  const far = [...rest, first].filter((color) => distance(color, own) > 75);
  const best = far.filter((color) => !hasHueOf(color, own)); // two oranges are one colour to the eye
  const order = [...best, ...far.filter((color) => !best.includes(color))];
  return order[(index - 1) % order.length];
}

/** Within 20 degrees of the colour circle; greys have no hue. */
function hasHueOf(a: string, b: string): boolean {
  const [one, other] = [a, b].map(hueOf);
  if (one === null || other === null) return false;
  const apart = Math.abs(one - other);
  return Math.min(apart, 360 - apart) < 20;
}

function hueOf(color: string): number | null {
  const [red, green, blue] = parseColor(color);
  const [most, span] = [Math.max(red, green, blue), Math.max(red, green, blue) - Math.min(red, green, blue)];
  if (span < 0.25 * most || !most) return null;
  if (most === red) return (60 * ((green - blue) / span) + 360) % 360;
  return most === green ? 60 * ((blue - red) / span) + 120 : 60 * ((red - green) / span) + 240;
}

const distance = (a: string, b: string) => {
  const other = parseColor(b);
  return Math.hypot(...parseColor(a).map((c, i) => c - other[i]));
};

export function themeVariables(theme: Theme): Record<string, string> {
  const { page, card, line, text, quiet, faint, accent, warn, good } = theme;
  return Object.fromEntries(
    Object.entries({ page, card, line, text, quiet, faint, accent, warn, good }).map(([k, v]) => [`--ck-${k}`, v]),
  );
}

export function parseColor(hex: string): [number, number, number] {
  const value = Number.parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

/** A data colour as text: mixed with the text colour until it meets contrast AA on a card. */
export function readable(color: string, theme: Theme): string {
  const known = readables.get(theme)?.get(color);
  if (known) return known;
  let mixed = color;
  for (let share = 0.1; contrast(mixed, theme.card) < 4.5 && share < 1.05; share += 0.1)
    mixed = mix(color, theme.text, Math.min(1, share));
  if (!readables.has(theme)) readables.set(theme, new Map());
  readables.get(theme)?.set(color, mixed);
  return mixed;
}
const readables = new Map<Theme, Map<string, string>>();

/** WCAG contrast ratio of two colours. */
export function contrast(a: string, b: string): number {
  const luminance = (hex: string) => {
    const [r, g, blue] = parseColor(hex).map((c) => {
      const s = c / 255;
      return s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * blue;
  };
  const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
}
