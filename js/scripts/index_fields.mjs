// Which field is what: the messages of the schema that a page reads, as one small table. The library that can read any
// schema takes a fifth of a bundle; ours needs this one.
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../../", import.meta.url));

export function readSchema(text) {
  const messages = {};
  const bare = text.replace(/\/\/.*$/gm, "");
  for (const [, name, body] of bare.matchAll(/message (\w+) \{([^}]*)\}/g))
    messages[name] = [...body.matchAll(/(repeated |optional |)(map<string, string>|\w+) (\w+) = (\d+);/g)].map(
      ([, label, type, field, number]) => [Number(number), field, type.replace(/<.*/, ""), label.trim()],
    );
  const enums = new Set([...bare.matchAll(/enum (\w+) \{/g)].map(([, name]) => name));
  for (const fields of Object.values(messages)) for (const field of fields) if (enums.has(field[2])) field[2] = "int32";
  return messages;
}

function reachable(messages, names) {
  const found = new Set();
  const visit = (name) => {
    if (found.has(name) || !messages[name]) return;
    found.add(name);
    for (const [, , type] of messages[name]) visit(type);
  };
  names.forEach(visit);
  return found;
}

export function indexFields() {
  const messages = readSchema(readFileSync(`${root}cockpit_core/schema/cockpit.proto`, "utf8"));
  const lines = [...reachable(messages, ["Batch", "Histogram"])].sort().map((name) => {
    const fields = messages[name].map((field) => field.join(" ").trim());
    return `  ${name}: ${JSON.stringify(fields.join(";"))},`;
  });
  const text = `// Generated from cockpit.proto by scripts/index_fields.mjs: number, name, type, label of each field.
export const fields = {
${lines.join("\n")}
};
`;
  writeFileSync(`${root}js/src/gen/fields.ts`, text);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) indexFields();
