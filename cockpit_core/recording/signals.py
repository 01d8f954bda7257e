"""Which numbers a step adds to the signals that diagnoses rest on; see ``cockpit_core.signals``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cockpit_core.engine.step import StepState
from cockpit_core.foundation.records import AlphaFit
from cockpit_core.signals.collector import Part
from cockpit_core.signals.gradients import measure_reach, measure_steps_to_go
from cockpit_core.signals.losses import measure_spread


def list_parts(state: StepState, fit: AlphaFit | None, called: Sequence[str], layers: Iterable[str]) -> list[Part]:
    """Named functions, so that one that fails does not affect the others. ``called``: layers in the order of the
    forward pass."""
    losses = state.losses()
    places = {name: place for place, name in enumerate(layers)}
    parts: list[Part] = [
        ("gradients", lambda: measure_reach(called, state.gradient_norms, places)),
        ("step", lambda: {"leftover": float(state.stale), "passes": float(state.backward_passes)}),
    ]
    if losses is not None:
        parts.append(("losses", lambda: measure_spread(losses)))
    if fit is not None:
        parts.append(("alpha", lambda: measure_steps_to_go(fit.loss_start, fit.slope_start, fit.length)))
    if state.loss_scale != 1:
        parts.append(("scale", lambda: {"loss_scale": state.loss_scale}))
    return parts
