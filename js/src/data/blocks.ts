// The tensors of a network by block, from their names alone: transformer.h.0.attn.c_attn.weight is attn.c_attn.weight of h.0.

export interface Block {
  name: string; // short, and different from all others
  path: string; // what all of its tensors begin with
  layers: string[];
}

const isNumber = (word: string) => /^\d+$/.test(word);

/** How many words of a dotted name are its block: up to the first number behind `from`, else the module that owns the tensor. */
function blockLength(words: string[], from = 0): number {
  const at = words.findIndex((word, i) => i >= from && isNumber(word));
  return at >= 0 && at < words.length - 1 ? at + 1 : Math.max(1, words.length - 1);
}

interface Group {
  words: string[];
  layers: string[];
}
const LARGE = 12; // tensors of a block that says too little if it is most of the network

function split(names: string[], from: number): Group[] {
  const groups = new Map<string, Group>();
  for (const name of names) {
    const words = name.split(".");
    const path = words.slice(0, blockLength(words, from));
    const key = path.join(".");
    const own = groups.get(key) ?? { words: path, layers: [] };
    own.layers.push(name);
    groups.set(key, own);
  }
  // A network inside of another (`0.layers.7.weight`) is one block by its first number: then the next one counts.
  return [...groups.values()].flatMap((own) => {
    const most = own.layers.length > LARGE && own.layers.length > names.length / 2;
    return most && own.words.length > from && groups.size < names.length ? split(own.layers, own.words.length) : [own];
  });
}

/** "h.0" of transformer.h.0: a number keeps the word before it. */
const lastWords = (path: string[], count: number) => path.slice(-count).join(".");

function shortest(path: string[], others: string[][]): string {
  let count = isNumber(path[path.length - 1]) && path.length > 1 ? 2 : 1;
  const clash = () => others.some((own) => own !== path && lastWords(own, count) === lastWords(path, count));
  while (count < path.length && clash()) count++;
  return lastWords(path, count);
}

/** Blocks in network order. Tensors of one block that stand apart in the network are put together at the first of them. */
export function groupBlocks(names: string[]): Block[] {
  const blocks = split(names, 0);
  const paths = blocks.map(({ words }) => words);
  return blocks.map(({ words, layers }) => ({ name: shortest(words, paths), path: words.join("."), layers }));
}

/** What a tensor is called inside its block. */
export const nameInBlock = (layer: string, { path }: Block) =>
  layer.startsWith(`${path}.`) ? layer.slice(path.length + 1) : layer;
