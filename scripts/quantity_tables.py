"""Writes what follows from the classes of quantities: ``python scripts/quantity_tables.py [--check]``.

The tables of the documentation, and what the tests of the page know of quantities (js/tests/fixtures/quantities.json).

Rows stay in the order in which they stand; what has none yet comes at the end of its table.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from cockpit_core.quantities import ALL, Quantity

ROOT = Path(__file__).resolve().parents[1]
HEADS = {
    "docs/quantities.md": "| quantity | value at step t | layer-wise |",
    "docs/instruments.md": "| quantity | question | value at step t | layer-wise | cost |",
}


def page_of(cls: type[Quantity]) -> str:
    return "docs/instruments.md" if cls.question else "docs/quantities.md"


def make_row(cls: type[Quantity]) -> str:
    layerwise = "yes" if cls.layerwise or cls.kind == "parameters" else ""
    cells = [f"`{cls.__name__}`", cls.formula, layerwise]
    if cls.question:
        cells = [cells[0], cls.question, cls.formula, layerwise, cls.cost]
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def rewrite(page: str, text: str) -> str:
    """The text of a page, with its table as the classes have it."""
    lines = text.split("\n")
    first = lines.index(HEADS[page]) + 2
    last = next(i for i in range(first, len(lines)) if not lines[i].startswith("|"))
    known = {name: cls for name, cls in ALL.items() if page_of(cls) == page}
    found = (re.match(r"\| `(\w+)`", line) for line in lines[first:last])
    order = [match.group(1) for match in found if match and match.group(1) in known]
    order += [name for name in known if name not in order]
    return "\n".join([*lines[:first], *(make_row(known[name]) for name in order), *lines[last:]])


def describe_classes(page: str, text: str) -> str:
    """For the page's tests, which cannot read Python."""
    known = [
        {
            "name": name,
            "kind": cls.kind,
            "layerwise": cls.layerwise,
            "unit": cls.unit,
            "description": cls.description,
            "defined_for_sgd": cls.defined_for_sgd,
            "instrument": bool(cls.question),
        }
        for name, cls in ALL.items()
    ]
    return "[\n" + ",\n".join(f"  {json.dumps(one, ensure_ascii=False)}" for one in known) + "\n]\n"


FILES = dict.fromkeys(HEADS, rewrite) | {"js/tests/fixtures/quantities.json": describe_classes}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a file is not as the classes say")
    check, stale = parser.parse_args().check, []
    for page, make in FILES.items():
        text = (ROOT / page).read_text(encoding="utf-8") if (ROOT / page).exists() else ""
        made = make(page, text)
        if made != text:
            stale.append(page)
            if not check:
                (ROOT / page).write_text(made, encoding="utf-8")
    print("\n".join(f"{'stale' if check else 'written'}: {page}" for page in stale) or "all is as the classes say")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
