// What panels make of the newer instruments: own-batch alpha, edges of optimizers, samples, classes, settings, the budget.
import { afterEach, describe, expect, it } from "vitest";
import { defaults, type UiState } from "../src/contract/state.ts";
import type { Batch, HistogramData } from "../src/data/wire.ts";
import { silentBecause } from "../src/judge/alpha.ts";
import { axisName, describeBest, settingsOf } from "../src/judge/settings.ts";
import { readMatrix } from "../src/panels/class_interference.ts";
import { readSamples } from "../src/panels/hard_samples.ts";
import { panels } from "../src/panels/index.ts";
import { type Cockpit, makeBatch, makeFit, makeHeader, makeHistogram, open, scalarNames, seeded } from "./helpers.ts";

let cockpit: Cockpit | null = null;
afterEach(() => {
  cockpit?.destroy();
  cockpit = null;
  document.body.replaceChildren();
});
const panel = (id: string) => panels.find((own) => own.id === id) as (typeof panels)[number];
const start = (batches: Batch[], state: Partial<UiState> = {}, shown: string[] = ["none"]) => {
  cockpit = open(batches, { state: { ...defaults, ...state }, panels: shown });
  return cockpit;
};

interface Values {
  own?: number;
  alpha?: number;
  noise?: number;
}
const alphaRun = ({ own, alpha = 0, noise }: Values, names = scalarNames.filter((name) => name !== "NormTest")) => {
  const more = [...(own === undefined ? [] : ["AlphaOwnBatch"]), ...(noise === undefined ? [] : ["NormTest"])];
  const value = (_: number, name: string) =>
    name === "AlphaOwnBatch" ? (own ?? 0) : name === "NormTest" ? (noise ?? 0) : 1;
  const alphas = Array.from({ length: 40 }, (_, step) => makeFit(step, alpha));
  return makeBatch({ to: 40, names: [...names, ...more], value, change: { alphas, warnings: [] } });
};
const opinion = (values: Values, state: Partial<UiState> = {}) => {
  const ctx = start([alphaRun(values)], state).app.context();
  return { verdict: panel("alpha").verdict?.(ctx, ctx.runs[0]) ?? null, note: silentBecause(ctx) };
};

describe("alpha", () => {
  it("is judged by the own batch where that was tracked", () => {
    expect(opinion({ own: -0.95, alpha: 0.1, noise: 2 }).verdict?.short).toBe("far before the floor");
    expect(opinion({ own: -0.1, alpha: 1.5 }).verdict?.short).toBe("up to the floor");
    expect(opinion({ own: 0.8, alpha: 0.3 }).verdict).toMatchObject({ short: "beyond the floor" });
    expect(opinion({ own: 1.2, alpha: 0.2 }).verdict).toMatchObject({ short: "beyond the edge", fault: true });
    expect(opinion({ own: 1.2 }, { step: 7 }).verdict?.text).toBe("Step 7: beyond the edge of its own batch.");
  });

  it("has no verdict from the paper's alone where most of the gradient is noise, and says why", () => {
    const noisy = opinion({ alpha: 0.1, noise: 0.95 });
    expect(noisy.verdict).toBeNull();
    expect(noisy.note).toMatch(/9\.[78] % of the gradient is signal/);
    expect(opinion({ alpha: 0.1, noise: 3 }).note).toContain("0 % of the gradient is signal");
    expect(opinion({ alpha: 0.1, noise: 0.5 })).toMatchObject({
      verdict: { short: "near the valley floor" },
      note: "",
    });
    expect(opinion({ alpha: 0.1 }).verdict?.short).toBe("near the valley floor"); // how much is noise is not known
  });

  it("shows both in one picture, and the own batch's alone where nothing else was tracked", () => {
    const both = start([alphaRun({ own: 0.4, alpha: 0.2 })]).app.context();
    const scene = panel("alpha").draw?.(both, { width: 400, height: 320 });
    expect(scene?.legend.map(({ label }) => label)).toEqual(["two batches (the paper's)", "own batch"]);
    expect(
      panel("alpha")
        .readings(both)
        .map(({ text }) => text),
    ).toContain("own batch 0.4");
    const alone = start([makeBatch({ to: 9, names: ["AlphaOwnBatch"], value: () => 0.4, change: { alphas: [] } })]);
    const ctx = alone.app.context();
    expect(panel("alpha").shows(ctx)).toBe(true);
    expect(panel("alpha").readings(ctx)[0]).toMatchObject({ value: 0.4 });
    expect(panel("alpha").draw?.(ctx, { width: 400, height: 320 }).frames).toHaveLength(1);
  });
});

