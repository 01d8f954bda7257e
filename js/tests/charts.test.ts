import { describe, expect, it } from "vitest";
import { decimate } from "../src/charts/decimate.ts";
import { type LineChart, lineScene } from "../src/charts/line.ts";
import { formatDuration, formatNumber, formatShare, formatTick, shorten } from "../src/data/format.ts";
import { Extremes, Series } from "../src/data/series.ts";
import { smooth } from "../src/data/smooth.ts";
import { makeScale } from "../src/draw/scale.ts";
import type { LineMark, TextMark } from "../src/draw/scene.ts";
import { sceneToSvg } from "../src/draw/svg.ts";
import { contrast, dark, light, readable, runColor } from "../src/draw/theme.ts";
import { seeded } from "./helpers.ts";

function makeSeries(n: number, value: (i: number) => number): Series {
  const series = new Series();
  for (let i = 0; i < n; i++) series.push(i, value(i), i);
  series.extremes.extend(series.y, series.n);
  return series;
}

const base: Omit<LineChart, "curves"> = {
  width: 400,
  height: 200,
  theme: light,
  axis: "step",
  domain: [0, 99],
  xlog: false,
  ylog: false,
  smoothing: 0,
};

describe("decimation", () => {
  it("finds the extremes of any range as looking at every value would", () => {
    const random = seeded(5);
    const y = Float64Array.from({ length: 20_000 }, () => (random() < 0.01 ? Number.NaN : random() * 100 - 50));
    const extremes = new Extremes();
    for (const n of [10, 700, 6000, 20_000]) extremes.extend(y, n); // grown as data arrives
    for (let trial = 0; trial < 300; trial++) {
      const from = Math.floor(random() * 20_000);
      const to = from + Math.floor(random() * (20_000 - from));
      const part = y.slice(from, to).filter((value) => !Number.isNaN(value));
      const truth = part.length
        ? [part.reduce((a, b) => Math.min(a, b)), part.reduce((a, b) => Math.max(a, b))]
        : [Infinity, -Infinity];
      expect(extremes.range(y, from, to)).toEqual(truth);
    }
  });

  it("keeps one spike in a million and stays small", () => {
    const series = makeSeries(1_000_000, (i) => (i === 654_321 ? 1000 : Math.sin(i / 1000)));
    const xscale = makeScale("linear", [0, 999_999], [0, 500]);
    const yscale = makeScale("linear", [-1, 1000], [200, 0]);
    const began = performance.now();
    const line = decimate(series, xscale, yscale);
    expect(performance.now() - began).toBeLessThan(200);
    expect(line.xs.length).toBeLessThanOrEqual(4 * 501);
    expect(Math.min(...line.ys)).toBe(0);
  });

  it("loses no value that is not finite among many", () => {
    const series = makeSeries(50_000, (i) => (i === 12_345 ? Number.NaN : i === 40_000 ? Number.POSITIVE_INFINITY : 1));
    const line = decimate(series, makeScale("linear", [0, 49_999], [0, 300]), makeScale("linear", [0, 2], [100, 0]));
    expect(line.broken).toEqual([74, 240]);
    expect(line.xs.length).toBeLessThanOrEqual(4 * 304);
  });

  it("is deterministic and draws every point when there is room", () => {
    const series = makeSeries(100, (i) => i * i);
    const scales = [makeScale("linear", [0, 99], [0, 99]), makeScale("linear", [0, 9801], [0, 9801])] as const;
    const line = decimate(series, ...scales);
    expect(Array.from(line.ys)).toEqual(Array.from({ length: 100 }, (_, i) => i * i));
    expect(decimate(series, ...scales)).toEqual(line);
  });

  it("shows a value alone between two that are not finite as a dot", () => {
    const values = [2, Number.NaN, Number.NaN, 3, 4, Number.NaN, 5, Number.NaN];
    const curve = { series: makeSeries(8, (i) => values[i]), color: "blue", label: "" };
    const dots = lineScene({ ...base, domain: [0, 7], curves: [curve] }).marks.filter((mark) => mark.type === "dots");
    expect(dots.map((mark) => mark.xs.length)).toEqual([2]);
    const whole = { series: makeSeries(8, (i) => i), color: "blue", label: "" };
    expect(lineScene({ ...base, domain: [0, 7], curves: [whole] }).marks.some((mark) => mark.type === "dots")).toBe(
      false,
    );
  });

  it("breaks the line at NaN, and at zero and below on a log axis", () => {
    const series = makeSeries(4, (i) => [1, Number.NaN, -1, 10][i]);
    const line = decimate(series, makeScale("linear", [0, 3], [0, 3]), makeScale("log", [1, 10], [0, 1]));
    expect(Array.from(line.ys)).toEqual([0, Number.NaN, Number.NaN, 1]);
    expect(line.broken).toEqual([1]);
  });
});

