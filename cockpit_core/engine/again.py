"""The samples of a step once more: the same calls of the model and the same losses, at other parameters.

While a step goes by, it is noted which calls of the model its losses came from (``Again``). Once the step is taken, the
losses are evaluated again, pass by pass: the micro-batches of a step are one batch, and their losses, slopes and
curvatures add up. ``forward.Forward`` is the one door to a repeated call.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cockpit_core.engine.capture import Pass
from cockpit_core.engine.extensions.function_losses import FunctionLoss, read_function_loss
from cockpit_core.engine.forward import Forward
from cockpit_core.engine.samples.routes import NoRoute, Place, Route, find_route, find_route_from
from cockpit_core.layers.module_state import LossAgain, NotRepeatable
from cockpit_core.layers.seeds import flatten_tensors

REMEDY = "let the loss take what the model returns"


@dataclass(eq=False)
class Evaluation:
    """One value of the loss that was differentiated: ``factor`` is what its backward pass began with."""

    call: Forward | None
    routes: dict[Any, Route]
    """By place among the arguments of the loss; the only one is None where the loss is an output of the model."""
    problem: str = ""
    factor: Tensor = field(default_factory=lambda: torch.ones(()))
    task: int = -1
    function: FunctionLoss | None = None
    """Where the loss was a function that its graph names."""

    def value(self, loss_fn: nn.Module | None, outputs: dict[tuple[int, int], Tensor]) -> Tensor:
        found = {place: route.follow(outputs[route.end]) for place, route in self.routes.items()}
        if self.call is None or loss_fn is None:
            return found[None]
        args = tuple(found.get(k, value) for k, value in enumerate(self.call.args))
        kwargs = {key: found.get(key, value) for key, value in self.call.kwargs.items()}
        return self.call.repeat(loss_fn, args, kwargs)


def take_factor(owner: weakref.ref[Again], evaluation: Evaluation, gradients: Any) -> None:
    """The backward pass has come to this loss. The graph holds the hook, and must not hold the step that holds it."""
    again, factor = owner(), gradients[0] if isinstance(gradients, tuple) else gradients
    if again is not None and factor is not None:
        task = torch._C._current_graph_task_id()
        again.evaluations.append(replace(evaluation, factor=factor.detach(), task=task))


@dataclass(eq=False)
class Again:
    """Of one step: calls of the model, where their outputs lie in the graph, and the losses that were made of them."""

    forwards: list[Forward] = field(default_factory=list)
    ends: dict[Place, tuple[int, int]] = field(default_factory=dict)
    """Place in the graph -> (which call of the model, which of its outputs)."""
    evaluations: list[Evaluation] = field(default_factory=list)

    def note_outputs(self, forward: Forward, output: Any) -> None:
        self.forwards.append(forward)
        for position, tensor in enumerate(flatten_tensors(output)):
            if tensor.grad_fn is not None:
                self.ends.setdefault((tensor.grad_fn, tensor.output_nr), (len(self.forwards) - 1, position))

    def note_loss(self, loss: LossAgain, args: tuple, kwargs: dict, output: Tensor) -> None:
        """A loss module gave ``output``; it counts once its backward pass begins."""
        call = Forward.of(loss.module, args, kwargs, 0)
        if loss.state is not None and loss.random_state is not None:  # as they were before the call
            call.state, call.random_state = loss.state, loss.random_state
        evaluation = Evaluation(call, {})
        try:
            for place, value in [*enumerate(args), *kwargs.items()]:
                if isinstance(value, Tensor) and value.requires_grad:
                    evaluation.routes[place] = find_route(value, self.ends)
        except NoRoute as reason:
            evaluation.problem = f"{reason}; {REMEDY}"
        output.register_hook(partial(take_factor, weakref.ref(self), evaluation))

    def note_root(self, root: Any) -> None:
        """A backward pass is going to begin here: is the loss one of the model's own outputs?"""
        if root is None:
            return
        evaluation = Evaluation(None, {})
        try:
            evaluation.routes[None] = find_route_from((root, 0), self.ends)
        except NoRoute as reason:
            evaluation.problem = f"the loss is a function: {reason}"
            evaluation.function = read_function_loss(root)
        root.register_prehook(partial(take_factor, weakref.ref(self), evaluation))

    def of_pass(self, found: Pass) -> list[Evaluation]:
        """A loss module tells more than the root of the graph, which is its output or made of it."""
        evaluations: list[Evaluation] = []
        for task in (found.task, *sorted(found.further)):
            own = [e for e in self.evaluations if e.task == task]
            modules = [e for e in own if e.call is not None]
            evaluations += modules or own[:1]
        return evaluations

    def losses(self, model: nn.Module, loss_fn: nn.Module | None, passes: list[Pass], scale: float) -> Iterator[Tensor]:
        """The loss of each pass with a graph of its own, at the parameters as they are now."""
        for found in passes:
            evaluations = self.of_pass(found)
            if not evaluations:
                raise NotRepeatable("no loss was seen in the backward pass")
            problem = next((e.problem for e in evaluations if e.problem), "")
            if problem:
                raise NotRepeatable(problem)
            wanted = sorted({route.end[0] for e in evaluations for route in e.routes.values()})
            outputs: dict[tuple[int, int], Tensor] = {}
            for k in wanted:
                results = flatten_tensors(self.forwards[k].repeat(model, same=False))
                outputs |= {(k, position): tensor for position, tensor in enumerate(results)}
            parts = [(e.value(loss_fn, outputs) * e.factor).sum() / scale for e in evaluations]
            yield torch.stack(parts).sum()
