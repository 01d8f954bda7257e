// A table as a picture: panels that are tables can be saved like all others.
import { shorten } from "../data/format.ts";
import { emptyScene, type Scene } from "../draw/scene.ts";
import type { Theme } from "../draw/theme.ts";

const [LETTER, LINE, MOST] = [6.4, 18, 70];

/** Columns as wide as their longest text, one line per row, the first row as its head. */
export function tableScene(rows: string[][], theme: Theme): Scene {
  const texts = rows.map((row) => row.map((text) => shorten(text.replace(/\s+/g, " ").trim(), MOST)));
  const widths = (texts[0] ?? []).map((_, c) => LETTER * Math.max(...texts.map((row) => (row[c] ?? "").length)) + 18);
  const width = Math.max(
    240,
    widths.reduce((sum, own) => sum + own, 20),
  );
  const scene = emptyScene(width, texts.length * LINE + 12);
  texts.forEach((row, r) => {
    let x = 10;
    const y = 6 + (r + 0.5) * LINE;
    row.forEach((text, c) => {
      scene.marks.push({ type: "text", x, y, text, color: r ? theme.text : theme.quiet, bold: !r });
      x += widths[c] ?? 0;
    });
    const edge = y + LINE / 2;
    scene.marks.push({ type: "line", xs: [10, width - 10], ys: [edge, edge], stroke: theme.line });
  });
  return scene;
}

export const tableRows = (element: HTMLElement): string[][] =>
  [...element.querySelectorAll("tr")].map((row) => [...row.cells].map((cell) => cell.innerText ?? cell.textContent));
