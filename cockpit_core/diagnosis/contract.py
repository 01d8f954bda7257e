"""The contract of a diagnosis: which evidence it needs, when it holds, what it explains, what to try.

A diagnosis reads features (``cockpit_core.diagnosis.view.View``) and answers with a ``Found`` or None. It must test a
consequence (what the run does, an invariant that is violated), not the presence of a setting alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from cockpit_core.diagnosis.view import View
from cockpit_core.foundation.records import Evidence


@dataclass
class Found:
    """What a rule says at one step. ``severity`` and ``since`` override those of the diagnosis and of the judge. ``alone``: as
    it is, it explains nothing else. ``at_once``: so certain that ``hold`` need not be waited for."""

    text: str
    remedy: str
    evidence: list[Evidence] = field(default_factory=list)
    layers: Sequence[str] = ()
    severity: str = ""
    since: int | None = None
    alone: bool = False
    at_once: bool = False


class Diagnosis:
    """Subclass it, put the file into ``cockpit_core/diagnoses`` (or import your own before ``track``).

    needs: columns without which it cannot say anything, e.g. "NormTest" or "dead"; one of them is enough.
    hold: the rule must hold at this many tracked steps in a row; span: and over this many training steps; after: from
    this training step on; least: and after this many tracked steps. sticky: never retracted, because it tells of
    something that has happened. explains: diagnoses that follow from this one, and are then told as its consequences.
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
    at_validation: ClassVar[bool] = False  # also asked when a validation loss is logged, between tracked steps
    at_end: ClassVar[bool] = False  # when the training is over, one look is enough
    probe: ClassVar[str] = ""  # an expensive probe that would decide, made at a tracked step while ``suspects`` holds

    def suspects(self, view: View) -> bool:
        """Is it worth a probe?"""
        return False

    def test(self, view: View) -> Found | None:
        raise NotImplementedError  # each diagnosis has its own
