"""The samples of a step once more: the same calls of the model and the same losses, at other parameters.

While a step goes by, it is noted which calls of the model its losses came from (``Again``). Once the step is taken, the
losses are evaluated again, pass by pass: the micro-batches of a step are one batch, and their losses, slopes and
curvatures add up. ``forward.Forward`` is the only way to a repeated call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cockpit_core.engine.capture import Pass
from cockpit_core.engine.extensions.function_losses import FunctionLoss, read_function_loss
from cockpit_core.engine.forward import Forward
from cockpit_core.engine.loss.functions import Unknown
from cockpit_core.engine.loss.program import Around, Place, Program, write_program
from cockpit_core.engine.loss.roots import Root
from cockpit_core.layers.module_state import LossAgain, NotRepeatable
from cockpit_core.layers.seeds import flatten_tensors

REMEDY = "put it into a module and give that to track as loss_fn"
End = tuple[int, int]
"""Which call of the model, which of its outputs."""
Change = Callable[[Tensor, int], Tensor]


@dataclass(eq=False)
class Evaluation:
    """One value of the loss that was differentiated: ``factor`` is what its backward pass began with."""

    call: Forward | None
    programs: dict[Any, Program]
    """By place among the arguments of the loss module. For a loss without a module, the only one is the loss itself."""
    problem: str = ""
    factor: Tensor = field(default_factory=lambda: torch.ones(()))
    task: int = -1
    function: FunctionLoss | None = None
    """Where the loss was a function that its graph names."""

    def value(self, loss_fn: nn.Module | None, outputs: dict[End, Tensor]) -> Tensor:
        values = {place: program.run(outputs) for place, program in self.programs.items()}
        if self.call is None or loss_fn is None:
            return values[None]
        args = tuple(values.get(k, value) for k, value in enumerate(self.call.args))
        kwargs = {key: values.get(key, value) for key, value in self.call.kwargs.items()}
        return self.call.repeat(loss_fn, args, kwargs)


def take_factor(owner: weakref.ref[Again], evaluation: Evaluation, gradients: Any) -> None:
    """The backward pass has come to this loss. The graph holds the hook, and must not hold the step that holds it."""
    again, factor = owner(), gradients[0] if isinstance(gradients, tuple) else gradients
    if again is not None and factor is not None:
        task = torch._C._current_graph_task_id()
        again.evaluations.append(replace(evaluation, factor=factor.detach(), task=task))


@dataclass(eq=False)
class Again:
    """For one step: the calls of the model, where their outputs lie in the graph, and the losses made from them."""

    forwards: list[Forward] = field(default_factory=list)
    ends: dict[Place, End] = field(default_factory=dict)
    """By place in the graph."""
    evaluations: list[Evaluation] = field(default_factory=list)

    def note_outputs(self, forward: Forward, output: Any) -> None:
        self.forwards.append(forward)
        for position, tensor in enumerate(flatten_tensors(output)):
            if tensor.grad_fn is not None:
                self.ends.setdefault((tensor.grad_fn, tensor.output_nr), (len(self.forwards) - 1, position))

    @property
    def has_hooks(self) -> bool:
        """Of the user's, on modules that were called: they may change what is given, and are not called again."""
        return any(forward.state is not None and forward.state.has_hooks for forward in self.forwards)

    def old_output(self, end: End) -> Tensor | None:
        known = self.forwards[end[0]].outputs
        tensor, version = known[end[1]] if end[1] < len(known) else (None, 0)
        return tensor if tensor is not None and tensor._version == version else None

    def _around(self, parameters: Iterable[Tensor]) -> Around:
        return Around(self.ends, self.old_output, {id(p) for p in parameters})

    def note_loss(
        self, loss: LossAgain, args: tuple, kwargs: dict, output: Tensor, parameters: Iterable[Tensor]
    ) -> None:
        """A loss module gave ``output``; it counts once its backward pass begins."""
        call = Forward.of(loss.module, args, kwargs, 0)
        if loss.state is not None and loss.random_state is not None:  # as they were before the call
            call.state, call.random_state = loss.state, loss.random_state
        evaluation, around = Evaluation(call, {}), self._around(parameters)
        try:
            for place, value in [*enumerate(args), *kwargs.items()]:
                if isinstance(value, Tensor) and value.requires_grad:
                    roots = [((value.grad_fn, value.output_nr), None)]
                    evaluation.programs[place] = write_program(roots, around, value.detach())
        except Unknown as reason:
            evaluation.problem = (
                f"what the loss is given cannot be computed again: {reason}; let it take what the model returns"
            )
        output.register_hook(partial(take_factor, weakref.ref(self), evaluation))

    def read_root(self, root: Root, parameters: Iterable[Tensor]) -> Evaluation:
        """A backward pass is going to begin here, and no loss module explains all of it. Its graph does, while it
        exists."""
        evaluation = Evaluation(None, {})
        pairs = [(t, seed) for t, seed in zip(root.tensors, root.seeds, strict=True) if t.requires_grad]
        try:
            roots = [((t.grad_fn, t.output_nr), seed) for t, seed in pairs]
            known = torch.stack([(t.detach() * seed).sum() for t, seed in pairs]).sum()
            evaluation.programs[None] = write_program(roots, self._around(parameters), known)
        except Unknown as reason:
            evaluation.problem = f"the loss is a function: {reason}; {REMEDY}"
        if len(pairs) == 1 and not self._is_computed_inside(evaluation):
            evaluation.function = read_function_loss(pairs[0][0].grad_fn)
        return evaluation

    def _is_computed_inside(self, evaluation: Evaluation) -> bool:
        """Has the model computed its loss itself?"""
        ends = [self.old_output(end) for program in evaluation.programs.values() for end in program.ends]
        return bool(ends) and all(end is not None and end.dim() == 0 for end in ends)

    def note_whole(self, evaluation: Evaluation | None) -> None:
        """The backward pass that runs now has begun at what was read."""
        if evaluation is not None:
            self.evaluations.append(replace(evaluation, task=torch._C._current_graph_task_id()))

    def of_pass(self, one: Pass, *, by_module: bool = False) -> list[Evaluation]:
        """What was differentiated as a whole tells more than the loss module, which may be a part of it.
        ``by_module``: what the loss module tells, if there is one."""
        evaluations: list[Evaluation] = []
        for task in (one.task, *sorted(one.further)):
            own = [e for e in self.evaluations if e.task == task]
            evaluations += [e for e in own if (e.call is not None) == by_module] or own
        return evaluations

    def losses(self, model: nn.Module, loss_fn: nn.Module | None, passes: list[Pass], scale: float) -> Iterator[Tensor]:
        """The loss of each pass with a graph of its own, at the parameters as they are now."""
        for one in passes:
            evaluations = self._repeatable(one)
            outputs: dict[End, Tensor] = {}
            for k in sorted({end[0] for end in ends_of(evaluations)}):
                results = flatten_tensors(self.forwards[k].repeat(model, same=False))
                outputs |= {(k, position): tensor for position, tensor in enumerate(results)}
            yield add_up(evaluations, loss_fn, outputs, scale)

    def losses_of(
        self, change: Change, loss_fn: nn.Module | None, passes: list[Pass], scale: float
    ) -> Iterator[Tensor]:
        """The loss of each pass if the model had given something else: ``change`` of an output and the batch size. The model is
        not called."""
        for one in passes:
            evaluations, outputs = self._repeatable(one), dict[End, Tensor]()
            if any(step.leaf is not None for e in evaluations for p in e.programs.values() for step in p.steps):
                raise NotRepeatable("a part of the loss does not depend on what the model gives")
            for end in ends_of(evaluations):
                output = self.old_output(end)
                if output is None:
                    raise NotRepeatable("what the model gave was changed in place since")
                outputs[end] = change(output, self.forwards[end[0]].batch_size)
            yield add_up(evaluations, loss_fn, outputs, scale)

    def _repeatable(self, one: Pass) -> list[Evaluation]:
        evaluations = self.of_pass(one)
        if not evaluations:
            raise NotRepeatable("no loss was seen in the backward pass")
        problem = next((e.problem for e in evaluations if e.problem), "")
        if problem:
            raise NotRepeatable(problem)
        return evaluations


def ends_of(evaluations: Iterable[Evaluation]) -> set[End]:
    return {end for e in evaluations for program in e.programs.values() for end in program.ends}


def add_up(
    evaluations: Iterable[Evaluation], loss_fn: nn.Module | None, outputs: dict[End, Tensor], scale: float
) -> Tensor:
    return torch.stack([(e.value(loss_fn, outputs) * e.factor).sum() / scale for e in evaluations]).sum()
