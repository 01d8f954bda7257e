// Colour scales that are even to the eye and readable without colour vision: dark to light for counts, blue to orange for
// differences.

const countStops = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"];
const negative = ["#08519c", "#3182bd", "#9ecae1"];
const positive = ["#fdbe85", "#e6700a", "#8f3b00"];

const channels = (hex: string) => [1, 3, 5].map((at) => Number.parseInt(hex.slice(at, at + 2), 16));
const [counts, below, above] = [countStops, [...negative].reverse(), positive].map((stops) => stops.map(channels));

function along(stops: number[][], t: number): number[] {
  const place = (t < 1 ? Math.max(0, t) : 1) * (stops.length - 1); // what is no number is at the end
  const low = Math.min(stops.length - 2, Math.floor(place));
  const [a, b] = [stops[low], stops[low + 1]];
  return a.map((value, i) => Math.round(value + (b[i] - value) * (place - low)));
}

export const countColor = (t: number) => along(counts, t);
/** t from -1 to 1; 0 is nothing. */
export const differenceColor = (t: number) => (t < 0 ? along(below, -t) : along(above, t));

export const toHex = (rgb: number[]) => `#${rgb.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
