// One bundle per host. `--check` also fails when a bundle grows past its budget; `--dev` builds the preview page.
import { readdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build, transform } from "esbuild";
import { indexFields } from "./index_fields.mjs";
import { indexPanels } from "./index_panels.mjs";

const root = fileURLToPath(new URL("../../", import.meta.url));
const budget = 100_000; // bytes, gzipped
const hosts = [
  { entry: "js/src/hosts/tensorboard.ts", out: "tb_plugin/static/index.js", format: "esm" },
  { entry: "js/src/hosts/widget.ts", out: "cockpit_widget/static/widget.js", format: "esm" },
  { entry: "js/src/hosts/report.ts", out: "cockpit_core/report/static/report.js", format: "iife" },
];
const preview = [{ entry: "js/dev/preview.ts", out: "js/dev/dist/preview.js", format: "iife" }];

// A style sheet travels as a text, without the blanks that only its readers need.
const styles = {
  name: "styles",
  setup: ({ onLoad }) =>
    onLoad({ filter: /\.css$/ }, async ({ path }) => {
      const { code } = await transform(readFileSync(path, "utf8"), { loader: "css", minify: true, target: "es2022" });
      return { contents: code, loader: "text" };
    }),
};

// Names that are private and stand nowhere else in the code than behind `this` are nobody else's: they travel as a letter.
function privateNames() {
  const files = readdirSync(`${root}js/src`, { recursive: true }).filter((file) => file.endsWith(".ts"));
  const code = files.map((file) => readFileSync(`${root}js/src/${file}`, "utf8")).join("\n");
  const names = new Set(
    [...code.matchAll(/\bprivate (?:(?:readonly|async|get|set) )*([a-z]\w*)/g)].map(([, name]) => name),
  );
  const elsewhere = (name) =>
    new RegExp(`(?<!\\bthis\\.|\\bprivate (?:readonly |async |get |set )*)\\b${name}\\b`).test(code);
  return [...names].filter((name) => !elsewhere(name));
}

indexPanels();
indexFields();
const mangleProps = new RegExp(`^(${privateNames().join("|")})$`);
const wanted = process.argv.includes("--dev") ? preview : hosts;
for (const { entry, out, format } of wanted) {
  await build({
    absWorkingDir: root,
    entryPoints: [entry],
    outfile: out,
    format,
    bundle: true,
    minify: true,
    target: "es2022",
    charset: "utf8",
    legalComments: "none",
    plugins: [styles],
    define: { "define.amd": "false", "Number.NaN": "NaN", "Number.POSITIVE_INFINITY": "Infinity" },
    mangleProps,
    logLevel: "warning",
  });
  const code = readFileSync(root + out);
  const size = gzipSync(code, { level: 9 }).length;
  console.log(`${out}: ${(size / 1000).toFixed(1)} kB gzipped`);
  if (size > budget) throw new Error(`${out} is over its budget of ${budget / 1000} kB`);
  if (/\beval\(|new Function\(/.test(code.toString())) throw new Error(`${out} contains eval`);
}