describe("the largest eigenvalue", () => {
  const run = (optimizer: string, group: Record<string, string>, more: string[] = []) => {
    const header = makeHeader({ optimizers: [{ name: optimizer, groups: [{ lr: "0.1", ...group }] }] });
    const names = ["HessMaxEV", "LearningRate", ...more];
    const value = (_: number, name: string) =>
      ({ LearningRate: 0.1, PreconditionedSharpness: 190, "PreconditionedSharpness/ratio": 0.5 })[name] ?? 15;
    const ctx = start([makeBatch({ to: 20, names, value, change: { header, warnings: [] } })]).app.context();
    const own = panel("hess_max_ev");
    return {
      lines: own.draw?.(ctx, { width: 400, height: 240 }).legend.map(({ label }) => label),
      verdict: own.verdict?.(ctx, ctx.runs[0])?.text,
      note: own.note?.(ctx),
    };
  };

  it("has the line of plain SGD and of momentum", () => {
    expect(run("SGD", {})).toEqual({
      lines: ["λ max", "2 / learning rate"],
      verdict: "75 % of the limit 2 / learning rate (20): below the edge of stability.",
      note: "",
    });
    expect(run("SGD", { momentum: "0.9" }).verdict).toContain("3.8 / learning rate (38)");
  });

  it("has Adam's own line for the eigenvalue that Adam sees", () => {
    const adam = run("Adam", {}, ["PreconditionedSharpness", "PreconditionedSharpness/ratio"]);
    expect(adam.lines).toEqual(["λ max", "λ max as the optimizer sees it", "limit of Adam"]);
    expect(adam.verdict).toBe("50 % of the limit of Adam (380): below the edge of stability.");
    expect(adam.note).toBe("");
  });

  it("says where no line is known, and what would have one", () => {
    expect(run("Adam", {})).toMatchObject({ lines: ["λ max"], verdict: undefined });
    expect(run("Adam", {}).note).toContain("PreconditionedSharpness has one");
    expect(run("SGD", { nesterov: "True" }).note).toContain("no limit of λ max is known for SGD");
    expect(run("Lion", {}).note).toContain("for Lion");
  });
});

const table = (quantity: string, shape: number[], counts: number[]): HistogramData => ({
  ...makeHistogram("GradHist1d", 9),
  ...{ quantity, shape, counts: Float64Array.from(counts), edges: new Float64Array(0) },
});
const heavy = (quantity: string) => [{ quantity, steps: Uint32Array.from([9]) }];

