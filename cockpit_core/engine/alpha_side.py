"""The step on both of its ends: what the engine hands to Alpha (``alpha``), and why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from cockpit_core.engine.alpha.component import Batch, Taken
from cockpit_core.engine.centre import Centre

Norms = Callable[[], dict[str, float]]


class AlphaSide(Centre):
    """Tells Alpha what the step was, and that the next batch is there."""

    def finish_alpha(self) -> str:
        """The batch of this step is the far end of the step before. Returns why it has no Alpha, if it has none."""
        if not self.step.plan.alpha_end:
            self.alpha.forget()
            return ""
        return self.clock.timed("alpha", self.alpha.finish, self._batch())

    def start_alpha(self, step: int, update: dict[str, Tensor], norms: Norms, lengths: Mapping[str, float]) -> str:
        """The step was ``update``, from parameters of these ``lengths``, if known. Returns why it will have no Alpha, or ""."""
        if not self.step.plan.alpha_start:
            return ""
        state, cover = self.step, self.cover
        taken = Taken(
            step=step,
            update=update,
            read_norms=norms,
            theta=state.theta,
            lengths=lengths,
            gradients=self.known_gradients(),
            gradient_norms=state.gradient_norms,
            passes=state.passes,
            scale=state.batch_size / state.loss_scale,
            half=state.half,
            place=state.place,
            unmeasured=state.why_unmeasured(),
            left_out=[n for n, p in cover.parameters.items() if n not in cover.selected and p.grad is not None],
            transfer=state.transfer,
        )
        reason = self.clock.timed("project step", self.alpha.start, self._batch(), taken, self.find_place)
        if self.alpha.note:
            self.cost_notes["Alpha"] = self.alpha.note
        return reason

    def _batch(self) -> Batch:
        state = self.step
        return Batch(state.losses(), state.why_no_losses(), state.reduced, state.place)
