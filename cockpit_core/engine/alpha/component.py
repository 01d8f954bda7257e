"""Alpha of a step: where it ended on the parabola through its two ends, seen by the samples of two batches.

One component owns it all: the start of a step that waits for its end, what is kept of the start until the step is known, the
repetition of what could not be kept, and the fit. The engine offers it two things: it projects individual gradients on
the directions that it names (``direction``), and it tells what the step was (``start``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from torch import Tensor

from cockpit_core.distributed.group import Group
from cockpit_core.distributed.joining import join_slopes
from cockpit_core.engine.alpha.along import Layer, find_factors
from cockpit_core.engine.alpha.ends import observe_end, project_on_update
from cockpit_core.engine.alpha.kept import Kept
from cockpit_core.engine.alpha.repetition import Repetition, check_mean, join_passes
from cockpit_core.engine.capture import Pass
from cockpit_core.engine.forward import at
from cockpit_core.engine.layer_result import LayerResult, tolerance_of
from cockpit_core.engine.making import Maker
from cockpit_core.engine.place import Place
from cockpit_core.engine.plan import Plan
from cockpit_core.engine.quiet import Quiet
from cockpit_core.engine.statistics import LayerStatistics
from cockpit_core.foundation.long_sums import sum_of
from cockpit_core.foundation.records import AlphaFit
from cockpit_core.foundation.transfer import Transfer
from cockpit_core.layers.module_state import NotRepeatable
from cockpit_core.layers.registry import NotCovered
from cockpit_core.quantities.alpha import End, fit_alpha
from cockpit_core.quantities.norms import combine

ASIDE = 1e-2  # of a step: so far its end may be from where the next gradient is taken
MOVED = "the parameters were moved after optimizer.step() and before the next gradient"
OTHERS = "other parameters are trained than at the step before: some were frozen, or set free"
NOT_KEPT = "the step was not along the gradient as before; measured from the next step on"


@dataclass
class Pending:
    """The start of a step whose end is not known yet."""

    step: int
    length: float
    start: End
    layers: frozenset[str]


@dataclass
class Batch:
    """What a step has seen of its batch: the individual losses, or why there are none, and its layers."""

    losses: Tensor | None
    no_losses: str
    reduced: Mapping[str, LayerStatistics]
    place: Place | None
    """Where its gradient was taken."""


@dataclass
class Taken:
    """The step that was just taken: ``s``, where it went from and to, and its gradient as far as it is still known."""

    step: int
    update: dict[str, Tensor]
    read_norms: Callable[[], Mapping[str, float]]
    """The lengths of ``update``; to be read as late as possible."""
    theta: dict[str, Tensor]
    lengths: Mapping[str, float]
    """The lengths of ``theta``, where somebody has measured them."""
    gradients: Mapping[str, Tensor]
    gradient_norms: Mapping[str, float]
    passes: list[Pass]
    scale: float
    half: bool
    place: Place | None
    unmeasured: str = ""
    """Why no individual gradients were measured, where that is known."""
    left_out: list[str] = field(default_factory=list)
    """Parameters that the user left out, but that moved."""
    transfer: Transfer = field(default_factory=Transfer)

    @cached_property
    def norms(self) -> Mapping[str, float]:
        return self.read_norms()


class Alpha:
    """From step to step: ``finish`` the one before with the batch of this one, ``start`` this one once it is taken."""

    def __init__(self, maker: Maker, quiet: Quiet, group: Group, batch_dim: int):
        self.maker, self.quiet, self.group, self.batch_dim = maker, quiet, group, batch_dim
        self.fits: list[AlphaFit] = []
        """Known, and not on record yet."""
        self.pending: Pending | None = None
        self.update: dict[str, Tensor] = {}  # s of the step that is pending
        self.landed: tuple[Place | None, float] = None, 0.0  # where it ended, and how far it went
        self.kept = Kept(0)
        self.is_parallel = False  # the steps are known to run along the gradient, so nothing need be kept
        self.never_repeats = ""  # why not
        self.repetition: Repetition | None = None  # while one runs
        self.note = ""  # what it costs, for the header

    # ---- while the step goes by ---------------------------------------------------------------------------------

    def begin(self, plan: Plan) -> None:
        self.kept = Kept(plan.memory_budget)

    def forget(self) -> None:
        """The step that is pending will not be measured at its end."""
        self.pending = None

    def direction(self, name: str) -> Tensor | None:
        """What the individual gradients of this batch are projected on: the step before."""
        return self.update.get(name)

    def keeps(self, plan: Plan, stale: bool) -> bool:
        """Will individual gradients of this step be asked for once more, when it is taken?"""
        return plan.alpha_start and (not self.is_parallel or stale)

    def may_repeat(self, plan: Plan, stale: bool, in_closure: bool) -> bool:
        """Can they be computed again then, rather than kept?"""
        return self.keeps(plan, stale) and self.group.repeats_alone and not in_closure and not self.never_repeats

    def keep(self, result: LayerResult, passes: list[Pass], repeatable: bool) -> None:
        """What the projection on the step needs of this layer, or nothing if it is too large and can be computed
        again."""
        name = result.name
        if repeatable:
            repeatable = all(
                len(one.forwards) == 1 and name not in one.direct and name not in one.shared for one in passes
            )
        self.kept.add(name, result.kept, may_repeat=repeatable)

    # ---- the far end --------------------------------------------------------------------------------------------

    def finish(self, batch: Batch) -> str:
        """The batch of this step is the far end of the step before: fit, or return the reason why there is no fit."""
        pending, self.pending = self.pending, None
        if pending is None:
            return ""
        landed, place = self.landed[0], batch.place
        if landed is not None and place is not None and not landed.has_same_parameters(place):
            return OTHERS
        if self._was_moved(place):
            return MOVED
        fitted, self.update = fit(pending, batch), {}
        if isinstance(fitted, str):
            return fitted
        self.fits.append(fitted)
        return ""

    def _was_moved(self, place: Place | None) -> bool:
        """Between the end of the step before and this one's gradient: Lookahead, averages, clipped or pruned weights."""
        landed, length = self.landed
        return landed is not None and place is not None and not landed.is_near(ASIDE * length, place.values)

    def take_fits(self) -> list[AlphaFit]:
        done, self.fits = self.fits, []
        return done

    # ---- the near end -------------------------------------------------------------------------------------------

    def start(self, batch: Batch, taken: Taken, find_place: Callable[[], Place | None]) -> str:
        """The step was s: its slopes at this end, until the next batch shows the other end; or why there will be no
        Alpha."""
        if batch.losses is None:
            return batch.no_losses
        place = find_place()
        if place is not None:
            place.ask(taken.transfer)
        if taken.place is not None:
            taken.place.ask(taken.transfer)
        project = partial(self._project, batch, taken)
        slopes, parallel = join_slopes(self.group, len(batch.losses), project)
        self._repeat(slopes, taken)
        part = find_uncovered(batch.reduced, taken)
        if part:
            return f"the step moved {part}, whose individual gradients are not measured"
        measured = [n for n in batch.reduced if n in taken.update]
        if len(slopes) < len(measured) or not slopes:
            self.is_parallel = False
            return self.never_repeats or taken.unmeasured or NOT_KEPT
        self.is_parallel = parallel
        length = combine({n: taken.norms[n] for n in slopes})
        if any(own.shape != batch.losses.shape for own in slopes.values()):
            return f"{len(next(iter(slopes.values())))} individual gradients for {len(batch.losses)} losses"
        total = sum_of(list(slopes.values()))
        start = observe_end(batch.losses, total, length if length > 0 else 1.0)
        self.pending = Pending(taken.step, length, start, frozenset(slopes))
        self.update = {n: taken.update[n] for n in slopes}
        began = taken.place
        self.landed = place, 0.0 if place is None or began is None else place.distance(began.values)
        return ""

    def _project(self, batch: Batch, taken: Taken) -> tuple[dict[str, Tensor], bool]:
        names = [n for n in batch.reduced if n in taken.update and n in taken.gradients]
        layers = {n: layer_of(n, taken) for n in names}
        factors = find_factors(layers, lambda: taken.norms, taken.transfer, likely=self.is_parallel)
        slopes, parallel = project_on_update(batch.reduced, taken.update, factors, self.kept.parts)
        return to_host(slopes), parallel

    def _repeat(self, slopes: dict[str, Tensor], taken: Taken) -> None:
        """What was not kept, because it would exceed the memory budget, is computed again at the parameters before."""
        again = [n for n in self.kept.repeated if n in taken.update and n not in slopes]
        if not again or self.never_repeats:
            return
        megabytes = sum(self.kept.repeated[n] for n in again) / 2**20
        first = f"{again[0]} and {len(again) - 1} more" if len(again) > 1 else again[0]
        try:
            slopes.update(self._project_again(again, taken))
            note = f"the forward and backward pass is repeated for {first}, rather than keeping {megabytes:.0f} MB"
        except (NotRepeatable, NotCovered) as reason:
            self.never_repeats = str(reason)
            note = f"{megabytes:.0f} MB are kept beyond memory_budget for {first}, because {reason}"
        self.note = f"Alpha: {note}"

    def _project_again(self, names: list[str], taken: Taken) -> dict[str, Tensor]:
        """``g_n . s`` [B] of parameters that were not kept: all passes of the step are repeated, before its move."""
        wanted = {name: taken.update[name] for name in names}

        def repeat(one: Pass) -> dict[str, Tensor]:
            self.repetition = Repetition(self.maker, one.forwards[0], wanted, taken.scale)
            return self.repetition.run(self.batch_dim, self.quiet.mute)

        before: AbstractContextManager[None] = at(self.maker.cover.parameters, taken.theta)
        try:
            with before, self.quiet.undisturbed():
                slopes = join_passes(names, taken.passes, repeat)
        finally:
            self.repetition = None
        for name in [name for name in names if name in taken.gradients]:
            gradient = taken.gradients[name]
            check_mean(name, slopes[name], gradient, taken.update[name], tolerance_of(gradient, taken.half))
        return slopes


