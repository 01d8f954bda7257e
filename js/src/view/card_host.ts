// What a card asks of the cockpit around it.
import type { PointerHost } from "./pointer.ts";

export interface CardHost extends PointerHost {
  enlarge(id: string): void;
  hide(id: string): void;
  nudge(id: string, direction: "up" | "down" | "left" | "right"): void;
  drop(id: string, target: string, after: boolean): void;
  announce(text: string): void;
}
