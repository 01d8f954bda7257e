import { describe, expect, it } from "vitest";
import { columnsCsv, csvField } from "../src/contract/export.ts";
import type { UiState } from "../src/contract/state.ts";
import { decodeState, encodeState } from "../src/contract/state.ts";
import { makeBatch, makeHeader, opener, startWith, distinct as value } from "./helpers.ts";

const show = opener();
const start = startWith(show);

describe("a screen reader", () => {
  it("finds the values of every chart in a table, and a name on every control", () => {
    const own = start();
    own.app.set({ step: 37 });
    own.app.draw();
    for (const card of own.element.querySelectorAll<HTMLElement>(".ck-card"))
      own.app.card(card.dataset.panel ?? "")?.tell();
    const rows = [...own.card("loss").querySelectorAll(".ck-values tbody tr")].map((row) =>
      [...row.children].map((cell) => cell.textContent),
    );
    expect(rows).toEqual([["loss", String(value(37, "Loss")), "37"]]);
    expect(own.card("loss").querySelector(".ck-chart")?.getAttribute("aria-label")).toContain("at step 37");
    const layers = own.card("grad_hist_layers").querySelector(".ck-values")?.textContent ?? "";
    expect(layers).toContain("fc.weight");
    for (const control of own.element.querySelectorAll<HTMLElement>("button, select, input, [tabindex]")) {
      const name =
        control.getAttribute("aria-label") ||
        control.textContent?.trim() ||
        control.closest("label")?.textContent ||
        document.getElementById(control.getAttribute("aria-labelledby") ?? "")?.textContent;
      expect(name, control.outerHTML).toBeTruthy();
    }
  });
});

describe("warnings", () => {
  it("lead to their step and layer", () => {
    const own = start();
    own.card("warnings").querySelector<HTMLButtonElement>(".ck-go")?.click();
    expect([own.app.state.step, own.app.state.layer]).toEqual([2, "fc.weight"]);
  });
});

describe("the arrangement", () => {
  it("hides, moves and enlarges by menu, and tells the host", async () => {
    let told: UiState | null = null;
    const own = start({ onState: (state: UiState) => (told = state) });
    const menu = (id: string, entry: string) => {
      own.card(id).querySelector<HTMLButtonElement>("button.ck-icon")?.click();
      const items = [...own.card(id).querySelectorAll<HTMLButtonElement>(".ck-item")];
      items.find((item) => item.textContent === entry)?.click();
      own.app.draw();
    };
    menu("distance", "Move up");
    const ids = [...(own.element.querySelector(".ck-column")?.querySelectorAll<HTMLElement>(".ck-card") ?? [])].map(
      (card) => card.dataset.panel,
    );
    expect(ids.slice(0, 2)).toEqual(["distance", "alpha"]);
    menu("alpha", "Hide");
    expect(own.card("alpha")).toBeNull();
    menu("loss", "Enlarge");
    expect(own.element.querySelector<HTMLElement>(".ck-stage .ck-card")?.dataset.panel).toBe("loss");
    await new Promise((resolve) => setTimeout(resolve, 200));
    expect(told).toMatchObject({ hidden: ["alpha"], enlarged: "loss" });
  });

  it("is restored from what was saved", () => {
    const state = decodeState(
      encodeState({ ...decodeState(""), hidden: ["loss"], step: 7, axis: "time", layer: "fc.weight", zoom: [1, 5] }),
    );
    const own = start({ state });
    expect(own.card("loss")).toBeNull();
    expect(own.app.context().domain).toEqual([1, 5]);
    expect(own.text(".ck-where")).toContain("step 7");
  });
});

describe("several runs", () => {
  it("can be chosen, and what differs is listed", () => {
    const cockpit = show([
      makeBatch({ to: 20 }),
      makeBatch({ run: "b", to: 20, change: { header: makeHeader({ batch_size: 8, git_commit: "def" }) } }),
    ]);
    const own = cockpit;
    const table = own.card("about").textContent ?? "";
    expect(table).toContain("batch size");
    expect(table).toContain("git commit");
    expect(table).not.toContain("MSELoss");
    own.app.set({ runs: ["b"] });
    own.app.draw();
    expect(own.card("about").textContent).toContain("MSELoss"); // one run: everything is listed
    expect(own.app.context().runs.map((run) => run.run)).toEqual(["b"]);
  });

  it("keep their colours when others come and go", () => {
    const cockpit = show([makeBatch({ run: "b", to: 5 }), makeBatch({ run: "c", to: 5 })]);
    const before = cockpit.app.context().runs.find((run) => run.run === "c")?.color;
    cockpit.app.set({ runs: ["c"] });
    cockpit.store.merge(makeBatch({ run: "a", to: 5 }));
    expect(cockpit.app.context().runs[0].color).toBe(before);
  });
});

