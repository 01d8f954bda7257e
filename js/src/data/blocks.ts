// The tensors of a network by block, from their names alone: transformer.h.0.attn.c_attn.weight is attn.c_attn.weight of h.0.

export interface Block {
  name: string; // short, and different from all others
  path: string; // what all of its tensors begin with
  layers: string[];
}

const isNumber = (word: string) => /^\d+$/.test(word);

/** How many words of a dotted name are its block: up to the first number, else the module that owns the tensor. */
function blockLength(words: string[]): number {
  const at = words.findIndex(isNumber);
  return at >= 0 && at < words.length - 1 ? at + 1 : Math.max(1, words.length - 1);
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
  const blocks = new Map<string, { words: string[]; layers: string[] }>();
  for (const name of names) {
    const words = name.split(".");
    const path = words.slice(0, blockLength(words));
    const key = path.join(".");
    const own = blocks.get(key) ?? { words: path, layers: [] };
    own.layers.push(name);
    blocks.set(key, own);
  }
  const paths = [...blocks.values()].map(({ words }) => words);
  return [...blocks].map(([path, { words, layers }]) => ({ name: shortest(words, paths), path, layers }));
}

/** What a tensor is called inside its block. */
export const nameInBlock = (layer: string, { path }: Block) =>
  layer.startsWith(`${path}.`) ? layer.slice(path.length + 1) : layer;
