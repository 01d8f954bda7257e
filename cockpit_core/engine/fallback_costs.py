"""What individual gradients without a rule cost, for the header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from cockpit_core.layers.contribution import Contribution
from cockpit_core.layers.fallback import gradients_of

COSTLY = 3.0  # a fallback that takes longer than this many backward passes of its layer is worth a note


class FallbackCosts:
    """A fallback that takes much longer than its layer is worth a note. Timed at its second step, when it is warm."""

    def __init__(self, paths: Mapping[int, str]):
        self.paths = paths
        self.steps: dict[nn.Module, int] = {}
        self.timed = 0

    def note(self, parts: Sequence[Contribution]) -> dict[str, str]:
        """By path of the module."""
        notes = {}
        for part in parts:
            gradients = gradients_of(part)
            if gradients is None or id(gradients) == self.timed:
                continue
            module = gradients.call.module
            seen = self.steps[module] = self.steps.get(module, 0) + 1
            self.timed = id(gradients)
            ratio = gradients.cost_ratio() if seen == 2 else None
            if ratio is not None and ratio > COSTLY:
                path = self.paths.get(id(module)) or "the whole model"
                notes[path] = (
                    f"{path} ({type(module).__name__}) has no rule of its own: its individual gradients take {ratio:.0f} times "
                    "as long as its backward pass"
                )
        return notes
