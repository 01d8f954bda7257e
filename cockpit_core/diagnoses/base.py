"""What a diagnosis is written with: the contract, and numbers and names in its sentences."""

from __future__ import annotations

from collections.abc import Sequence

from cockpit_core.diagnosis.contract import Diagnosis, Found
from cockpit_core.diagnosis.limits import LIMITS
from cockpit_core.foundation.records import Evidence

__all__ = ["Diagnosis", "Found", "evidence", "fallen", "listed", "number", "what_is_left"]


def evidence(name: str, value: float, text: str = "", *, limit: str = "", layer: str = "", step: int = 0) -> Evidence:
    """A number with the healthy range that the table of limits has for it."""
    known = LIMITS.get(limit or name)
    if known is None:
        return Evidence(name, float(value), step=step, layer=layer, text=text)
    return Evidence(name, float(value), known.low, known.high, known.unit, step, layer, text or known.meaning)


def number(value: float) -> str:
    """As a colleague would say it: two digits. But 101.4 % of something is more than it, not the same."""
    if value != value:
        return "unknown"
    text = f"{value:.3g}" if 100 <= abs(value) < 110 else f"{value:.2g}"
    if 1e6 <= abs(value) < 1e15:
        size, word = (
            (1e6, "million") if abs(value) < 1e9 else (1e9, "billion") if abs(value) < 1e12 else (1e12, "trillion")
        )
        return f"{float(text) / size:g} {word}"
    return f"{float(text):,.0f}" if 100 <= abs(float(text)) < 1e6 else text


def fallen(drop: float) -> str:
    """How far the loss has come, in words; a loss around zero has no share that could be gone."""
    if drop != drop:
        return "how far the loss has come cannot be told"
    if not drop > 0.005:
        return "the loss has not fallen"
    return f"the loss has fallen by {number(100 * drop)} %" + (" only" if drop < 0.5 else "")


def what_is_left(level: float, drop: float) -> str:
    """Of the loss, in words: beside that of a constant guess, or beside its own start where nobody knows what a guess costs."""
    return f"the loss is still {number(100 * level)} % of that of a constant guess" if level == level else fallen(drop)


def listed(names: Sequence[str], most: int = 3) -> str:
    """Names in a sentence: the first few, and how many more."""
    shown = ", ".join(names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
