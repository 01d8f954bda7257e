import { defineConfig } from "vitest/config";

// One page and one set of modules for all files of a worker: making them anew for each took a sixth of the time. The tests
// clear the page after themselves; what modules remember hangs on objects that are gone by then.
export default defineConfig({
  test: {
    include: ["js/tests/**/*.test.ts"],
    setupFiles: ["js/tests/setup.ts"],
    environment: "happy-dom",
    testTimeout: 60_000,
    pool: "threads",
    isolate: false,
  },
});
