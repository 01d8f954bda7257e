"""The engine: hooks on loss and optimizer all the time, hooks on layers for the steps that are tracked.

One tracked step, in order: ``on_layer`` (forward, per call) -> ``on_loss_gradient`` (backward begins; curvature) ->
``on_output_gradient`` (per call) -> ``on_parameter`` (its gradient is there: reduce and free) -> ``on_backward_end`` ->
``before_step`` (what the optimizer sees) -> ``after_step`` (what it did).
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cockpit_core.distributed.group import Group
from cockpit_core.distributed.together import measure_together
from cockpit_core.engine.activations import read_activations
from cockpit_core.engine.alpha.keeping import Forward, Repetition
from cockpit_core.engine.broadcast import tag, watch_entries
from cockpit_core.engine.capture import BeforeCall, Pass, find_batch_size, find_labels, make_call
from cockpit_core.engine.clock import Clock
from cockpit_core.engine.compiled import EagerForAWhile
from cockpit_core.engine.cover import Cover
from cockpit_core.engine.curving import Curvature
from cockpit_core.engine.hooks import Handles, Hook, LayerHook
from cockpit_core.engine.layer_result import reduce_parameter
from cockpit_core.engine.loss.differentiated import Verified, read_root
from cockpit_core.engine.loss.graph import LOSS, OUTPUT, Held, covered_by_losses, mark, roots_of, shared_gradients
from cockpit_core.engine.loss.individual import NoIndividualLosses, check_sum, individual_losses, sum_per_sample
from cockpit_core.engine.loss.prepared import MOST_OUTPUTS, Output, Prepared, correct_loss
from cockpit_core.engine.loss.roots import Root
from cockpit_core.engine.place import Place
from cockpit_core.engine.plan import Plan
from cockpit_core.engine.samples.following import Follower, mark_outputs, samples_of_outputs
from cockpit_core.engine.step import GradientMark, StepState
from cockpit_core.engine.survey import Survey, survey
from cockpit_core.foundation.sharded import any_nonzero
from cockpit_core.layers import random_state
from cockpit_core.layers.fallback import flatten_tensors
from cockpit_core.layers.hook_watch import HookWatch
from cockpit_core.layers.module_state import LossAgain, ModuleState
from cockpit_core.layers.outside import runs_own_backward
from cockpit_core.layers.registry import Call
from cockpit_core.quantities.norms import measure_norms

Guard = Callable[[str], Any]


class Engine:
    """Captures and reduces; knows nothing of schedules, records and files."""

    def __init__(
        self, cover: Cover, loss_fn: Any, *, batch_dim: int, curvature: Curvature, memory_budget: int, guard: Guard
    ):
        self.cover, self.loss_fn, self.batch_dim = cover, loss_fn, batch_dim
        self.curvature, self.memory_budget, self.guard = curvature, memory_budget, guard
        cover.guard = guard
        self.step = StepState(Plan())
        self.clock = Clock()
        self.layer_handles = Handles()
        self.muted = 0
        self.watch = HookWatch()
        self.again: LossAgain | None = None  # the loss as it was before its last call
        self.runs_own_backward = runs_own_backward(cover.model)
        self.forward_size: int | None = None
        self.call_number, self.calls = 0, {0: 0}  # calls of the model, and the samples of those of this step
        self.joins_batches = False  # a backward pass went through batches of different sizes
        self.forward: Forward | None = None  # the last call of the model, where it may have to be repeated
        self.repetition: Repetition | None = None  # while one runs
        self.never_repeats = ""  # why not
        self.looked_again = 0  # steps whose samples were looked at again, once they were taken
        self.fallback_steps: dict[nn.Module, int] = {}
        self.timed: set[int] = set()
        self.cost_notes: dict[str, str] = {}
        self.unbatched = False  # some module of this step was called without the batch
        self.passes_per_step = 0  # seen at the last step; 0 = not known yet
        self.previous_update: dict[str, Tensor] = {}  # s_{t-1}, for the far end of its Alpha
        self.landed: tuple[Place | None, float] = None, 0.0  # where that step ended, and how far it went
        self.gradients_change = (
            True  # False while nobody touches a gradient between the backward pass and the step's end
        )
        self.keeps_contributions = True  # False while the steps are known to run along the gradient
        self.before_calls: dict[int, BeforeCall] = {}  # of modules that may have to be run again, by id
        self.compiled: list[nn.Module] = []  # wrappers of the model that torch.compile made
        self.follower = Follower()
        self.group: Group | None = None  # set by the run: several processes train this model together
        self.held: weakref.WeakSet[Held] = weakref.WeakSet()  # a graph that goes takes what it holds along
        self.loss_key = object()  # marks what the tracked loss module gave in the graphs of this engine's runs
        self.verified = Verified()
        self.outputs: list[Output] = []  # of the model, where curvature may ask for them
        self.last_layer: Output | None = None  # the last layer's, for loops that call parts of the model

    @contextmanager
    def mute(self) -> Iterator[None]:
        """Our own backward passes and forwards fire our own hooks: they must not listen."""
        if self.muted:
            yield
            return
        self.muted += 1
        try:
            with self.undisturbed():
                yield
        finally:
            self.muted -= 1

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """A pass of ours calls no hook of the user, and draws no random number that the user would have drawn.

        Where a backward pass runs code of the user's (checkpointing, an ``autograd.Function``), it runs on copies of all
        that this code keeps.
        """
        with ExitStack() as stack:
            stack.enter_context(self.watch.silenced(self.cover.model.parameters()))
            stack.enter_context(random_state.kept())
            if self.step.packed or self.runs_own_backward:
                loss = [self.loss_fn] if isinstance(self.loss_fn, nn.Module) else []
                stack.enter_context(ModuleState(self.cover.model, *loss).installed(hooks=True))
            yield

    def awaits_backward(self) -> bool:
        """Is a forward pass that runs now the user's own, and the first backward pass of this step still to come?"""
        return not self.muted and self.repetition is None and self.step.open is None and not self.step.passes

    # ---- arming -------------------------------------------------------------------------------------------------

    def begin(self, plan: Plan) -> None:
        """Start the next step. Layer hooks go on if individual gradients are wanted, and off if not."""
        self.curvature.forget_step(self.step.passes)
        self.step = StepState(plan, deferred=self.passes_per_step != 1 or self.group is not None or self.joins_batches)
        self.forward, self.unbatched = None, False
        self.calls, self.outputs, self.last_layer = {}, [], None
        for held in self.held:
            held.values = None
        self.held.clear()
        self.follower.begin()
        wanted = plan.individual or bool(plan.curvature_kinds) or plan.repeats or bool(plan.watched)
        self.again = None
        if wanted and not self.layer_handles:
            self._hook_layers()
        elif wanted:
            self.watch.start()  # what was noted of the step before is gone
        elif not wanted:
            self.layer_handles.remove()

    def _hook_layers(self) -> None:
        handles = self.layer_handles
        handles.add(EagerForAWhile(self.cover.model, self.compiled))
        handles.add(self.watch.start())
        if isinstance(self.loss_fn, nn.Module):
            handles.add(self.loss_fn.register_forward_pre_hook(LayerHook(self, "on_loss_call"), with_kwargs=True))
        handles.add(self.cover.model.register_forward_pre_hook(LayerHook(self, "on_model"), with_kwargs=True))
        handles.add(self.cover.model.register_forward_hook(LayerHook(self, "on_model_output")))
        for module in self.cover.hooked_modules():
            if any(not self.cover.has_rule(module, local) for local in self.cover.hooked_modules()[module]):
                handles.add(module.register_forward_pre_hook(LayerHook(self, "on_call"), with_kwargs=True))
            handles.add(module.register_forward_hook(LayerHook(self, "on_layer"), with_kwargs=True))
        for p in self.cover.trainable().values():
            handles.add(p.register_post_accumulate_grad_hook(Hook(self, "on_parameter")))
        self.hooked = self.cover.hooked_modules()

    def rehook(self) -> None:
        """The cover has changed: hooks must follow."""
        if self.layer_handles:
            self.layer_handles.remove()
            self._hook_layers()

    # ---- forward ------------------------------------------------------------------------------------------------

    def on_model(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        if self.muted or self.repetition is not None:
            return
        self.forward_size = find_batch_size((args, kwargs), self.batch_dim)
        self.call_number += 1
        self.calls[self.call_number] = self.forward_size or 0
        self.follower.note_inputs(all_tensors((args, kwargs)))
        plan = self.step.plan
        if torch.is_grad_enabled() and (plan.curvature_kinds or self.may_repeat or plan.repeats):
            self.forward = Forward.of(module, args, kwargs, self.forward_size or 0)
            self.forward.number = self.call_number

    @property
    def may_repeat(self) -> bool:
        """Can what Alpha needs at the end of this step be computed again, rather than kept?"""
        keeps = self.step.plan.alpha_start and (self.keeps_contributions or self.step.stale)
        return keeps and self.group is None and not self.step.in_closure and not self.never_repeats

    def on_model_output(self, module: nn.Module, args: tuple, output: Any) -> None:
        if self.muted or self.repetition is not None:
            return
        with self.guard("output of the model"):
            outputs = flatten_tensors(output)
            mark_outputs(outputs, self.call_number)
            self._count_samples(outputs)
            if torch.is_grad_enabled():
                self._note_outputs(output, outputs)

    def _note_outputs(self, output: Any, outputs: list[Tensor]) -> None:
        forward = self.forward
        if "scales" in self.step.plan.watched:
            self.clock.timed("activations", self.step.activations.note_output, "", outputs)
        if forward is not None:
            forward.outputs = [(tensor.detach(), tensor._version) for tensor in outputs]
            if self.step.plan.repeats:
                self.step.again.note_outputs(forward, output)
        for position, tensor in enumerate(outputs):
            if not tensor.requires_grad:
                continue
            if tensor.dim():
                self._hold(tensor)
            if self.step.plan.curvature_kinds and forward is not None:
                self.outputs = [*self.outputs[-MOST_OUTPUTS:], Output(forward, position, tensor)]
            if forward is not None and (self.may_repeat or self.step.plan.extensions):
                tensor.register_hook(partial(self.on_model_gradient, forward, position))

    def _count_samples(self, outputs: list[Tensor]) -> None:
        samples = samples_of_outputs(outputs, self.forward_size or 0, self.batch_dim)
        if samples != (self.forward_size or 0):
            self.forward_size = self.calls[self.call_number] = samples
            self.follower.resize(self.call_number, samples)
            if self.forward is not None:
                self.forward.batch_size = samples

    def _hold(self, tensor: Tensor) -> None:
        """What a loss may be linear in: its values are not in the graph."""
        held = Held(tensor.detach())
        self.held.add(held)
        mark(tensor, OUTPUT, held)

    def on_model_gradient(self, forward: Forward, position: int, gradient: Tensor) -> None:
        found = self.step.open
        if not self.muted and self.repetition is None and found is not None:
            if forward not in found.forwards:
                found.forwards.append(forward)
            forward.gradients[position] = gradient.detach()

    def on_call(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        if not self.muted and torch.is_grad_enabled():
            with self.guard("layer hooks"):
                self.before_calls[id(module)] = BeforeCall.of(module, args, kwargs)

    def on_layer(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        if self.muted or not torch.is_grad_enabled():
            return
        with self.guard("layer hooks"):
            tensors = [output] if isinstance(output, Tensor) else flatten_tensors(output)
            names = list(self.hooked[module])
            call = make_call(
                module,
                args,
                kwargs,
                self.forward_size or 0,
                self.cover.batch_dim(module, self.batch_dim),
                self.before_calls.pop(id(module), None),
                output,
            )
            call.forward = self.call_number
            if self.repetition is not None:
                self.follower.repeat(call, *self.repetition.next_place())
                self.repetition.saw(call, len(tensors))
            self.step.packed |= has_saved_tensor_hooks()
            if self.repetition is None:
                self.follower.note_call(call, tensors)
                if self.step.plan.watched:
                    self._watch_layer(self.cover.name_of(module, names[0]), tensors)
            for position, tensor in enumerate(tensors):
                if tensor.requires_grad:
                    if self.step.plan.curvature_kinds and self.repetition is None:
                        self.curvature.note(call, names, position, tensor)
                        self.last_layer = Output(None, position, tensor)
                    tensor.register_hook(partial(self.on_output_gradient, call, names, position))
                    if self.repetition is None:
                        tag(tensor, call, names, position)

    def _watch_layer(self, name: str, tensors: list[Tensor]) -> None:
        self.step.packed |= has_saved_tensor_hooks()
        if "scales" in self.step.plan.watched:
            self.clock.timed("activations", self.step.activations.note_output, name, tensors)

    def _watch_graph(self, root: Any) -> None:
        """The forward pass is complete, and nothing of its graph is freed."""
        wanted = self.step.plan.watched & {"units", "attention"}
        if not wanted or root is None:
            return
        if self.step.packed:
            self.step.activations.reason = "activations are checkpointed or stored elsewhere, and not looked at"
            return
        found = self.clock.timed("activations", read_activations, root, self.cover.names, wanted)
        self.step.activations.add(found)

    # ---- loss ---------------------------------------------------------------------------------------------------

    def on_loss_call(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        if not self.muted and torch.is_grad_enabled():
            with self.guard("loss hook"):
                self.again = LossAgain(module)

    def on_loss(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        """Wait for this loss to be differentiated. Nothing happens if it never is (validation)."""
        if self.muted or not isinstance(output, Tensor) or not output.requires_grad:
            return
        again, self.again = self.again or LossAgain(module), None
        with self.guard("loss hook"):
            self._watch_graph(output.grad_fn)
            if self.step.plan.repeats:
                self.step.again.note_loss(again, args, kwargs, output)
        origin = self.find_origin(find_batch_size((args, kwargs), self.batch_dim))
        self.look_for_broadcasts(output.grad_fn, origin)
        if output.dim():
            self._hold(output)
        else:
            mark(output, LOSS, self.loss_key)
        output.register_hook(partial(self.on_loss_gradient, origin, again, args, kwargs, output.detach()))

    def find_origin(self, size: int | None) -> tuple[int, int]:
        """Which call of the model does a loss with so many samples belong to, and how many has it? The last one that
        fits, where the loop calls the model on several batches before their losses."""
        if size != self.forward_size and size in self.calls.values():
            return max(number for number, own in self.calls.items() if own == size), size or 0
        return self.call_number, self.forward_size or size or 0

    def look_for_broadcasts(self, root: Any, origin: tuple[int, int]) -> None:
        """Before the backward pass of this loss: which parameters meet the batch only by broadcasting?"""
        if self.layer_handles and not self.muted:
            with self.guard("broadcast parameters"):
                watch_entries(self, root, origin)

    # ---- what is differentiated ---------------------------------------------------------------------------------

    def before_root(self, root: Root) -> Prepared | None:
        """The user is about to differentiate ``root``: read what its graph tells, as long as it is all there.

        None where it is not of this model, or nothing is measured. A sum of losses of the tracked loss module alone is
        taken apart at these (``on_loss_gradient``).
        """
        state = self.step
        if self.muted or not state.plan.active or (state.measured and state.in_closure) or self.is_elsewhere():
            return None
        seen = survey(root, self.cover.names, self.hooked if self.layer_handles else {}, bool(self.calls))
        plain = covered_by_losses(root, LOSS, self.loss_key)
        if not (seen.is_mine or plain is not None):
            return None
        prepared = Prepared(root.value, (0, 0), plain=bool(plain), by_module=plain is not None)
        if not plain:
            start = time.perf_counter()
            self._prepare(prepared, root, seen)
            state.overhead += time.perf_counter() - start
        return prepared

    def _prepare(self, prepared: Prepared, root: Root, seen: Survey) -> None:
        plan, origin = self.step.plan, self.origin_of(seen, root)
        prepared.origin = origin
        self._drop_zeroed()
        with self.mute(), random_state.restored(random_state.take([])):  # a hook of the user's may draw
            if plan.individual or {"losses", "alpha"} & plan.needs:
                reading = self.clock.timed("losses", read_root, root, origin, self.batch_dim, self.verified)
                prepared.reading = reading
                if plan.individual:
                    prepared.shared = shared_gradients(reading.terms, dict(self.cover.trainable()))
        for node, _ in roots_of(root):
            self._watch_graph(node)
            if plan.repeats:
                self.step.again.note_root(node)
        terms = [] if prepared.reading is None else prepared.reading.terms
        own = [term.edge.node for term in terms if not term.shared]
        whole = [node for node, _ in roots_of(root)]
        for node in own if own and len(own) < len(terms) else whole:  # a penalty knows no samples
            self.look_for_broadcasts(node, origin)
        if plan.curvature_kinds:
            scale = self.step.loss_scale if self.step.passes else self.loss_scale()
            found = [] if prepared.reading is None else prepared.reading.terms
            with random_state.restored(random_state.take([])):
                self.curvature.measure_root(self, root, origin[1], scale, found)
        for tensor in root.tensors:
            if tensor.requires_grad:
                prepared.handles.append(tensor.register_hook(partial(self.on_root_gradient, prepared)))

    def origin_of(self, seen: Survey, root: Root) -> tuple[int, int]:
        """The call of the model that this root belongs to, and its samples."""
        if seen.given:
            return self.find_origin(seen.given)
        number = max(seen.forwards, default=self.call_number)
        size = self.calls.get(number) or self.forward_size or seen.rows(self.batch_dim)
        return number, size

    def on_root_gradient(self, prepared: Prepared, factor: Tensor) -> None:
        if self.muted or prepared.opened:
            return
        prepared.opened = True
        with self.guard("loss hook"):
            if not prepared.by_module:
                self.noticed_loss(torch.tensor(prepared.value / self.loss_scale()), factor)
            found = self._open_pass(prepared.origin, None)
            found.whole, found.shared = True, prepared.shared
            found.curved = bool(self.step.plan.curvature_kinds)
            found.loss = prepared.value / self.step.loss_scale
            reading = prepared.reading
            if reading is None or reading.reason:
                found.no_losses = "" if reading is None else reading.reason
                return
            for forward, losses in reading.losses.items():
                found.note_size(forward, len(losses))
                found.add_losses(forward, losses / self.step.loss_scale)

    def after_root(self, prepared: Prepared, failed: bool) -> None:
        for handle in prepared.handles:
            handle.remove()
        state = self.step
        if failed:
            state.open = None
            if not state.passes:
                state.discard()
        elif prepared.plain and state.passes:
            correct_loss(state.passes[-1], prepared.value / state.loss_scale)

    def on_loss_gradient(
        self, origin: tuple[int, int], again: LossAgain, args: tuple, kwargs: dict, value: Tensor, factor: Tensor
    ) -> None:
        if self.muted or not self._is_of_interest(value, factor):
            return
        if self.step.open is not None and self.step.open.whole:
            return  # a part of what is differentiated
        with self.guard("loss hook"):
            if (self.step.measured and self.step.in_closure) or self.is_elsewhere():
                return
            start = time.perf_counter()
            try:
                found = self._open_pass(origin, find_batch_size((args, kwargs), self.batch_dim))
                factor = factor / self.step.loss_scale
                self._take_losses(found, origin[0], again, args, kwargs, value, factor)
                found.labels = find_labels(args, kwargs, found.batch_size)
                if value.dim() == 0:
                    self.curvature.measure(self, found, again, args, kwargs, factor)
            except Exception as error:
                self.curvature.answer_others(self, error)  # else they would wait for this process
                raise
            self.step.overhead += time.perf_counter() - start

    def _is_of_interest(self, value: Tensor, factor: Tensor) -> bool:
        """Every step comes by here, so no context manager: an idle one may cost microseconds only."""
        try:
            self.noticed_loss(value, factor)
        except Exception as error:
            with self.guard("loss hook"):
                raise error
        return self.step.plan.active

    loss_scale: Callable[[], float] = staticmethod(lambda: 1.0)
    """Set by the run: the factor of a GradScaler, once one has been seen."""

    owned: Callable[[], set[int] | None] = staticmethod(lambda: None)
    """Set by the run: the parameters that its optimizers step. Those of others are zeroed by others."""

    noticed_loss: Callable[[Tensor, Tensor], None] = staticmethod(lambda value, factor: None)
    """Set by the run: counts backward passes and looks for a loss that breaks."""

    def _open_pass(self, origin: tuple[int, int], loss_size: int | None) -> Pass:
        """Two losses in one backward are one pass; another backward is another micro-batch."""
        task = torch._C._current_graph_task_id()
        state = self.step
        if state.open is not None and state.open.task == task:
            state.open.part = origin[1] or state.open.part
            state.open.note_size(*origin)
            return state.open
        state.open = None  # an earlier backward was interrupted: what it captured is void
        self._drop_zeroed()
        if not state.passes:
            state.place = self.find_place()
        found = Pass(task, origin[1] or loss_size or 0, keeps_graph=keeps_graph())
        found.part = found.batch_size
        found.note_size(*origin)
        if not state.passes:
            state.before = {
                n: None if p.grad is None else p.grad.detach().clone() for n, p in self.cover.trainable().items()
            }
            state.stale = any_nonzero(b for b in state.before.values() if b is not None)
            state.loss_scale = self.loss_scale()
        state.open = found
        torch.autograd.Variable._execution_engine.queue_callback(self.on_backward_end)
        return found

    def find_place(self) -> Place | None:
        """Where the parameters are now; of sharded ones nobody holds enough to say, and others may not show their elements."""
        try:
            return None if self.cover.sharded else Place(self._moved_by_the_step())
        except Exception:
            return None

    def is_elsewhere(self) -> bool:
        """One more backward pass of this step, of new gradients at parameters that were moved meanwhile (SAM and other
        two-step optimizers): that is how the optimizer finds its step. The gradient is the one where the step begins."""
        state = self.step
        if not state.passes or state.measured or state.place is None or not state.place.has_moved():
            return False
        if state.elsewhere is None:
            if any_nonzero(p.grad for p in self._moved_by_the_step() if p.grad is not None):
                return False
            state.elsewhere = self.find_place()
        return True

    def _drop_zeroed(self) -> None:
        """Gradients that were zeroed since the last backward (a step was skipped): those passes no longer count."""
        if not self.step.passes:
            return
        if self.cover.sharded and not self.step.gradient_norms:
            return  # the passes so far were not reduced yet (set_requires_gradient_sync)
        if not any_nonzero(p.grad for p in self._moved_by_the_step() if p.grad is not None):
            self.step.discard()

    def _moved_by_the_step(self) -> list[Tensor]:
        owned = self.owned()
        return [p for p in self.cover.trainable().values() if owned is None or id(p) in owned]

    def _take_losses(
        self, found: Pass, call: int, again: LossAgain, args: tuple, kwargs: dict, value: Tensor, factor: Tensor
    ) -> None:
        """Loss and individual losses of this pass, times the user's own factor (1/3 for ``loss / 3``)."""
        found.loss += float((value * factor).sum())
        if not ({"losses", "alpha"} & self.step.plan.needs or self.step.plan.alpha_end) or found.no_losses:
            return
        try:
            if value.dim() > 0:  # reduction="none": the user's own reduction is in the factor
                name = type(self.loss_fn).__name__
                losses = sum_per_sample((value * factor).detach(), found.part, self.batch_dim, name) * found.part
            else:
                losses = self.clock.timed("losses", individual_losses, again, args, kwargs, found.part, self.batch_dim)
                if bool(torch.isfinite(value)):
                    check_sum(losses, float(value))
                losses = losses * factor
            found.add_losses(call, losses)
        except NoIndividualLosses as reason:
            found.no_losses, found.losses = str(reason), None

    # ---- backward -----------------------------------------------------------------------------------------------

    def on_output_gradient(self, call: Call, names: list[str], position: int, gradient: Tensor) -> None:
        if self.muted:
            return
        if self.repetition is not None:
            self.repetition.take(call, names, position, gradient.detach())
            return
        found = self.step.open
        if found is None or call.unbatched or not self.step.plan.individual:
            return
        with self.guard("output hooks"):
            call.batch_size = call.batch_size or found.batch_size
            self.step.half |= gradient.dtype in (torch.float16, torch.bfloat16)
            found.bytes += gradient.nbytes + sum(tensor.nbytes for tensor, _ in call.versions)
            found.add(call, names, self.cover, position, gradient.detach())

    def on_parameter(self, p: Tensor) -> None:
        found = self.step.open
        if found is None:
            return
        found.accumulated = True
        if self.muted or self.step.passes or not self.step.plan.individual:
            return
        found.arrived.append(self.cover.names[id(p)])
        if self.step.deferred and not self._stops_waiting(found):
            return
        start = time.perf_counter()
        with self.guard("individual gradients"):
            while found.arrived:
                name = found.arrived.pop(0)
                reduce_parameter(self, name, [found], found.batch_size, self._gradient(name))
        self.step.overhead += time.perf_counter() - start

    def _stops_waiting(self, found: Pass) -> bool:
        """Whether the first step has one backward pass or several shows at its end; too much memory cannot wait for it.

        If more passes come after all, the step has no individual gradients, and the next one is measured again.
        """
        self.step.deferred = self.passes_per_step != 0 or self.group is not None or found.bytes <= self.memory_budget
        return not self.step.deferred

    def _gradient(self, name: str) -> Tensor:
        """What the backward passes of this step added to ``p.grad``."""
        gradient, before = self.cover.parameters[name].grad, self.step.before.get(name)
        assert gradient is not None
        gradient = to_dense(gradient.detach())
        added = gradient if before is None else gradient - to_dense(before)
        return added / self.step.loss_scale if self.step.loss_scale != 1 else added

    def is_unchanged(self, name: str) -> bool:
        """Is ``p.grad`` still what the backward pass left there?"""
        mark = self.step.marks.get(name)
        return mark is not None and mark.fits(self.cover.parameters[name])

    def on_backward_end(self) -> None:
        if self.group is None:
            self._end_backward()
        else:  # called again behind the callbacks that reduce the gradient over the processes; there may be two in a row
            queue = torch.autograd.Variable._execution_engine.queue_callback
            queue(lambda: queue(self._end_backward))

    def _end_backward(self) -> None:
        found = self.step.open
        if found is None:
            return
        self.step.open = None
        start = time.perf_counter()
        with self.guard("end of backward"):
            only_looked_at = not found.accumulated and not self.cover.sharded  # torch.autograd.grad, no training
            if self.layer_handles and only_looked_at:
                if not self.step.passes:
                    self.step.discard()
                return
            self.step.passes.append(found)
            self._note_gradients()
            if found.is_union:  # what was reduced before the second batch was seen has the scale of the first
                self.joins_batches, reduced = True, self.step.reduced
                self.step.reduced = {n: s for n, s in reduced.items() if s.samples == found.batch_size}
            if self.step.in_closure and not self.step.measured:
                self.measure()
        self.step.overhead += time.perf_counter() - start

    def _note_gradients(self) -> None:
        """Norms (and, if asked for, elements) of the gradient before anybody clips it."""
        state = self.step
        gradients = {n: self._gradient(n) for n, p in self.cover.trainable().items() if p.grad is not None}
        state.marks = {n: GradientMark.of(self.cover.parameters[n]) for n in gradients}
        state.gradient_norms = self._norms(gradients)
        copies = state.copied = (
            "gradients" in state.plan.needs
            or (state.plan.alpha_start and self.gradients_change)
            or (state.plan.individual and state.deferred)
        )
        if copies or state.plan.alpha_start:
            own = {n: state.loss_scale != 1 or state.before.get(n) is not None or not copies for n in gradients}
            state.gradients = {n: g if own[n] else g.clone() for n, g in gradients.items()}

    def _norms(self, gradients: dict[str, Tensor]) -> dict[str, float]:
        """Of all gradients; those of this very pass that the check has measured are known."""
        seen = self.step.seen_norms
        known = {n: seen[n][0] for n in gradients if n in seen and seen[n][1].fits(self.cover.parameters[n])}
        rest = measure_norms({n: g for n, g in gradients.items() if n not in known})
        return {n: known[n] if n in known else rest[n] for n in gradients}

    # ---- the step -----------------------------------------------------------------------------------------------

    def measure(self) -> None:
        """All passes of the step are there: reduce what waited for the last of them, and check the rest."""
        state = self.step
        if self.group is not None:
            measure_together(self)
            return
        state.measured = True
        if not state.plan.individual or not state.passes:
            return
        if len(state.passes) > 1 and state.reduced:
            # The first pass was reduced as if it were the only one, but more came: its numbers have the wrong scale.
            state.reduced.clear()
            state.kept.clear()
            state.gram.clear()
            state.failures = {}
            state.no_value["individual"] = (
                "the number of backward passes per step changed; the next step is measured again"
            )
            return
        if not state.reduced and not state.failures:
            for name, gradient in state.gradients.items():
                if self.cover.methods.get(name, ("",))[0] != "not covered":
                    reduce_parameter(self, name, state.passes, state.batch_size, gradient)

    def settle_cover(self) -> list[tuple[str, str]]:
        """Layers that failed the check move to the enclosing module; returns what became final, with the reason."""
        final, changed = [], False
        for name, reason in self.step.failures.items():
            if self.step.plan.measures_individual and self.cover.methods.get(name, ("",))[0] != "not covered":
                changed = True
                if not self.cover.escalate(name, reason):
                    final.append((name, reason))
        if changed:
            self.rehook()
        return final


def keeps_graph() -> bool:
    """Was the backward pass that runs now told to ``retain_graph``? Yes, where torch does not tell."""
    asked = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return asked is None or bool(asked())


def has_saved_tensor_hooks() -> bool:
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is not None and top(False) is not None


def all_tensors(value: Any) -> list[Tensor]:
    """Those of whole numbers too: tokens are data."""
    if isinstance(value, Tensor):
        return [value] if value.layout == torch.strided else []
    if isinstance(value, dict) or hasattr(value, "keys"):
        value = list(value.values())
    return [tensor for item in value for tensor in all_tensors(item)] if isinstance(value, (list, tuple)) else []


def to_dense(tensor: Tensor) -> Tensor:
    return tensor.to_dense() if tensor.is_sparse else tensor
