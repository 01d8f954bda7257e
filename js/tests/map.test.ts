// What everyone looks at first: loss with validation loss, the line of guessing, the map of the network, the table of runs.
import { describe, expect, it } from "vitest";
import { mapColor, mapColors, mapLegend, mapPixels } from "../src/charts/map.ts";
import { defaults, type UiState } from "../src/contract/state.ts";
import { groupBlocks, nameInBlock } from "../src/data/blocks.ts";
import type { Batch } from "../src/data/records.ts";
import { pack } from "../src/draw/raster.ts";
import { makeScale } from "../src/draw/scale.ts";
import { light, parseColor } from "../src/draw/theme.ts";
import { mapRows } from "../src/panels/_layer_rows.ts";
import { panels } from "../src/panels/index.ts";
import type { MountOptions } from "../src/view/options.ts";
import { layerNames, makeBatch, makeHeader, opener, seeded } from "./helpers.ts";

const show = opener();
const start = (batches: Batch[], state: Partial<UiState> = {}, options: MountOptions = {}) =>
  show(batches, { state: { ...defaults, ...state }, ...options });
const panel = (id: string) => panels.find((own) => own.id === id) as (typeof panels)[number];

describe("the legend of the map", () => {
  it("stays inside of a narrow card, whatever it has to explain", () => {
    for (const width of [276, 330, 420, 900])
      for (const values of [
        [1, 2],
        [0, 1],
        [1, Number.NaN],
        [0, 23477, Number.NaN],
      ]) {
        const { marks, x } = mapLegend(width, { low: -2, high: 4.37, difference: false }, light, values);
        const ends = marks.map((own) =>
          own.type === "text" && own.anchor !== "end" ? own.x + 6.2 * own.text.length : "x" in own ? own.x : 0,
        );
        expect(Math.max(...ends)).toBeLessThanOrEqual(width);
        expect(x).toBeGreaterThanOrEqual(70);
      }
  });
});

describe("the pixels of the map", () => {
  it("show the worst of their records, or the last one before, wherever the axis was moved to", () => {
    const random = seeded(3);
    const xs = Array.from({ length: 300 }, (_, i) => Math.floor(i / 2 + 40 * random())).sort((a, b) => a - b);
    const values = xs.map(() => (random() < 0.05 ? Number.NaN : 10 ** (6 * random())));
    const rows = [{ xs, values }];
    const colors = mapColors(rows, false);
    for (const domain of [
      [0, 190],
      [60, 90],
      [100.4, 101],
      [-50, 30],
    ] as [number, number][]) {
      const scale = makeScale("linear", domain, [7, 107]);
      const words = new Uint32Array(
        mapPixels(rows, scale, { x: 7, y: 0, width: 100, height: 9 }, colors, light).buffer,
      );
      const places = xs.map((x) => Math.round(scale.to(x) - 7));
      for (let pixel = 0; pixel < 100; pixel++) {
        const here = values.filter((_, i) => places[i] === pixel);
        const last = values[places.filter((at) => at < pixel).length - 1];
        if (places.every((at) => at < pixel)) continue; // after the last record
        const odd = here.some((value) => !Number.isFinite(value));
        const shown = odd ? Number.NaN : here.length ? Math.max(...here) : last;
        const [red, green, blue] = shown === undefined ? [] : mapColor(shown, colors, light);
        expect(words[pixel]).toBe(red === undefined ? 0 : pack(red, green, blue));
      }
    }
    expect(mapColors(rows, false)).toBe(colors); // not sorted again with every frame
  });
});

describe("a ratio of two runs", () => {
  it("does not call a gradient of exactly zero not finite", () => {
    const colors = { low: -1, high: 1, difference: true };
    const black = mapColor(0, colors, light);
    expect(mapColor(Number.POSITIVE_INFINITY, colors, light)).toEqual(black); // divided by zero
    expect(mapColor(Number.NaN, colors, light)).toEqual(parseColor(light.warn));
    const words = (values: number[]) =>
      mapLegend(900, colors, light, values).marks.flatMap((mark) => (mark.type === "text" ? mark.text : []));
    expect(words([1, Number.POSITIVE_INFINITY])).toContain("one is 0");
    expect(words([1, Number.POSITIVE_INFINITY])).not.toContain("not finite");
    expect(words([1, Number.NaN])).toContain("not finite");
    expect(mapColor(Number.POSITIVE_INFINITY, { ...colors, difference: false }, light)).toEqual(parseColor(light.warn));
  });
});

