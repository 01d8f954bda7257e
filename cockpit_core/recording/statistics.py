"""What quantities are given: the statistics of one step."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cockpit_core.engine.plan import Plan
from cockpit_core.engine.statistics import LayerStatistics
from cockpit_core.engine.step import StepState
from cockpit_core.foundation.long_sums import differences
from cockpit_core.foundation.sharded import is_sharded, whole_of_each
from cockpit_core.foundation.ungraded import Ungraded
from cockpit_core.kernels.native import striding
from cockpit_core.quantities import Quantity, Statistics
from cockpit_core.quantities.norms import ask_norms


def gather_statistics(state: StepState, plan: Plan, parameters: Mapping[str, Tensor], **more: Any) -> Statistics:
    """``parameters``: those that are trained. One that this batch alone does not reach (an expert that got no tokens) is
    among them. ``more``: what the step itself does not know (its number, the time, the optimizer's own numbers).
    """
    reduced = {n: s for n, s in state.reduced.items() if s.is_measured}
    # Where nobody asks for projections, some layers have them all the same: their check was made with them.
    along = {n: s for n, s in reduced.items() if "gradient" in s.projections} if plan.asks_dots else {}
    return Statistics(
        batch_size=state.batch_size,
        loss=state.loss,
        losses=state.losses(),
        backward_seen=bool(state.passes),
        parameters={n: state.theta[n] if n in state.theta else p.detach() for n, p in parameters.items()},
        gradients=state.gradients,
        gradient_norms=state.gradient_norms,
        norms={n: s.norms for n, s in reduced.items() if s.norms is not None},
        dots={n: s.projections["gradient"] for n, s in along.items()},
        squares={n: s.squares for n, s in reduced.items() if s.squares is not None},
        counts={n: s.counts for n, s in reduced.items() if s.counts is not None},
        diagonals=state.diagonals,
        eigenpairs=state.eigenpairs,
        curvature_part=state.curvature_part,
        activations=state.activations if plan.watched else None,
        gram=state.gram,
        labels=state.labels(),
        no_value=find_reasons(state),
        transfer=state.transfer,
        known_arrays={"norms": arrays_of(reduced, "norms"), "dots": arrays_of(along, "gradient")},
        **more,
    )


def arrays_of(reduced: Mapping[str, LayerStatistics], key: str) -> dict[str, np.ndarray]:
    return {n: s.arrays[key] for n, s in reduced.items() if key in s.arrays}


def find_reasons(state: StepState) -> dict[str, str]:
    """Why statistics are missing."""
    reason = state.why_unmeasured()
    return {"individual": reason, **state.no_value} if reason else state.no_value


def show_whole(statistics: Statistics, quantity: Quantity) -> Statistics:
    """A sharded tensor may answer arithmetic with this process's part of the number. Our quantities that only take
    norms know that; every other quantity gets whole tensors."""
    if type(quantity).__module__.startswith("cockpit_core.") and not {"gradients", "squares"} & set(quantity.needs):
        return statistics
    chosen = [name for name in ("gradients", "parameters", "start", "update") if name in quantity.needs]
    changes: dict[str, Any] = {name: whole_of_each(getattr(statistics, name)) for name in chosen}
    return replace(statistics, **changes)


def copy_before(
    state: StepState, plan: Plan, parameters: Mapping[str, Tensor], *, whole: bool = False
) -> dict[str, Tensor]:
    """``theta_t``, where the step will be compared with it. All of it with a closure, and where asked for: which
    parameters get a gradient is not known yet."""
    if not (plan.alpha_start or "update" in plan.needs or state.in_closure):
        return {}
    with Ungraded():
        return {n: p.clone() for n, p in parameters.items() if whole or state.in_closure or p.grad is not None}


def find_update(
    state: StepState, parameters: Mapping[str, Tensor], more: Container[str] = ()
) -> tuple[dict[str, Tensor], Callable[[], dict[str, float]]]:
    """``s_t``, of the parameters that have a gradient, and of ``more``; and how long it is in each, not read yet."""
    names = [n for n in state.theta if n in state.gradient_norms or n in more]
    pairs = [parameters[n] for n in names], [state.theta[n] for n in names]
    if not names:
        return {}, dict
    if striding.can_walk(pairs[1]):
        steps = [torch.empty_like(before) for before in pairs[1]]
        if (walked := striding.try_apart(*pairs, steps)) is not None:
            lengths = {name: away for name, (_, away) in zip(names, walked, strict=True)}
            return dict(zip(names, steps, strict=True)), lambda: lengths
    if any(is_sharded(tensor) for tensor in pairs[1]):
        with Ungraded():
            update = dict(zip(names, torch._foreach_sub(*pairs), strict=True))
        return update, ask_norms(update, state.transfer)
    moved, apart = differences(*pairs, keep=True)
    asked = state.transfer.ask([apart])
    return dict(zip(names, moved, strict=True)), lambda: dict(zip(names, asked.read()[0].numpy().tolist(), strict=True))