def layer_of(name: str, taken: Taken) -> Layer:
    lengths = taken.gradient_norms[name], taken.lengths.get(name)
    return Layer.of(taken.update[name], taken.gradients[name], taken.theta[name], *lengths)


def to_host(vectors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Reads those that are not on the host yet, with one transfer."""
    away = [name for name, vector in vectors.items() if not vector.is_cpu]
    if away:
        parts = torch.cat([vectors[name] for name in away]).cpu().split([len(vectors[name]) for name in away])
        return vectors | dict(zip(away, parts, strict=True))
    return vectors


def find_uncovered(reduced: Mapping[str, LayerStatistics], taken: Taken) -> str:
    """A layer that moved without being measured: the losses of Alpha would belong to a longer step than its slopes."""
    moved = [n for n in taken.update if n not in reduced and taken.norms[n] > 0]
    names = [*moved, *taken.left_out]
    return "" if not names else names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def fit(pending: Pending, batch: Batch) -> AlphaFit | str:
    """The fit, once the batch after the step has been seen; or the reason why there is none."""
    if batch.losses is None:
        return batch.no_losses
    projected = {n: batch.reduced[n].projections for n in pending.layers if n in batch.reduced}
    missing = [name for name in pending.layers if "step" not in projected.get(name, {})]
    if missing:
        return f"{missing[0]} was not measured at the end of the step"
    if not projected:
        return "no layer has individual gradients"
    slopes = sum_of([own["step"] for own in projected.values()])
    if len(slopes) != len(batch.losses):
        return f"{len(slopes)} individual gradients for {len(batch.losses)} losses"
    end = observe_end(batch.losses, slopes, pending.length if pending.length > 0 else 1.0)
    return fit_alpha(pending.step, pending.length, pending.start, end)