describe("the state of training", () => {
  const status = (state: string, error = "") => ({
    state,
    error,
    last_wall_time: 1,
    records: 9,
    expected: 12,
    broken: 2,
  });

  it.each([
    ["running", "live", "ck-live"],
    ["finished", "finished", "ck-done"],
    ["crashed", "crashed", "ck-bad"],
    ["failed", "failed", "ck-bad"],
  ])("is told apart: %s", (state, word, lamp) => {
    const cockpit = show([
      makeBatch({ to: 9, change: { status: status(state, state === "failed" ? "ValueError: x" : "") } }),
    ]);
    expect(cockpit.text(".ck-state")).toBe(word);
    expect(cockpit.element.querySelector(`.ck-lamp.${lamp}`)).toBeTruthy();
    expect(cockpit.text(".ck-status")).toContain("9 of 12 records");
    expect(cockpit.text(".ck-status")).toContain("2 broken records skipped");
    if (state === "failed") expect(cockpit.text(".ck-status")).toContain("ValueError: x");
  });

  it("says when a long run was thinned for the screen", () => {
    const batch = makeBatch({ to: 9, change: { status: { ...status("running"), records: 5000, expected: 5000 } } });
    for (const column of batch.columns) column.decimated = true;
    const cockpit = show([batch]);
    expect(cockpit.text(".ck-status")).toContain("9 of 5,000 records drawn");
  });

  it("says how many parameters are covered", () => {
    const cockpit = show([makeBatch({ to: 9, change: { header: makeHeader({ covered: 0.85 }) } })]);
    expect(cockpit.text(".ck-status")).toContain("85 % of parameters covered");
  });

  it("has a stop button that asks once", () => {
    const own = start();
    const asked: string[] = [];
    Object.assign(own.source, { requestStop: (run: string) => asked.push(run) });
    own.app.draw();
    const stop = [...own.element.querySelectorAll<HTMLButtonElement>(".ck-bar button")].find(
      (button) => button.textContent === "Stop training",
    );
    stop?.click();
    expect(asked).toEqual(["a"]);
    expect(stop?.textContent).toBe("Stop requested…");
    expect(stop?.disabled).toBe(true);
  });

  it("waits in words before there is anything", () => {
    const cockpit = show([]);
    expect(cockpit.text(".ck-empty")).toContain("cockpit_core.track(");
    expect(cockpit.text(".ck-status")).toContain("no run yet");
  });
});

describe("CSV", () => {
  it("holds exactly the data", () => {
    const own = start();
    const lines = columnsCsv(own.app.context(), ["Loss"]).trim().split("\n");
    expect(lines[0]).toBe("run,step,epoch,time,name,layer,value");
    expect(lines).toHaveLength(102);
    const [run, step, epoch, time, name, layer, number] = lines[38].split(",");
    expect([run, step, epoch, name, layer]).toEqual(["a", "37", "3.7", "Loss", ""]);
    expect(Number(time)).toBeCloseTo(3.7);
    expect(Number(number)).toBe(value(37, "Loss"));
  });

  it("keeps spreadsheets from running names", () => {
    expect(csvField('=cmd|"x"')).toBe(`"'=cmd|""x"""`);
    expect(csvField(-3)).toBe("-3");
  });
});

describe("hostile names", () => {
  const evil = [
    `<img src=x onerror="globalThis.hit=1">`,
    `"><script>globalThis.hit=1</script>`,
    "a\u202eb\u0000c\n\t",
    "x".repeat(10_000),
    "__proto__",
    "مرحبا",
  ];

  it("are text, everywhere", () => {
    const layers = evil.map((name) => ({ name, shape: [1], size: 1, module: name, method: "rule", reason: name }));
    const warnings = evil.map((name) => ({ step: 1, kind: name, quantity: name, layer: name, message: name }));
    const header = makeHeader({
      name: evil[0],
      model: evil[0],
      layers,
      git_commit: evil[1],
      versions: { [evil[0]]: evil[1] },
      notes: evil,
    });
    const status = { state: evil[0], error: evil[1], last_wall_time: 1, records: 1, expected: 1, broken: 0 };
    const batches = evil.map((run) =>
      makeBatch({
        run,
        to: 30,
        names: ["Loss", "GradNorm", ...evil.map((name) => `log/${name}`), ...evil],
        layers: evil,
        change: { header, warnings, status },
      }),
    );
    const cockpit = show(batches);
    cockpit.app.set({ layer: evil[0], split: { grad_norm: true } });
    cockpit.app.draw();
    for (const button of cockpit.element.querySelectorAll<HTMLButtonElement>("button[aria-haspopup]")) button.click();
    for (const tag of ["img", "script", "iframe", "a", "svg"]) expect(cockpit.element.querySelector(tag)).toBeNull();
    expect((globalThis as { hit?: number }).hit).toBeUndefined();
    for (const span of cockpit.element.querySelectorAll(".ck-chip, .ck-title, .ck-texts span"))
      expect(span.textContent?.length ?? 0).toBeLessThan(200);
  });

  it("in a saved state are not believed", () => {
    const evilState = JSON.stringify({
      step: "<b>",
      axis: "evil",
      smoothing: 7,
      zoom: [5, 1],
      runs: [1],
      hidden: "x",
      theme: {},
      order: [["a"], 3],
      __proto__: { polluted: 1 },
    });
    expect(decodeState(evilState)).toEqual(decodeState(""));
    expect(decodeState("{broken")).toEqual(decodeState(""));
  });
});