describe("the line chart", () => {
  it("maps its first and last value to the corners of its plot", () => {
    const curve = { series: makeSeries(100, (i) => i), color: "#123456", label: "x" };
    const scene = lineScene({ ...base, curves: [curve], yrange: [0, 99] });
    const [frame] = scene.frames;
    const line = scene.marks.find((mark): mark is LineMark => mark.type === "line" && mark.stroke === "#123456");
    expect([line?.xs[0], line?.ys[0]]).toEqual([frame.x, frame.y + frame.height]);
    expect([line?.xs[99], line?.ys[99]]).toEqual([frame.x + frame.width, frame.y]);
  });

  it("says where a decision line is that does not fit", () => {
    const curve = { series: makeSeries(100, (i) => i), color: "#123456", label: "x" };
    const scene = lineScene({ ...base, curves: [curve], guides: [{ value: 1e9, label: "limit" }] });
    expect(scene.marks.some((mark): mark is TextMark => mark.type === "text" && mark.text === "limit ↑")).toBe(true);
  });

  it("crosses out values that are not finite", () => {
    const curve = {
      series: makeSeries(10, (i) => (i === 4 ? Number.POSITIVE_INFINITY : i)),
      color: "#123456",
      label: "x",
    };
    const scene = lineScene({ ...base, domain: [0, 9], curves: [curve] });
    const crosses = scene.marks.filter((mark) => mark.type === "line" && mark.stroke === light.warn);
    expect(crosses).toHaveLength(1);
  });

  it("draws an error band as wide as the error", () => {
    const error = makeSeries(100, () => 5);
    const curve = { series: makeSeries(100, () => 50), color: "#123456", label: "x", error };
    const scene = lineScene({ ...base, curves: [curve], yrange: [0, 100] });
    const band = scene.marks.find((mark): mark is LineMark => mark.type === "line" && mark.closed === true);
    const [frame] = scene.frames;
    const ys = Array.from(band?.ys ?? []);
    expect(Math.max(...ys) - Math.min(...ys)).toBeCloseTo(frame.height / 10);
  });

  it("becomes an SVG in which names are text", () => {
    const scene = lineScene({ ...base, curves: [], ylabel: `<script>alert("x")</script>&` });
    const svg = sceneToSvg(scene, "#ffffff");
    expect(svg).not.toContain("<script");
    expect(svg).toContain("&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;&amp;");
    expect(new DOMParser().parseFromString(svg, "image/svg+xml").querySelector("parsererror")).toBeNull();
  });
});

