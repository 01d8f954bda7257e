"""Alpha from step to step: the start of one is remembered until the batch after it has shown its end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from cockpit_core.distributed.together import join_slopes
from cockpit_core.engine.alpha import ends
from cockpit_core.engine.alpha.keeping import project_again
from cockpit_core.engine.engine import Engine
from cockpit_core.engine.layer_result import tolerance_of
from cockpit_core.engine.step import StepState
from cockpit_core.foundation.records import AlphaFit
from cockpit_core.layers.module_state import NotRepeatable
from cockpit_core.layers.registry import NotCovered
from cockpit_core.quantities.norms import combine
from cockpit_core.recording.statistics import find_reasons

ASIDE = 1e-2  # of a step: so far its end may be from where the next gradient is taken
MOVED = "the parameters were moved after optimizer.step() and before the next gradient"
MOVED_AND_THEN = (
    f"Cockpit: {MOVED}: such steps have no Alpha, and UpdateSize is that of step() alone. If the move belongs to the step "
    "(Lookahead, clipped weights), put both into `with run.stepping():`."
)


class AlphaSteps:
    """``pending``: the start of a step whose end is not known yet."""

    def __init__(self, engine: Engine, warn: Callable[[str, str], None]):
        self.engine, self.warn = engine, warn
        self.pending: ends.Pending | None = None

    def finish(self, state: StepState) -> AlphaFit | str | None:
        """The batch of this step is the far end of the step before: its fit, or why there is none; None: nothing waits."""
        pending, self.pending = self.pending, None
        if pending is None or not state.plan.alpha_end:
            return None
        if self._was_moved(state):
            self.warn("moved", MOVED_AND_THEN)
            return MOVED
        fit = self.engine.clock.timed("alpha", ends.finish, pending, state)
        self.engine.previous_update = {}
        return fit

    def _was_moved(self, state: StepState) -> bool:
        """Between the end of the step before and this one's gradient: Lookahead, averages, clipped or pruned weights."""
        landed, length = self.engine.landed
        return landed is not None and state.place is not None and not landed.is_near(ASIDE * length, state.place.values)

    def start(self, step: int, state: StepState, update: dict[str, Tensor], norms: dict[str, float]) -> str:
        """Remember where this step began; why not, where that cannot be. ``norms``: of the update, by layer."""
        engine, losses = self.engine, state.losses()
        if losses is None:
            return state.why_no_losses()
        gradients = self._known_gradients(state)
        project = partial(ends.project_on_update, state, update, norms, gradients)
        slopes, parallel = project() if engine.group is None else join_slopes(engine.group, len(losses), project)
        self._repeat(state, slopes, update, gradients)
        part = self._find_uncovered(state, norms)
        if part:
            return f"the step moved {part}, whose individual gradients are not measured"
        if len(slopes) < sum(name in update for name in state.reduced) or not slopes:
            engine.keeps_contributions = True
            known = any("gradient" in found.projections for found in state.reduced.values())
            return engine.never_repeats or find_reasons(state, state.plan, known).get(
                "individual", "the step was not along the gradient as before; measured from the next step on"
            )
        engine.keeps_contributions = not parallel
        self._remember(step, state, update, norms, slopes)
        return ""

    def _remember(
        self, step: int, state: StepState, update: dict[str, Tensor], norms: dict[str, float], slopes: dict[str, Tensor]
    ) -> None:
        engine, losses, total = self.engine, state.losses(), sum(slopes.values())
        assert isinstance(total, Tensor)
        assert losses is not None
        length = combine({n: norms[n] for n in slopes})
        start = ends.observe_end(losses, total / length if length > 0 else total)
        self.pending = ends.Pending(step, length, start, frozenset(slopes))
        engine.previous_update = {n: update[n] for n in slopes}
        place, began = engine.find_place(), state.place
        engine.landed = place, 0.0 if place is None or began is None else place.distance(began.values)

    def _find_uncovered(self, state: StepState, norms: dict[str, float]) -> str:
        """A layer that moved without being measured: the losses of Alpha would be of a longer step than its slopes."""
        cover = self.engine.cover
        moved = [n for n, norm in norms.items() if n not in state.reduced and norm > 0]
        left_out = [n for n, p in cover.parameters.items() if n not in cover.selected and p.grad is not None]
        names = [*moved, *left_out]
        return "" if not names else names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"

    def _known_gradients(self, state: StepState) -> dict[str, Tensor]:
        """Those of the backward pass: copies, if somebody is known to write into ``p.grad``, else ``p.grad`` itself."""
        engine = self.engine
        unchanged = {n: g for n, g in state.gradients.items() if engine.is_unchanged(n)}
        engine.gradients_change = len(unchanged) < len(state.gradients)
        return state.gradients if state.copied else unchanged

    def _repeat(
        self, state: StepState, slopes: dict[str, Tensor], update: dict[str, Tensor], gradients: dict[str, Tensor]
    ) -> None:
        """What was not kept, because it would exceed the memory budget, is computed again at the parameters before."""
        engine, kept = self.engine, state.kept
        again = [n for n in kept.repeated if n in update and n not in slopes]
        if not again or engine.never_repeats:
            return
        megabytes = sum(kept.repeated[n] for n in again) / 2**20
        first = f"{again[0]} and {len(again) - 1} more" if len(again) > 1 else again[0]
        try:
            slopes.update(project_again(engine, again, update, gradients, partial(tolerance_of, engine)))
            note = f"the forward and backward pass is repeated for {first}, rather than keeping {megabytes:.0f} MB"
        except (NotRepeatable, NotCovered) as reason:
            engine.never_repeats = str(reason)
            note = f"{megabytes:.0f} MB are kept beyond memory_budget for {first}, because {reason}"
        engine.cost_notes["Alpha"] = f"Alpha: {note}"
