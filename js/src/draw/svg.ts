// Marks as one SVG document. Everything that users named is escaped; heat maps are embedded as PNG.
import { FONT, TEXT_SIZE } from "./draw.ts";
import type { ImageMark, Mark, Scene, TextMark } from "./scene.ts";

const escapes: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
export const escapeText = (text: string) =>
  text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "").replace(/[&<>"']/g, (c) => escapes[c]);

const short = (value: number) => String(Math.round(value * 100) / 100);

function path(xs: ArrayLike<number>, ys: ArrayLike<number>, closed?: boolean): string {
  let pen = false;
  const parts: string[] = [];
  for (let i = 0; i < xs.length; i++) {
    if (Number.isNaN(xs[i]) || Number.isNaN(ys[i])) pen = false;
    else {
      parts.push(`${pen ? "L" : "M"}${short(xs[i])} ${short(ys[i])}`);
      pen = true;
    }
  }
  return parts.join("") + (closed ? "Z" : "");
}

function attributes(mark: Exclude<Mark, TextMark | ImageMark>, clips: Map<string, string>): string {
  const parts = [`fill="${mark.fill ?? "none"}"`];
  if (mark.stroke) parts.push(`stroke="${mark.stroke}" stroke-width="${mark.weight ?? 1}" stroke-linejoin="round"`);
  if (mark.dash) parts.push(`stroke-dasharray="${mark.dash.join(" ")}"`);
  if (mark.alpha !== undefined) parts.push(`opacity="${mark.alpha}"`);
  if (mark.clip) {
    const { x, y, width, height } = mark.clip;
    const box = `<rect x="${short(x)}" y="${short(y)}" width="${short(width)}" height="${short(height)}"/>`;
    if (!clips.has(box)) clips.set(box, `clip${clips.size}`);
    parts.push(`clip-path="url(#${clips.get(box)})"`);
  }
  return parts.join(" ");
}

function textElement(mark: TextMark): string {
  const baseline = { top: "hanging", middle: "central", bottom: "auto" }[mark.baseline ?? "middle"];
  const turn = mark.turned ? ` transform="rotate(-90 ${short(mark.x)} ${short(mark.y)})"` : "";
  return `<text x="${short(mark.x)}" y="${short(mark.y)}" fill="${mark.color}" font-size="${mark.size ?? TEXT_SIZE}" font-weight="${
    mark.bold ? 600 : 400
  }" text-anchor="${mark.anchor ?? "start"}" dominant-baseline="${baseline}"${turn}>${escapeText(mark.text)}</text>`;
}

function imageElement(mark: ImageMark): string {
  const canvas = document.createElement("canvas");
  canvas.width = mark.columns;
  canvas.height = mark.rows;
  const ctx = canvas.getContext("2d");
  if (!ctx) return "";
  const data = ctx.createImageData(mark.columns, mark.rows);
  data.data.set(mark.rgba);
  ctx.putImageData(data, 0, 0);
  const box = `x="${short(mark.x)}" y="${short(mark.y)}" width="${short(mark.width)}" height="${short(mark.height)}"`;
  return `<image ${box} preserveAspectRatio="none" style="image-rendering:pixelated" href="${canvas.toDataURL()}"/>`;
}

function element(mark: Mark, clips: Map<string, string>): string {
  if (mark.type === "text") return textElement(mark);
  if (mark.type === "image") return imageElement(mark);
  const paint = attributes(mark, clips);
  if (mark.type === "line") return `<path d="${path(mark.xs, mark.ys, mark.closed)}" ${paint}/>`;
  if (mark.type === "rect")
    return `<rect x="${short(mark.x)}" y="${short(mark.y)}" width="${short(mark.width)}" height="${short(mark.height)}" ${paint}/>`;
  if (mark.type === "ellipse")
    return `<ellipse cx="${short(mark.cx)}" cy="${short(mark.cy)}" rx="${short(mark.rx)}" ry="${short(mark.ry)}" ${paint}/>`;
  if (mark.type === "bars") {
    const parts: string[] = [];
    for (let i = 0; i < mark.boxes.length; i += 4) {
      const [x, y, w, h] = [0, 1, 2, 3].map((k) => short(mark.boxes[i + k]));
      parts.push(`M${x} ${y}h${w}v${h}h-${w}z`);
    }
    return `<path d="${parts.join("")}" ${paint}/>`;
  }
  const dots = Array.from(mark.xs, (x, i) => [x, mark.ys[i]]).filter(([, y]) => !Number.isNaN(y));
  const circles = dots.map(([x, y]) => `<circle cx="${short(x)}" cy="${short(y)}" r="${mark.radius}"/>`);
  return `<g ${paint}>${circles.join("")}</g>`;
}

export function sceneToSvg(scene: Scene, background: string): string {
  const clips = new Map<string, string>();
  const body = scene.marks.map((mark) => element(mark, clips)).join("\n");
  const defs = [...clips].map(([box, id]) => `<clipPath id="${id}">${box}</clipPath>`).join("");
  const { width, height } = scene;
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="${escapeText(
    FONT,
  )}"><defs>${defs}</defs><rect width="100%" height="100%" fill="${background}"/>\n${body}\n</svg>\n`;
}
