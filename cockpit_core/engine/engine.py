"""The engine: hooks on loss and optimizer all the time, hooks on layers for the steps that are tracked.

One tracked step, in order: ``on_layer`` (forward, per call) -> ``on_loss_gradient`` (backward begins; curvature) ->
``on_output_gradient`` (per call) -> ``on_parameter`` (its gradient is there: reduce and free) -> ``on_backward_end`` ->
``measure`` (what the optimizer sees) -> ``start_alpha`` (what it did). This file listens to forward pass and loss; ``backward``
and ``alpha_side`` have what follows, ``centre`` the parts and the state of the step.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cockpit_core.engine.activations import join_activations, note_output, read_activations
from cockpit_core.engine.backward import BackwardSide
from cockpit_core.engine.broadcast import find_broadcasts, tag
from cockpit_core.engine.capture import BeforeCall, Pass, find_batch_size, make_call
from cockpit_core.engine.curving.points import ModuleLoss, RootLoss
from cockpit_core.engine.forward import Forward
from cockpit_core.engine.loss.differentiated import read_root
from cockpit_core.engine.loss.graph import (
    LOSS,
    Terms,
    covered_by_losses,
    find_terms,
    is_loss_itself,
    roots_of,
    shared_gradients,
)
from cockpit_core.engine.loss.individual import NoIndividualLosses, individual_losses, is_one, sum_per_sample
from cockpit_core.engine.loss.labels import find_labels, labels_of_graph
from cockpit_core.engine.loss.prepared import Output, Prepared, correct_loss
from cockpit_core.engine.loss.roots import Root
from cockpit_core.engine.loss.samples import order_of_rows
from cockpit_core.engine.quiet import has_saved_tensor_hooks
from cockpit_core.engine.samples.following import holds_scalars
from cockpit_core.engine.survey import Survey, survey
from cockpit_core.layers import random_state
from cockpit_core.layers.module_state import LossAgain
from cockpit_core.layers.registry import INNER, Call, watch_inner
from cockpit_core.layers.seeds import flatten_tensors
from cockpit_core.quantities.measured import Activations


class Engine(BackwardSide):
    """Captures and reduces. Knows nothing about schedules, records and files."""

    # ---- forward ------------------------------------------------------------------------------------------------

    def note_batch(self, batch: Any) -> None:
        """A loop that calls parts of the model says what it is going to work on."""
        self.calls.size = find_batch_size(batch, self.batch_dim)

    def on_model(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        if self.quiet.muted or self.alpha.repetition is not None:
            return
        size, plan = find_batch_size((args, kwargs), self.batch_dim), self.step.plan
        self.calls.add(size, args, kwargs, self.batch_dim)
        if torch.is_grad_enabled() and (plan.curvature_kinds or self.may_repeat or plan.keeps_calls):
            self.calls.may_repeat(Forward.of(module, args, kwargs, size or 0))

    def on_model_output(self, module: nn.Module, args: tuple, output: Any) -> None:
        if self.quiet.muted or self.alpha.repetition is not None:
            return
        with self.guard("output of the model"):
            outputs = flatten_tensors(output)
            self.calls.count_outputs(outputs, self.batch_dim)
            if torch.is_grad_enabled():
                self._note_outputs(output, outputs)

    def _note_outputs(self, output: Any, outputs: list[Tensor]) -> None:
        forward, plan = self.calls.forward, self.step.plan
        self._note_scale("", outputs)
        if forward is not None:
            forward.outputs = [(tensor.detach(), tensor._version) for tensor in outputs]
            if plan.keeps_calls:
                self.step.again.note_outputs(forward, output)
        for position, tensor in enumerate(outputs):
            if not tensor.requires_grad:
                continue
            if tensor.dim() and not holds_scalars(tensor.grad_fn):
                self.calls.hold(tensor)
            if plan.curvature_kinds:
                self.calls.keep_output(position, tensor)
            if forward is not None and (self.may_repeat or plan.extensions):
                tensor.register_hook(partial(self.on_model_gradient, forward, position))

    def on_model_gradient(self, forward: Forward, position: int, gradient: Tensor) -> None:
        pass_ = self.step.open
        if not self.quiet.muted and self.alpha.repetition is None and pass_ is not None:
            if forward not in pass_.forwards:
                pass_.forwards.append(forward)
            forward.gradients[position] = gradient.detach()

    # ---- layers -------------------------------------------------------------------------------------------------

    def on_call(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        if not self.quiet.muted and torch.is_grad_enabled():
            with self.guard("layer hooks"):
                self.before_calls[id(module)] = BeforeCall.of(module, args, kwargs)

    def on_layer(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        if self.quiet.muted or not torch.is_grad_enabled():
            return
        with self.guard("layer hooks"):
            tensors = [output] if isinstance(output, Tensor) else flatten_tensors(output)
            names, repetition = self.hooked[module], self.alpha.repetition
            size = self.calls.size if repetition is None else repetition.forward.batch_size
            dim, before = self.cover.batch_dim(module, self.batch_dim), self.before_calls.pop(id(module), None)
            call = make_call(module, args, kwargs, size or 0, dim, before, output)
            call.forward, self.quiet.packed = self.calls.number, self.quiet.packed or has_saved_tensor_hooks()
            if repetition is None:
                self.step.swapped |= self.cover.find_swapped(module, names, call.state)
                self._note_layer(call, names, tensors)
            else:
                self.calls.follower.repeat(call, *repetition.next_place())
                repetition.saw(call, len(tensors))
            for position, tensor in enumerate(tensors):
                if tensor.requires_grad:
                    tensor.register_hook(partial(self.on_output_gradient, call, names, position))
                    if repetition is None:
                        tag(tensor, call, names, position)
            if repetition is None and not self.quiet.packed:
                watch_inner(call, tensors, partial(self.on_output_gradient, call, names, INNER))

    def _note_layer(self, call: Call, names: list[str], tensors: list[Tensor]) -> None:
        self.calls.follower.note_call(call, tensors)
        if self.calls.follower.is_single(call):
            self.calls.take_as_single()
        if "scales" in self.step.plan.watched:
            self._note_scale(self.cover.name_of(call.module, names[0]), tensors)
        if self.step.plan.curvature_kinds:
            for position, tensor in enumerate(tensors):
                if tensor.requires_grad:
                    self.curvature.note(call, names, position, tensor)
                    self.calls.last_layer = Output(None, position, tensor)

    def _note_scale(self, name: str, tensors: list[Tensor]) -> None:
        if "scales" in self.step.plan.watched:
            self.clock.timed("activations", note_output, self.step.activations, name, tensors)

    # ---- the graph, when the forward pass is complete -----------------------------------------------------------

    def _watch_graph(self, root: Any) -> None:
        """Nothing of it is freed yet."""
        wanted = self.step.plan.watched & {"units", "attention"}
        if not wanted or root is None:
            return
        if self.quiet.packed:
            self.step.activations.reason = "activations are checkpointed or stored elsewhere, and not looked at"
            return
        activations = self.clock.timed("activations", read_activations, root, self.cover.names, wanted)
        self.step.activations.add(activations)

    def join_activations(self) -> Activations:
        """Of all processes."""
        self.step.activations = join_activations(self.group, self.step.activations)
        return self.step.activations

    def _look_for_broadcasts(self, root: Any, origin: tuple[int, int]) -> None:
        """Before the backward pass of this loss: which parameters meet the batch only by broadcasting?"""
        if not self.layer_handles or self.quiet.muted:
            return
        with self.guard("broadcast parameters"):
            broadcasts = find_broadcasts(root, origin, self.batch_dim, self.cover, self.calls.follower, self.quiet)
            self.step.interacts = self.step.interacts or broadcasts.interacts
            for node, entry in broadcasts.entries:
                node.register_prehook(partial(self.on_entry, entry))
            self.unbatched |= broadcasts.has_unbatched

    # ---- loss ---------------------------------------------------------------------------------------------------

    def on_loss_call(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        if not self.quiet.muted and torch.is_grad_enabled():
            with self.guard("loss hook"):
                self.again = LossAgain(module)

    def on_loss(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        """Wait for this loss to be differentiated. Nothing happens if it never is (validation)."""
        if self.quiet.muted or not isinstance(output, Tensor) or not output.requires_grad:
            return
        again, self.again = self.again or LossAgain(module), None
        with self.guard("loss hook"):
            self._watch_graph(output.grad_fn)
            if self.step.plan.keeps_calls:
                self.step.again.note_loss(again, args, kwargs, output, self.cover.parameters.values())
        origin = self.calls.find_origin(find_batch_size((args, kwargs), self.batch_dim))
        self._look_for_broadcasts(output.grad_fn, origin)
        self.calls.mark_loss(output)
        output.register_hook(partial(self.on_loss_gradient, origin, again, args, kwargs, output.detach()))

    def on_loss_gradient(
        self, origin: tuple[int, int], again: LossAgain, args: tuple, kwargs: dict, value: Tensor, factor: Tensor
    ) -> None:
        if self.quiet.muted or not self._is_of_interest(value, factor):
            return
        if self.step.open is not None and self.step.open.whole:
            return  # a part of what is differentiated
        with self.guard("loss hook"):
            if (self.step.measured and self.step.in_closure) or self.is_elsewhere():
                return
            start = self.clock.mark()
            try:
                pass_ = self.open_pass(origin, find_batch_size((args, kwargs), self.batch_dim))
                factor = factor / self.step.loss_scale if self.step.loss_scale != 1 else factor
                self._take_losses(pass_, origin[0], again, args, kwargs, value, factor)
                pass_.labels = find_labels(args, kwargs, pass_.batch_size)
                if value.dim() == 0:
                    calls = again, args, kwargs, factor
                    pass_.curved |= self.measure_curvature(lambda: ModuleLoss(self.scene(), pass_.part, *calls))
            except Exception as error:
                self.take_curvature(self.curvature.answer_others(self.asked(), error))  # else they would wait
                raise
            self.clock.add_overhead(start)

    def _is_of_interest(self, value: Tensor, factor: Tensor) -> bool:
        """Every step comes by here, so there is no context manager: an idle step may cost only microseconds."""
        try:
            self.noticed_loss(value, factor)
        except Exception as error:
            with self.guard("loss hook"):
                raise error
        return self.step.plan.active

    def _take_losses(
        self, pass_: Pass, call: int, again: LossAgain, args: tuple, kwargs: dict, value: Tensor, factor: Tensor
    ) -> None:
        """The loss and the individual losses of this pass, times the user's own factor (1/3 for ``loss / 3``)."""
        pass_.amounts.append((value * factor).sum() if value.dim() else value * factor)
        if not ({"losses", "alpha"} & self.step.plan.needs or self.step.plan.alpha_end) or pass_.no_losses:
            return
        try:
            if value.dim() > 0:  # reduction="none": the user's own reduction is in the factor
                name = type(self.loss_fn).__name__
                losses = sum_per_sample((value * factor).detach(), pass_.part, self.batch_dim, name) * pass_.part
            else:
                order = self._order_of_rows(args, pass_.part)
                calls = again, args, kwargs, pass_.part, self.batch_dim, order
                losses = self.clock.timed("losses", individual_losses, *calls)
                pass_.unchecked.append((losses, value))
                losses = losses if is_one(factor) else losses * factor
            pass_.add_losses(call, losses)
        except NoIndividualLosses as reason:
            pass_.no_losses, pass_.losses = str(reason), None

    def _order_of_rows(self, args: tuple, B: int) -> Tensor | None:
        """The sample of each row that a loss module was given, where there are k B of them in an unexpected order."""
        given = next((value for value in args if isinstance(value, Tensor) and value.requires_grad), None)
        if given is None or not given.dim() or len(given) <= B or B < 2 or len(given) % B:
            return None
        key = ("order", tuple(given.shape), B)
        if not self.verified.is_due(key):
            return None
        with self.quiet.mute():
            order = self.clock.timed("losses", order_of_rows, given, B, self.batch_dim)
        if order is not None:
            self.verified.forget(key)
        return order

    # ---- what is differentiated ---------------------------------------------------------------------------------

    def before_root(self, root: Root) -> Prepared | None:
        """The user is about to differentiate ``root``: read what its graph tells, as long as it is all there.

        None where it is not of this model, or nothing is measured. A sum of losses of the tracked loss module alone is
        taken apart at these (``on_loss_gradient``).
        """
        state = self.step
        if self.quiet.muted or not state.plan.active or (state.measured and state.in_closure) or self.is_elsewhere():
            return None
        plain = covered_by_losses(root, LOSS, self.calls.loss_key)
        prepared = Prepared(root, (0, 0), plain=bool(plain), by_module=plain is not None)
        if not plain:  # else it is ours, and nothing more is asked of its graph
            hooked = self.hooked if self.layer_handles else {}
            seen = survey(root, self.cover.names, hooked, bool(self.calls.sizes), self.cover.sharded)
            if not (seen.is_mine or plain is not None):
                return None
            start = self.clock.mark()
            self._prepare(prepared, root, seen)
            self.clock.add_overhead(start)
        self.prepared = prepared
        return prepared

    def _prepare(self, prepared: Prepared, root: Root, seen: Survey) -> None:
        plan, origin = self.step.plan, self.calls.origin_of(seen, self.batch_dim)
        prepared.origin = origin
        self.drop_zeroed()
        asks = plan.individual or {"losses", "alpha"} & plan.needs
        parts = prepared.parts = find_terms(root, origin[1], self.batch_dim) if asks else Terms()
        terms, whole = parts.terms, [node for node, _ in roots_of(root)]
        own = [term.edge.node for term in terms if not term.shared]
        for node in own if own and len(own) < len(terms) else whole:  # a penalty has no samples
            self._look_for_broadcasts(node, origin)
        if asks:  # the calls have been told of their samples
            with self.quiet.mute():  # the user's hooks may draw
                rest = parts, origin, self.batch_dim, self.verified
                prepared.reading = self.clock.timed("losses", read_root, root, *rest)
                if plan.individual:
                    prepared.shared = shared_gradients(terms, dict(self.cover.trainable()))
        for node in whole:
            self._watch_graph(node)
        if plan.keeps_calls:
            prepared.again = self.step.again.read_root(root, self.cover.parameters.values())
        prepared.labels = labels_of_graph((term.edge.node for term in terms), origin[1])
        if plan.curvature_kinds:
            scale = self.step.loss_scale if self.step.passes else self.loss_scale()
            with random_state.restored(random_state.take([])):
                self.measure_curvature(lambda: RootLoss(self.scene(), root, origin[1], scale, terms), answer=True)
        for tensor in root.tensors:
            if tensor.requires_grad:
                prepared.handles.append(tensor.register_hook(partial(self.on_root_gradient, prepared)))

    def on_root_gradient(self, prepared: Prepared, factor: Tensor) -> None:
        if self.quiet.muted or prepared.opened:
            return
        prepared.opened = True
        with self.guard("loss hook"):
            if not prepared.by_module:
                self.noticed_loss(torch.tensor(prepared.value / self.loss_scale()), factor)
            pass_ = self.open_pass(prepared.origin, None)
            pass_.whole, pass_.shared = True, prepared.shared
            pass_.labels, pass_.is_penalty = prepared.labels, prepared.is_penalty
            self.step.again.note_whole(prepared.again)
            pass_.curved, pass_.loss = bool(self.step.plan.curvature_kinds), prepared.value / self.step.loss_scale
            reading = prepared.reading
            if reading is None or reading.reason:
                pass_.no_losses = "" if reading is None else reading.reason
                return
            for forward, losses in reading.losses.items():
                pass_.note_size(forward, len(losses))
                pass_.add_losses(forward, losses / self.step.loss_scale)

    def after_root(self, prepared: Prepared, failed: bool) -> None:
        for handle in prepared.handles:
            handle.remove()
        self.prepared, state = None, self.step
        if prepared.ended and not failed:
            self.end_backward()
        if failed:
            state.open = None
            if not state.passes:
                self.discard()
        elif prepared.plain and state.ended and not is_loss_itself(prepared.root, LOSS, self.calls.loss_key):
            correct_loss(state.passes, state.ended, prepared.value / state.loss_scale)