describe("blocks of a network", () => {
  const gpt = [
    "transformer.wte.weight",
    ...[0, 1].flatMap((i) =>
      ["ln_1.weight", "attn.c_attn.weight", "attn.c_attn.bias"].map((own) => `transformer.h.${i}.${own}`),
    ),
    "lm_head.weight",
  ];

  it("are parsed from names", () => {
    const blocks = groupBlocks(gpt);
    expect(blocks.map(({ name, layers }) => [name, layers.length])).toEqual([
      ["wte", 1],
      ["h.0", 3],
      ["h.1", 3],
      ["lm_head", 1],
    ]);
    expect(nameInBlock(gpt[2], blocks[1])).toBe("attn.c_attn.weight");
  });

  it("have names that differ", () => {
    const blocks = groupBlocks([
      "encoder.layers.0.fc.weight",
      "decoder.layers.0.fc.weight",
      "0.weight",
      "1.weight",
      "plain",
    ]);
    expect(blocks.map(({ name }) => name)).toEqual(["encoder.layers.0", "decoder.layers.0", "0", "1", "plain"]);
  });

  it("are unfolded while tensors fit, else folded; a click turns one round", () => {
    expect(mapRows(gpt, 20, []).map(({ label }) => label)).toEqual([
      "wte.weight",
      "h.0.ln_1.weight",
      "h.0.attn.c_attn.weight",
      "h.0.attn.c_attn.bias",
      "h.1.ln_1.weight",
      "h.1.attn.c_attn.weight",
      "h.1.attn.c_attn.bias",
      "lm_head.weight",
    ]);
    expect(mapRows(gpt, 5, []).map(({ label }) => label)).toEqual(["wte.weight", "h.0", "h.1", "lm_head.weight"]);
    expect(mapRows(gpt, 5, ["transformer.h.0"])).toHaveLength(6);
    expect(mapRows(gpt, 20, ["transformer.h.0"])).toHaveLength(6);
    expect(
      mapRows(
        Array.from({ length: 600 }, (_, i) => `blocks.${i >> 2}.w${i % 4}`),
        12,
        [],
      ),
    ).toHaveLength(150);
  });
});

