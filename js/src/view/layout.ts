// Which panel stands where: three columns of one group each, evened out with the panels of the row below.
import type { Section } from "../contract/panel.ts";

export interface Placeable {
  id: string;
  group: Section;
  order: number;
  height: number;
}
const columnGroups: Section[] = ["step", "gradients", "curvature"];
const frame = 92; // header, note and gap of a card

export const groupTitles: Record<Section, string> = {
  first: "First",
  step: "Step size",
  gradients: "Gradients",
  curvature: "Curvature",
  training: "Training",
  about: "About the runs",
};

export function columnCount(width: number): number {
  return width >= 1060 ? 3 : width >= 680 ? 2 : 1;
}

const total = (column: Placeable[]) => column.reduce((sum, panel) => sum + panel.height + frame, 0);

function shortest(columns: Placeable[][]): Placeable[] {
  return columns.reduce((best, column) => (total(column) < total(best) ? column : best));
}

/** Lists of ids: the row on top, one per column, then the row below. A saved order is followed where it fits the number of columns. */
export function arrange(panels: Placeable[], count: number, saved: string[][] | null): string[][] {
  const sorted = [...panels].sort((a, b) => a.order - b.order);
  if (saved && saved.length === count + 2) return arrangeSaved(sorted, saved);
  return defaultOrder(sorted, count);
}

function defaultOrder(sorted: Placeable[], count: number): string[][] {
  const of = (group: Section) => sorted.filter((panel) => panel.group === group);
  const rest = [...of("training"), ...of("about")];
  const first = of("first").map((panel) => panel.id);
  const groups = columnGroups.map(of).filter((column) => column.length);
  if (count === 1) return [first, [...groups.flat(), ...rest].map((panel) => panel.id), []];
  const columns = groups.slice(0, count);
  while (columns.length < count) columns.push([]);
  for (const column of groups.slice(count)) for (const panel of column) shortest(columns).push(panel);
  const target = Math.max(...columns.map(total));
  while (rest.length) {
    const column = shortest(columns);
    if (column.length && total(column) + rest[0].height + frame > target + 120) break;
    if (!column.length && !groups.length && rest.length <= 1) break;
    column.push(rest.shift() as Placeable);
    if (!groups.length && columns.every((own) => own.length)) break;
  }
  return [first, ...[...columns, rest].map((column) => column.map((panel) => panel.id))];
}

function arrangeSaved(sorted: Placeable[], saved: string[][]): string[][] {
  const known = new Map(sorted.map((panel) => [panel.id, panel]));
  const lists = saved.map((column) => column.filter((id) => known.delete(id)));
  for (const panel of known.values()) {
    const at = Math.min(columnGroups.indexOf(panel.group), lists.length - 3);
    lists[panel.group === "first" ? 0 : at < 0 ? lists.length - 1 : at + 1].push(panel.id);
  }
  return lists;
}

/** The arrangement after `id` was put before `before` (or at the end of list `column`). */
export function movePanel(lists: string[][], id: string, column: number, before: string | null): string[][] {
  const without = lists.map((list) => list.filter((own) => own !== id));
  const target = without[Math.max(0, Math.min(column, without.length - 1))];
  const at = before === null ? -1 : target.indexOf(before);
  target.splice(at < 0 ? target.length : at, 0, id);
  return without;
}

/** One place up, down, left or right, for the keyboard. */
export function nudgePanel(lists: string[][], id: string, direction: "up" | "down" | "left" | "right"): string[][] {
  const column = lists.findIndex((list) => list.includes(id));
  if (column < 0) return lists;
  const at = lists[column].indexOf(id);
  if (direction === "left" || direction === "right") {
    const to = column + (direction === "left" ? -1 : 1);
    return to < 0 || to >= lists.length ? lists : movePanel(lists, id, to, lists[to][at] ?? null);
  }
  const to = at + (direction === "up" ? -1 : 2);
  if (to < 0) return lists;
  return movePanel(lists, id, column, lists[column][to] ?? null);
}
