// The folder is the registry: every file in src/panels that does not start with "_" is a panel.
import { readdirSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { indexFields } from "./index_fields.mjs";

const folder = fileURLToPath(new URL("../src/panels/", import.meta.url));

export function indexPanels() {
  const names = readdirSync(folder)
    .filter((file) => file.endsWith(".ts") && file !== "index.ts" && !file.startsWith("_"))
    .map((file) => file.slice(0, -3))
    .sort();
  const lines = names.map((name) => `import ${name} from "./${name}.ts";`);
  const text = `// Generated from the folder by scripts/index_panels.mjs.
${lines.join("\n")}
import type { Panel } from "../contract/panel.ts";

export const panels: Panel[] = [${names.join(", ")}];
`;
  writeFileSync(`${folder}index.ts`, text);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  indexPanels();
  indexFields();
}