describe("hard samples", () => {
  const rows = [17, 5, -0.2, 3, 4, 9, 40, 4, 0.5, 9, -1, 8];
  const begin = (lens: UiState["lens"] = "") => {
    const batch = makeBatch({ to: 10, names: ["HardSamples"], change: { heavy: heavy("HardSamples") } });
    const own = start([batch], { lens }, ["hard_samples"]);
    own.store.runs.get("a")?.keepHistogram("HardSamples", 9, "", table("HardSamples", [2, 6], rows));
    own.app.invalidate();
    own.app.draw();
    return own;
  };
  const ids = (own: Cockpit) =>
    [...own.element.querySelectorAll<HTMLElement>("[data-sample]")].map((row) => row.dataset.sample);

  it("are listed by id, the largest gradients first, with what is known of them", () => {
    expect(readSamples(table("HardSamples", [2, 6], rows))[1]).toEqual({
      ...{ id: 40, norm: 4, agreement: 0.5, times: 9, label: null, step: 8 },
    });
    const own = begin();
    expect(ids(own)).toEqual(["17", "40"]);
    expect(own.text('[data-sample="17"]')).toBe("1745−0.239");
    own.element.querySelector<HTMLButtonElement>('[data-sample="40"] .ck-link')?.click();
    expect(own.app.state.step).toBe(8);
    expect(panel("hard_samples").csv(own.app.context()).split("\n")[1]).toBe("a,9,17,4,5,-0.2,3,9");
  });

  it("come in another order on request", () => {
    expect(ids(begin("often"))).toEqual(["40", "17"]);
    expect(ids(begin("contrary"))).toEqual(["17", "40"]);
  });

  it("are shown by the user's function, once somebody looks", async () => {
    const own = begin();
    expect(own.text("thead")).not.toContain("sample");
    const asked: number[][] = [];
    own.source.samples = async (wanted) => {
      asked.push(wanted);
      return new Map([[17, { text: "a <b>seven</b>", picture: "data:image/png;base64,AA==" }]]);
    };
    own.app.draw();
    expect(asked).toEqual([]); // nothing is sent by itself
    own.app.root.dispatchEvent(new Event("pointerdown"));
    own.app.draw();
    await new Promise((resolve) => setTimeout(resolve));
    own.app.draw();
    expect(asked).toEqual([[17, 40]]);
    expect(own.text('[data-sample="17"]')).toContain("a <b>seven</b>");
    expect(own.element.querySelector('[data-sample="17"] img')?.getAttribute("src")).toBe("data:image/png;base64,AA==");
  });

  it("without ids say what to call", () => {
    const made = makeBatch({ to: 10, names: ["HardSamples"], change: { heavy: [] } });
    expect(start([made], {}, ["hard_samples"]).card("hard_samples").textContent).toContain("run.batch(ids=...)");
  });
});

describe("classes", () => {
  it("are a square of mean cosines; what was not seen has no value", () => {
    const matrix = table("ClassInterference", [2, 3], [3, 0.5, -0.25, 7, -0.25, Number.NaN]);
    expect(readMatrix(matrix)).toEqual({ names: ["3", "7"], values: [[0.5, -0.25], [-0.25, Number.NaN]] }); // biome-ignore format: a square
    expect(readMatrix(table("ClassInterference", [2, 6], Array(12).fill(0)))).toBeNull();
    const own = start([
      makeBatch({ to: 10, names: ["ClassInterference"], change: { heavy: heavy("ClassInterference") } }),
    ]);
    own.store.runs.get("a")?.keepHistogram("ClassInterference", 9, "", matrix);
    const ctx = own.app.context();
    const scene = panel("class_interference").draw?.(ctx, { width: 420, height: 230 });
    expect(scene?.spots.map(({ hint }) => hint)).toContain("classes 3 and 7: −0.25");
    expect(scene?.spots.at(-1)?.hint).toBe("classes 7 and 7: not seen");
    expect(
      panel("class_interference")
        .details?.(ctx)
        .map(({ value }) => value),
    ).toEqual([0.5, -0.25]);
  });
});