describe("the map of the network", () => {
  const size = { width: 420, height: 190 };

  it("shows the root mean square gradient of each tensor, and a click sets step and layer", () => {
    const own = start([makeBatch({ to: 20, value: (seq) => seq + 1 })]);
    const scene = panel("layer_map").draw?.(own.app.context(), size);
    const spot = scene?.spots[2];
    expect(spot?.layer).toBe(layerNames[2]);
    expect(spot?.tell?.(9)).toBe(`fc.weight: gradient RMS ${(10 / Math.sqrt(10)).toPrecision(3)}`);
    own.app.pick(9, layerNames[2]);
    expect([own.app.state.step, own.app.state.layer]).toEqual([9, "fc.weight"]);
  });

  it("joins the tensors of a block by length", () => {
    const layer = (name: string, count: number) => ({
      name,
      shape: [count],
      size: count,
      module: "L",
      method: "rule",
      reason: "",
    });
    const header = makeHeader({ layers: [layer("b.0.w", 30), layer("b.0.v", 20)] });
    const batch = makeBatch({ to: 3, layers: ["b.0.w", "b.0.v"], value: () => 5, change: { header } });
    const ctx = start([batch], { unfolded: ["b.0"] }).app.context();
    const [spot] = panel("layer_map").draw?.(ctx, size)?.spots ?? [];
    expect(spot.hint).toBe("b.0, 2 tensors: gradient RMS 1"); // sqrt((25 + 25) / 50)
    expect(spot.act).toBeTypeOf("function");
  });

  it("shows the ratio of two runs", () => {
    const two = [makeBatch({ to: 5, value: () => 2 }), makeBatch({ run: "b", run_id: "2", to: 5, value: () => 6 })];
    const spot = panel("layer_map").draw?.(start(two).app.context(), size)?.spots[0];
    expect(spot?.hint).toContain("gradient RMS 3 ×");
  });

  it("ends a ratio where the shorter run ended", () => {
    const two = [makeBatch({ to: 5, value: () => 2 }), makeBatch({ run: "b", run_id: "2", to: 50, value: () => 6 })];
    const lines = panel("layer_map").csv(start(two).app.context()).trim().split("\n").slice(1);
    const steps = lines.map((line) => Number(line.split(",").at(-2)));
    expect([Math.min(...steps), Math.max(...steps)]).toEqual([0, 4]);
  });

  it("shows the first of two networks that have no tensor in common, and says so", () => {
    const layers = ["other.weight", "other.bias"];
    const info = (name: string) => ({ name, shape: [4], size: 4, module: "L", method: "rule", reason: "" });
    const other = makeBatch({
      run: "b",
      run_id: "2",
      to: 5,
      layers,
      change: { header: makeHeader({ layers: layers.map(info) }) },
    });
    const ctx = start([makeBatch({ to: 5 }), other]).app.context();
    expect(panel("layer_map").draw?.(ctx, size).spots).toHaveLength(layerNames.length);
    expect(panel("layer_map").note?.(ctx)).toBe("Of a; the other has no tensor of the same name.");
  });

  it("offers every measure once, in words", () => {
    const names = ["GradNorm", "UpdateSize", "ParamNorm", "UpdateRatio", "DeadUnits"];
    const batch = makeBatch({ to: 5 });
    const columns = names.flatMap((name) => layerNames.map((layer) => ({ ...batch.columns[0], name, layer })));
    const quantities = makeHeader().quantities.filter(({ name }) => names.includes(name));
    const ctx = start([{ ...batch, columns, header: makeHeader({ quantities }) }]).app.context();
    const labels = panel("layer_map")
      .actions?.(ctx)
      .map(({ label }) => label.slice(5));
    expect(labels).toEqual(["gradient RMS", "update-to-weight ratio", "param norm", "update size", "dead units"]);
  });

  it("has colours of their own for what is exactly zero and what is not finite", () => {
    const rows = [{ xs: [0, 1, 2], values: [1, 0, Number.NaN] }];
    const colors = mapColors(rows, false);
    expect(mapColor(Number.NaN, colors, light)).toEqual(parseColor(light.warn));
    expect(mapColor(0, colors, light)).toEqual(parseColor("#16191d"));
    const box = { x: 0, y: 0, width: 30, height: 10 };
    const rgba = mapPixels(rows, makeScale("linear", [0, 3], [0, 30]), box, colors, light);
    expect([...rgba.slice(4 * 25, 4 * 25 + 3)]).toEqual(parseColor(light.warn));
    expect([...rgba.slice(4 * 15, 4 * 15 + 3)]).toEqual(parseColor("#16191d"));
  });

  it("goes on with the last of several values in one pixel, not with the largest", () => {
    const rows = [{ xs: [0, 1, 2, 90], values: [1, 100, 1e-3, 1e-3] }];
    const box = { x: 0, y: 0, width: 10, height: 5 };
    const rgba = mapPixels(rows, makeScale("linear", [0, 100], [0, 10]), box, mapColors(rows, false), light);
    const word = (i: number) => [...rgba.slice(4 * i, 4 * i + 4)].join();
    expect(word(5)).toBe(word(9)); // 1e-3, as at the end
    expect(word(0)).not.toBe(word(5)); // the 100 is to be seen in its own pixel
  });

  it("loses nothing that is not finite among many steps in one pixel", () => {
    const values = Array.from({ length: 5000 }, (_, i) => (i === 2500 ? Number.NaN : 1));
    const rows = [{ xs: values.map((_, i) => i), values }];
    const rgba = mapPixels(
      rows,
      makeScale("linear", [0, 5000], [0, 50]),
      { x: 0, y: 0, width: 50, height: 5 },
      mapColors(rows, false),
      light,
    );
    const red = parseColor(light.warn);
    expect(
      Array.from({ length: 50 }, (_, i) => red.every((c, k) => rgba[4 * i + k] === c)).filter(Boolean),
    ).toHaveLength(1);
  });
});
