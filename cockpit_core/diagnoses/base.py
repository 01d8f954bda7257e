"""The contract of a diagnosis: which evidence it needs, when it holds, what it explains, what to try.

A diagnosis reads features (``cockpit_core.diagnosis.view.View``) and answers with a ``Found`` or None. It must test a
consequence (what the run does, an invariant that is violated), not the presence of a setting alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from cockpit_core.diagnosis.limits import LIMITS
from cockpit_core.foundation.records import Evidence

if TYPE_CHECKING:
    from cockpit_core.diagnosis.view import View


@dataclass
class Found:
    """What a rule says at one step. ``severity`` and ``since`` override those of the diagnosis and of the judge."""

    text: str
    remedy: str
    evidence: list[Evidence] = field(default_factory=list)
    layers: Sequence[str] = ()
    severity: str = ""
    since: int | None = None


class Diagnosis:
    """Subclass it, put the file into ``cockpit_core/diagnoses`` (or import your own before ``track``).

    needs: columns without which it cannot say anything, e.g. "NormTest" or "dead"; one of them is enough.
    hold: at so many tracked steps in a row the rule must hold; span: and over so many training steps; after: from this
    training step on; least: and after so many tracked steps. sticky: once found it is never retracted, because it tells
    of something that has happened. explains: diagnoses that follow from this one, and are then told as its consequences.
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    severity: ClassVar[str] = "likely"
    needs: ClassVar[tuple[str, ...]] = ()
    hold: ClassVar[int] = 2
    after: ClassVar[int] = 3
    least: ClassVar[int] = 0
    span: ClassVar[int] = 0
    sticky: ClassVar[bool] = False
    confidence: ClassVar[float] = 0.8
    explains: ClassVar[tuple[str, ...]] = ()
    rivals: ClassVar[dict[str, str]] = {}  # other causes that the same evidence fits: what would decide between the two
    before_training: ClassVar[bool] = False  # also asked when track() is called, before the first step
    probe: ClassVar[str] = ""  # a dear look that would decide, made at a tracked step while ``suspects`` holds

    def suspects(self, view: View) -> bool:
        """Is it worth a probe?"""
        return False

    def test(self, view: View) -> Found | None:
        raise NotImplementedError  # each diagnosis has its own


def evidence(name: str, value: float, text: str = "", *, limit: str = "", layer: str = "", step: int = 0) -> Evidence:
    """A number with the healthy range that the table of limits has for it."""
    known = LIMITS.get(limit or name)
    if known is None:
        return Evidence(name, float(value), step=step, layer=layer, text=text)
    return Evidence(name, float(value), known.low, known.high, known.unit, step, layer, text or known.meaning)


def number(value: float) -> str:
    """As a colleague would say it: two digits."""
    if value != value:
        return "unknown"
    text = f"{value:.2g}"
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
    return f"the loss has fallen by {number(100 * drop)} % only" if drop > 0.005 else "the loss has not fallen"


def listed(names: Sequence[str], most: int = 3) -> str:
    """Names in a sentence: the first few, and how many more."""
    shown = ", ".join(names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