describe("settings", () => {
  const run = (lr: string, seed: number, score: number, optimizer = "SGD") => {
    const random = seeded(seed * 7 + Number(lr) * 1000);
    const header = makeHeader({
      optimizers: [{ name: optimizer, groups: [{ lr, ...(optimizer === "Adam" ? { betas: "(0.9, 0.999)" } : {}) }] }],
      options: { seed: String(seed), logdir: `runs/${lr}-${seed}-${optimizer}` },
    });
    const value = (seq: number, name: string) => {
      const noise = 1 + 0.02 * (random() - 0.5);
      if (name === "log/valid_accuracy") return score * noise * Math.min(1, 0.2 + seq / 30);
      return name === "UpdateSize" ? Number(lr) * noise : noise;
    };
    const names = ["Loss", "UpdateSize", "ParamNorm", "LearningRate", "log/valid_accuracy"];
    const key = `${optimizer}-${lr}-${seed}`;
    return makeBatch({
      run: key,
      run_id: key,
      to: 60,
      names,
      layers: [],
      value,
      change: { header, alphas: [], warnings: [] },
    });
  };
  const sweep = () => [1, 2, 3].flatMap((seed) => [run("0.1", seed, 0.9), run("0.01", seed, 0.5), run("1", seed, 0.3)]);

  it("are runs that differ in more than seed and folder, the best first, along what differs most", () => {
    const settings = settingsOf(start(sweep()).app.context());
    expect(settings?.all.map(({ name, runs }) => [name, runs.length])).toEqual([
      ["lr=0.1", 3],
      ["lr=0.01", 3],
      ["lr=1", 3],
    ]);
    expect(settings?.metric).toMatchObject({ title: "valid_accuracy", least: false });
    expect(settings && axisName(settings, "")).toBe("lr");
  });

  it("have a dot per seed and strips of instruments on the same axis", () => {
    const ctx = start(sweep()).app.context();
    expect(panel("settings").shows(ctx)).toBe(true);
    const scene = panel("settings").draw?.(ctx, { width: 500, height: 300 });
    expect(scene?.spots.filter(({ hint }) => /^lr=0.1, .*: 0\.[89]/.test(hint))).toHaveLength(3);
    const texts = scene?.marks.flatMap((mark) => (mark.type === "text" ? [mark.text] : []));
    for (const label of ["final valid_accuracy (more is better)", "update / weight", "0.01", "0.1", "1", "lr"])
      expect(texts).toContain(label);
    expect(panel("settings").csv(ctx).split("\n")).toHaveLength(11);
  });

  it("say in what the next setting leaves the best first", () => {
    const settings = settingsOf(start(sweep()).app.context());
    const words = settings ? describeBest(settings) : "";
    expect(words).toMatch(
      /^Best: lr=0\.1 \(valid_accuracy 0\.9\d*, 3 seeds\)\. lr=0\.01 first differs from it in UpdateSize \(0\.0/,
    );
    expect(words).toContain("step 0");
    expect(words).toContain("valid_accuracy separates at step");
  });

  it("tell optimizers apart by colour, without what they have by default", () => {
    const both = [run("0.1", 1, 0.9), run("0.01", 1, 0.5), run("0.1", 1, 0.4, "Adam"), run("0.01", 1, 0.8, "Adam")];
    const ctx = start(both).app.context();
    expect(settingsOf(ctx)?.differing).toEqual(["optimizer", "lr"]);
    expect(
      panel("settings")
        .draw?.(ctx, { width: 500, height: 300 })
        .legend.map(({ label }) => label),
    ).toEqual(["SGD", "Adam"]);
  });

  it("are not named by a whole network where the number of parameters tells them apart", () => {
    const of = (num_parameters: number, lr: string) => {
      const made = run(lr, num_parameters, 0.9);
      const options = { network: `Linear 64→${num_parameters}, ReLU, Linear ${num_parameters}→10` };
      return { ...made, header: made.header && { ...made.header, num_parameters, options } };
    };
    const settings = settingsOf(start([of(1000, "0.1"), of(2000, "0.1"), of(2000, "0.2")]).app.context());
    expect(settings?.differing).toEqual(["lr", "parameters"]);
    expect(settings?.all.map(({ name }) => name)).toContain("lr=0.1 parameters=1,000");
  });

  it("are not shown for runs that were made alike", () => {
    const ctx = start([1, 2, 3].map((seed) => run("0.1", seed, 0.9))).app.context();
    expect(panel("settings").shows(ctx)).toBe(false);
  });
});

describe("the budget", () => {
  it("is shown beside what was used", () => {
    const header = makeHeader({ options: { budget: "0.1" } });
    const value = (seq: number, name: string) => (name === "cost/run" ? 0.087 * seq * 0.1 : 1);
    const own = start(
      [makeBatch({ to: 50, names: ["Loss", "cost/run", "cost/shared"], value, change: { header } })],
      {},
      ["cost"],
    );
    expect(panel("cost").readings(own.app.context())[0].text).toBe("budget 10 %, used 8.7 %");
    expect(own.text(".ck-status")).toContain("tracking 8.7 % (budget 10 %)");
  });
});
