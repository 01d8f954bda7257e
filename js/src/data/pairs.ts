// Names that belong in one chart: x, train_x, valid_x (val_x, test_x, eval_x), also x/val and val/x.

const PARTS = "train|training|valid|validation|val|test|eval|dev";
const before = new RegExp(`^(?:${PARTS})[_\\-./ ](.+)$`, "i");
const behind = new RegExp(`^(.+)[_\\-./ ](?:${PARTS})$`, "i");

/** "log/valid_accuracy" -> "accuracy"; what run.log() did not send has no stem. */
export function stemOf(name: string): string {
  if (!name.startsWith("log/")) return "";
  const own = name.slice(4);
  return (before.exec(own)?.[1] ?? behind.exec(own)?.[1] ?? own).toLowerCase();
}

/** Lists of names with one stem, in the order in which they came; everything else stands alone. */
export function groupNames(names: string[]): string[][] {
  const groups = new Map<string, string[]>();
  for (const name of names) {
    const key = stemOf(name) ? `log/${stemOf(name)}` : name;
    groups.set(key, [...(groups.get(key) ?? []), name]);
  }
  return [...groups.values()];
}

/** Scores that are looked at first, beside the loss. */
export const isScore = (stem: string) =>
  /(^|[_\-./ ])(acc|accuracy|top[-_]?[15]|f1|auc|auroc|map|iou|dice|r2|bleu|rouge|perplexity|ppl|error|err|mae|rmse|wer|cer)\d*$/i.test(
    stem,
  );
export const isAccuracy = (stem: string) => /acc(uracy)?|top[-_]?1$/i.test(stem);
