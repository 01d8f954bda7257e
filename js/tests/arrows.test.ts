// Folders show the arrows: who may know whom. Types count too.
import { readdirSync, readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";

const root = "js/src/"; // the tests run from the root of the repository
const LONGEST = 350; // lines

/** What each room may look into; everything may look into what is generated from the schema. */
const may: Record<string, string[]> = {
  gen: [],
  data: ["gen"],
  draw: ["data"],
  contract: ["data", "draw"],
  judge: ["data", "draw", "contract"],
  charts: ["data", "draw"],
  panels: ["data", "draw", "contract", "judge", "charts"],
  view: ["data", "draw", "contract", "judge", "charts", "panels"],
  hosts: ["data", "view"],
};

type Imports = Map<string, string[]>;

function read(): { imports: Imports; lengths: Map<string, number> } {
  const files = (readdirSync(root, { recursive: true }) as string[]).filter((file) => file.endsWith(".ts"));
  const imports: Imports = new Map();
  const lengths = new Map<string, number>();
  for (const file of files) {
    const text = readFileSync(root + file, "utf8");
    lengths.set(file, text.split("\n").length - 1);
    const found = [...text.matchAll(/(?:from|import) "(\.[^"]+)"/g)].map(([, path]) => resolve(file, path));
    imports.set(file, found);
  }
  return { imports, lengths };
}

const resolve = (file: string, path: string) => new URL(path, `file:///${file}`).pathname.slice(1);
const room = (file: string) => file.split("/")[0];

const wrongArrows = (imports: Imports) =>
  [...imports].flatMap(([file, found]) =>
    found
      .filter((other) => room(other) !== room(file) && !may[room(file)]?.includes(room(other)))
      .map((other) => `${file} -> ${other}`),
  );

/** One circle of files that import each other, or nothing. */
function findCycle(imports: Imports): string[] {
  const done = new Set<string>();
  const visit = (file: string, path: string[]): string[] => {
    if (path.includes(file)) return [...path.slice(path.indexOf(file)), file];
    if (done.has(file)) return [];
    for (const other of imports.get(file) ?? []) {
      const found = visit(other, [...path, file]);
      if (found.length) return found;
    }
    done.add(file);
    return [];
  };
  for (const file of imports.keys()) {
    const found = visit(file, []);
    if (found.length) return found;
  }
  return [];
}

describe("the sources", () => {
  const { imports, lengths } = read();

  it("lie in rooms that are known", () => {
    const loose = [...imports.keys()].filter((file) => !(room(file) in may) && file !== "css.d.ts");
    expect(loose).toEqual([]);
    expect(imports.size).toBeGreaterThan(80);
  });

  it("look only into rooms below them", () => {
    expect(wrongArrows(imports)).toEqual([]);
  });

  it("do not go round in circles", () => {
    expect(findCycle(imports)).toEqual([]);
  });

  it("are short", () => {
    const long = [...lengths].filter(([file, lines]) => lines > LONGEST && room(file) !== "gen");
    expect(long).toEqual([]);
  });

  it("would be caught", () => {
    const wrong: Imports = new Map([
      ["data/store.ts", ["view/app.ts"]],
      ["draw/svg.ts", ["contract/panel.ts"]],
      ["view/app.ts", ["view/bar.ts"]],
      ["view/bar.ts", ["view/app.ts"]],
    ]);
    expect(wrongArrows(wrong)).toEqual(["data/store.ts -> view/app.ts", "draw/svg.ts -> contract/panel.ts"]);
    expect(findCycle(wrong)).toEqual(["view/app.ts", "view/bar.ts", "view/app.ts"]);
  });
});

describe("the tests", () => {
  it("are short", () => {
    const folder = "js/tests/";
    const files = readdirSync(folder).filter((file) => file.endsWith(".ts"));
    const long = files.filter((file) => readFileSync(folder + file, "utf8").split("\n").length - 1 > LONGEST);
    expect(long).toEqual([]);
  });
});
