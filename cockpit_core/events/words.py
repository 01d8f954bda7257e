"""Questions to a run that make no sense are answered in words; words from a file are made harmless."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from pathlib import Path

from cockpit_core.events.reader import MARK, SUFFIX

_MOST_NAMES = 40
_LONGEST_NAME = 200


def check_names(name: str, layer: str | None) -> None:
    for what, given in (("a quantity", name), ("a layer", layer or "")):
        if not isinstance(given, str):
            raise TypeError(f"{what} is asked for by its name, not by {given!r:.100}")


def check_step(step: int) -> int:
    """A whole number, numpy's included; raises TypeError for anything else."""
    try:
        return operator.index(step)
    except TypeError:
        raise TypeError(f"step must be a whole number (-1: the last one), not {step!r:.100}") from None


def plain(text: str, length: int = 40) -> str:
    """A word from a file, in one line and without escape sequences: it is compared, printed and shown."""
    return "".join(character for character in text[:length] if character.isprintable()).strip()


def list_names(names: Iterable[str]) -> str:
    listed = list(names)
    some = ", ".join(name[:_LONGEST_NAME] for name in listed[:_MOST_NAMES])
    return (some + (", ..." if len(listed) > _MOST_NAMES else "")) if listed else "none"


def explain_nothing(path: Path) -> str:
    """Why there is no run here, and where there are some."""
    if not path.exists():
        return f"{path} does not exist"
    below = sorted({str(file.parent) for file in path.glob(f"*/*{MARK}*{SUFFIX}")})
    hint = f" Runs are in {', '.join(below[:5])}." if below else ""
    return f"no run in {path}: looked for files named events.out.{MARK}.*{SUFFIX}.{hint}"
