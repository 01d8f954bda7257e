// A page that a test leaves behind must not draw when the page of all tests is gone: what it has put off is dropped with its file.
import { afterAll } from "vitest";

const waiting = new Set<ReturnType<typeof setTimeout>>();
const plain = globalThis.setTimeout;

globalThis.setTimeout = ((act: (...args: unknown[]) => void, wait?: number, ...args: unknown[]) => {
  const timer = plain(() => {
    waiting.delete(timer);
    act(...args);
  }, wait);
  waiting.add(timer);
  return timer;
}) as typeof setTimeout;

afterAll(() => {
  for (const timer of waiting) clearTimeout(timer);
  waiting.clear();
  globalThis.setTimeout = plain;
});
