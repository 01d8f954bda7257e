"""The centre of the engine: its parts, the state of the step, and the hooks that listen while a step is tracked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from cockpit_core.distributed.group import Group
from cockpit_core.engine.alpha.component import Alpha
from cockpit_core.engine.calls import Calls
from cockpit_core.engine.capture import BeforeCall
from cockpit_core.engine.clock import Clock
from cockpit_core.engine.compiled import EagerForAWhile
from cockpit_core.engine.cover import Cover
from cockpit_core.engine.curving.measuring import Asked, Curvature, CurvatureResult
from cockpit_core.engine.curving.points import Scene, mixes_samples
from cockpit_core.engine.fallback_costs import FallbackCosts
from cockpit_core.engine.hooks import Handles, Hook, LayerHook
from cockpit_core.engine.loss.differentiated import Verified
from cockpit_core.engine.making import Maker
from cockpit_core.engine.place import Place, Windows
from cockpit_core.engine.plan import Plan
from cockpit_core.engine.quiet import Quiet
from cockpit_core.engine.reducing import Reducer
from cockpit_core.engine.step import StepState
from cockpit_core.foundation.accelerator import find_accelerator
from cockpit_core.foundation.sharded import any_nonzero
from cockpit_core.layers.module_state import LossAgain
from cockpit_core.quantities.measured import OwnBatch

Guard = Callable[[str], Any]


class Centre:
    """Holds the parts of the engine. They return what they find; only the engine puts it into the state of the step."""

    def __init__(
        self,
        cover: Cover,
        loss_fn: Any,
        *,
        batch_dim: int,
        memory_budget: int,
        curvature: str,
        curvature_samples: int | None,
        seed: int,
        guard: Guard,
        group: Group,
        compiled: Sequence[nn.Module],
        noticed_loss: Callable[[Tensor, Tensor], None],
        loss_scale: Callable[[], float],
        owned: Callable[[], set[int]],
    ):
        """``compiled``: wrappers of the model that torch.compile made. ``noticed_loss`` is told of every backward pass;
        ``loss_scale`` is the factor of a GradScaler, once one has been seen; ``owned`` are the parameters that the run's
        optimizers step (those of others are zeroed by others)."""
        self.cover, self.loss_fn, self.batch_dim, self.memory_budget = cover, loss_fn, batch_dim, memory_budget
        self.curvature_samples, self.guard, self.group, self.compiled = curvature_samples, guard, group, list(compiled)
        self.noticed_loss, self.loss_scale, self.owned = noticed_loss, loss_scale, owned
        self.step = StepState(Plan())
        self.clock, self.calls, self.quiet = Clock(), Calls(), Quiet(cover.model, loss_fn)
        maker = Maker(cover, memory_budget, self.quiet.mute)
        self.reducer = Reducer(cover, maker, group, self.clock)
        self.alpha = Alpha(maker, self.quiet, group, batch_dim)
        self.curvature = Curvature(
            curvature, maker=maker, quiet=self.quiet, group=group, clock=self.clock, guard=guard, seed=seed
        )
        self.fallback_costs = FallbackCosts(cover.paths)
        self.verified, self.windows = Verified(), Windows()
        self.prepared: Any = None  # what is differentiated now (``loss.prepared.Prepared``)
        self.layer_handles = Handles()
        self.hooked: dict[nn.Module, list[str]] = {}
        self.armed: set[str] = set()  # parameters with a hook
        self.again: LossAgain | None = None  # the loss as it was before its last call
        self.before_calls: dict[int, BeforeCall] = {}  # of modules that may have to be run again, by id
        self.joins_batches = False  # a backward pass went through batches of different sizes
        self.unbatched = False  # some module of this step was called without the batch
        self.passes_per_step = 0  # seen at the last step; 0 = not known yet
        self.gradients_change = True  # False while nobody touches a gradient between backward pass and the step's end
        self.looked_again = 0  # steps whose samples were looked at again, once they were taken
        self.cost_notes: dict[str, str] = {}

    @property
    def muted(self) -> bool:
        return self.quiet.muted

    def mute(self) -> AbstractContextManager[None]:
        return self.quiet.mute()

    def awaits_backward(self) -> bool:
        """Is the forward pass that runs now the user's own, and is the first backward pass of this step still to
        come?"""
        own = not self.quiet.muted and self.alpha.repetition is None
        return own and self.step.open is None and not self.step.passes

    @property
    def may_repeat(self) -> bool:
        """Can what Alpha needs at the end of this step be computed again, rather than kept?"""
        return self.alpha.may_repeat(self.step.plan, self.step.stale, self.step.in_closure)

    # ---- arming -------------------------------------------------------------------------------------------------

    def begin(self, plan: Plan) -> None:
        """Start the next step. Layer hooks go on if individual gradients are wanted, and off if not."""
        self.curvature.forget_step(self.step.passes)
        several = self.passes_per_step != 1 or self.group.reduces_late or self.joins_batches
        self.step = StepState(plan, deferred=several)
        self.clock.begin()
        if plan.active:
            self.clock.use(find_accelerator(self.cover.parameters.values()))
        self.unbatched, self.again = False, None
        self.calls.begin()
        self.quiet.begin()
        self.alpha.begin(plan)
        wanted = plan.individual or bool(plan.curvature_kinds) or plan.keeps_calls or bool(plan.watched)
        if wanted and not self.layer_handles:
            self._hook_layers()
        elif wanted:
            self.quiet.watch.start()  # what was noted about the step before is gone
            self._hook_trained()
        else:
            self.layer_handles.remove()

    def replan(self, plan: Plan) -> None:
        """The current step is measured after all, as far as that is still possible."""
        self.step.plan = plan

    # ---- what others know about the step ----------------------------------------------------------------------------

    def expect_closure(self, closure: bool) -> None:
        """The optimizer is about to step. With a closure the backward pass is still to come."""
        self.step.in_closure = closure

    def unscale(self, scale: float) -> None:
        """A GradScaler was noticed only at the step."""
        self.step.unscale(scale)

    def note_ids(self, ids: np.ndarray) -> None:
        self.step.ids.append(ids)

    def note_second_look(self, own_batch: OwnBatch) -> None:
        self.looked_again += not own_batch.reasons

    def note_no_loss(self, reason: str) -> None:
        self.step.no_value["individual"] = reason

    def note_start(self, theta: dict[str, Tensor]) -> None:
        """Copies of the parameters before the step."""
        self.step.theta = theta

    def end_step(self, closure: bool, backward_passes: int) -> None:
        """The optimizer has stepped. ``backward_passes`` were counted where none was watched."""
        measured = self.step.backward_passes
        if closure:  # it may be called again; only its first backward pass counts
            self.passes_per_step = measured or 1
        else:
            counted = backward_passes if self.passes_per_step == 0 else 0
            self.passes_per_step = measured or counted or self.passes_per_step

    # ---- hooks --------------------------------------------------------------------------------------------------

    def _hook_layers(self) -> None:
        handles, cover = self.layer_handles, self.cover
        handles.add(EagerForAWhile(cover.model, self.compiled))
        handles.add(self.quiet.watch.start())
        if isinstance(self.loss_fn, nn.Module):
            handles.add(self.loss_fn.register_forward_pre_hook(LayerHook(self, "on_loss_call"), with_kwargs=True))
        handles.add(cover.model.register_forward_pre_hook(LayerHook(self, "on_model_begins")))
        handles.add(cover.model.register_forward_pre_hook(LayerHook(self, "on_model"), with_kwargs=True))
        handles.add(cover.model.register_forward_hook(LayerHook(self, "on_model_output")))
        self.hooked, self.armed = {}, set()
        self._hook_trained()

    def _hook_trained(self) -> None:
        """On layers and parameters that are trained, as far as there are none yet. None is taken off: torch may be about
        to call those of the model, and what is frozen for a while (as by a GAN's loop) comes back."""
        handles, cover = self.layer_handles, self.cover
        if cover.trainable().keys() <= self.armed:
            return
        for module, locals_ in cover.hooked_modules().items():
            before, by_rule = self.hooked.get(module), cover.has_rule
            if not all(by_rule(module, own) for own in locals_) and all(by_rule(module, own) for own in before or ()):
                handles.add(module.register_forward_pre_hook(LayerHook(self, "on_call"), with_kwargs=True))
            if before is None:
                handles.add(module.register_forward_hook(LayerHook(self, "on_layer"), with_kwargs=True))
            self.hooked[module] = list(dict.fromkeys((*(before or ()), *locals_)))
        for name, p in cover.trainable().items():
            if name not in self.armed:
                self.armed.add(name)
                handles.add(p.register_post_accumulate_grad_hook(Hook(self, "on_parameter")))

    def rehook(self) -> None:
        """The cover has changed: hooks must follow."""
        if self.layer_handles:
            self.layer_handles.remove()
            self._hook_layers()

    def on_model_begins(self, module: nn.Module, args: tuple) -> None:
        """Parameters may have been set free since the hooks were made (gradual unfreezing)."""
        if not self.quiet.muted and self.alpha.repetition is None:
            with self.guard("layer hooks"):
                self._hook_trained()

    def discard(self) -> None:
        """What was captured in this step no longer counts."""
        self.step.discard()
        self.alpha.begin(self.step.plan)

    # ---- where the parameters are -------------------------------------------------------------------------------

    def find_place(self) -> Place | None:
        """Where the parameters are now. No process holds enough of sharded ones to say, and others may not show their
        elements."""
        try:
            return None if self.cover.sharded else Place(self._moved_by_the_step(), self.windows)
        except Exception:
            return None

    def is_elsewhere(self) -> bool:
        """One more backward pass of this step, with new gradients at parameters that were moved meanwhile (SAM and
        other
        two-step optimizers): that is how the optimizer finds its step. The gradient is the one where the step begins."""
        state = self.step
        if not state.passes or state.measured or state.place is None or not state.place.has_moved():
            return False
        if state.elsewhere is None:
            if any_nonzero(p.grad for p in self._moved_by_the_step() if p.grad is not None):
                return False
            state.elsewhere = self.find_place()
        return True

    def drop_zeroed(self) -> None:
        """Gradients that were zeroed since the last backward (a step was skipped): those passes no longer count."""
        if not self.step.passes:
            return
        if self.cover.sharded and not self.step.gradient_norms:
            return  # the passes so far were not reduced yet (set_requires_gradient_sync)
        if not any_nonzero(p.grad for p in self._moved_by_the_step() if p.grad is not None):
            self.discard()

    def _moved_by_the_step(self) -> list[Tensor]:
        owned = self.owned()
        return [p for p in self.cover.trainable().values() if owned is None or id(p) in owned]

    # ---- what a gradient was ------------------------------------------------------------------------------------

    def gradient(self, name: str) -> Tensor:
        """What the backward passes of this step added to ``p.grad``."""
        gradient, before = self.cover.parameters[name].grad, self.step.before.get(name)
        assert gradient is not None
        gradient = to_dense(gradient.detach() if gradient.requires_grad else gradient)
        added = gradient if before is None else gradient - to_dense(before)
        return added / self.step.loss_scale if self.step.loss_scale != 1 else added

    def is_unchanged(self, name: str) -> bool:
        """Is ``p.grad`` still what the backward pass left there?"""
        mark = self.step.marks.get(name)
        return mark is not None and mark.fits(self.cover.parameters[name])

    def known_gradients(self) -> dict[str, Tensor]:
        """Those of the backward pass: copies, if somebody is known to write into ``p.grad``, else ``p.grad`` itself."""
        state = self.step
        unchanged = {n: g for n, g in state.gradients.items() if self.is_unchanged(n)}
        self.gradients_change = len(unchanged) < len(state.gradients)
        return state.gradients if state.copied else unchanged

    # ---- curvature ----------------------------------------------------------------------------------------------

    def asked(self) -> Asked:
        state, forward = self.step, self.calls.forward
        curved = state.open is not None and state.open.curved
        several = bool(state.passes) or curved or self.group.most_passes(self.passes_per_step) >= 2
        rough = forward is not None and bool(forward.autocast)
        return Asked(state.plan.curvature_kinds, several, not state.passes, rough, "squares" in state.plan.needs)

    def scene(self) -> Scene:
        calls = self.calls
        mixed = self.unbatched or mixes_samples(self.cover.model)
        squares = partial(self.curvature.sum_of_squares, self.step.scratch)
        return Scene(
            self.cover,
            self.batch_dim,
            calls.forward,
            calls.outputs,
            calls.last_layer,
            self.curvature_samples,
            mixed,
            squares,
        )

    def measure_curvature(self, make: Callable[[], Any], *, answer: bool = False) -> bool:
        """The curvature of the loss that ``make`` sets up. ``answer``: if it fails, the other processes are told."""
        asked = self.asked()
        try:
            result = self.curvature.measure(asked, make, self.curvature_samples)
        except Exception as error:
            if answer:
                self.take_curvature(self.curvature.answer_others(asked, error))
            raise
        self.take_curvature(result)
        return result.is_done

    def take_curvature(self, result: CurvatureResult) -> None:
        state = self.step
        for kind, diagonal in result.diagonals.items():
            known = state.diagonals.get(kind)
            state.diagonals[kind] = diagonal if known is None else known.plus(diagonal)
        state.eigenpairs |= result.eigenpairs
        for name, reason in result.reasons.items():
            state.no_value[name] = reason
            if name.startswith("eigenvalue "):
                state.eigenpairs.pop(name.removeprefix("eigenvalue "), None)
        state.curvature_part = result.part or state.curvature_part
        if result.note:
            self.cost_notes["eigenvalue"] = result.note


def to_dense(tensor: Tensor) -> Tensor:
    return tensor.to_dense() if tensor.is_sparse else tensor