describe("scales", () => {
  it("give step 0 a place on a log axis and return what they were given", () => {
    const scale = makeScale("log1p", [0, 999], [0, 300]);
    expect(scale.to(0)).toBe(0);
    expect(scale.to(9)).toBeCloseTo(100);
    for (const value of [0, 3, 99, 999]) expect(scale.from(scale.to(value))).toBeCloseTo(value);
    expect(scale.ticks(5).map((tick) => tick.label)).toEqual(["0", "1", "10", "100"]);
  });

  it("have round ticks inside their domain", () => {
    expect(
      makeScale("linear", [0, 1], [0, 100])
        .ticks(5)
        .map((tick) => tick.value),
    ).toEqual([0, 0.2, 0.4, 0.6, 0.8, 1]);
    expect(
      makeScale("log", [0.05, 200], [0, 100])
        .ticks(4)
        .map((tick) => tick.label),
    ).toEqual(["0.1", "1", "10", "100"]);
    expect(makeScale("linear", [2, 2], [0, 100]).to(2)).toBe(50);
  });
});

describe("smoothing", () => {
  it("is TensorBoard's debiased average", () => {
    const series = makeSeries(60, (i) => (i % 2 ? 1 : 0));
    const out = smooth(series, 0.5);
    let last = 0;
    for (let i = 0; i < 60; i++) {
      last = last * 0.5 + 0.5 * series.y[i];
      expect(out.y[i]).toBeCloseTo(last / (1 - 0.5 ** (i + 1)));
    }
  });

  it("leaves constants and values that are not finite alone", () => {
    const out = smooth(
      makeSeries(60, (i) => (i === 30 ? Number.NaN : 0.3)),
      0.9,
    );
    expect(out.y[29]).toBe(0.3);
    expect(out.y[30]).toBeNaN();
    expect(out.y[59]).toBeCloseTo(0.3);
  });
});

describe("words for numbers", () => {
  it("are short and have a real minus", () => {
    expect([0.18312, 1203, -0.000012, 123456.7, Number.NaN, -Infinity].map((value) => formatNumber(value))).toEqual([
      "0.183",
      "1,203",
      "−1.2e−5",
      "1.23e5",
      "NaN",
      "−∞",
    ]);
    expect([0, 0.5, 1500, 1e-6, 2e6].map(formatTick)).toEqual(["0", "0.5", "1.5k", "1e−6", "2e6"]);
    expect([0.0001, 0.41, 75, 3700].map(formatDuration)).toEqual(["0.1 ms", "410 ms", "1:15", "1:01:40"]);
    expect([0, 0.00001, 0.038, 0.5].map(formatShare)).toEqual(["0 %", "< 0.01 %", "3.8 %", "50 %"]);
  });

  it("make hostile names harmless and short", () => {
    expect(shorten("a\u202eb\u0000c")).toBe("a·b·c");
    expect(shorten("x".repeat(10_000), 20)).toHaveLength(20);
  });
});

describe("the themes", () => {
  it("meet contrast AA for all text", () => {
    for (const theme of [light, dark])
      for (const color of [theme.text, theme.quiet, theme.accent, theme.warn, theme.good])
        for (const background of [theme.card, theme.page])
          expect(contrast(color, background)).toBeGreaterThanOrEqual(4.5);
  });

  it("meet it where text stands on a colour", () => {
    for (const theme of [light, dark]) {
      expect(contrast(theme.card, theme.accent)).toBeGreaterThanOrEqual(4.5); // a pressed button
      expect(contrast(theme.card, theme.warn)).toBeGreaterThanOrEqual(4.5); // the count of warnings
      expect(contrast(theme.page, theme.text)).toBeGreaterThanOrEqual(4.5); // the box at the pointer
    }
  });

  it("make text of any data colour readable, and leave alone what is", () => {
    for (const theme of [light, dark])
      for (let i = 0; i < 8; i++)
        for (const palette of ["safe", "tensorboard"] as const)
          expect(contrast(readable(runColor(i, palette, theme), theme), theme.card)).toBeGreaterThanOrEqual(4.5);
    expect(readable("#0072b2", light)).toBe("#0072b2");
  });

  it("draw series that stand out from the card", () => {
    for (const theme of [light, dark])
      for (const color of theme.series) expect(contrast(color, theme.card)).toBeGreaterThanOrEqual(2.7);
  });
});
