"""The calls of the model in one step: how many samples each has, what it gave, and what it takes to repeat the last one."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from cockpit_core.engine.forward import Forward
from cockpit_core.engine.loss.graph import LOSS, OUTPUT, Held, mark
from cockpit_core.engine.loss.prepared import MOST_OUTPUTS, Output
from cockpit_core.engine.samples.following import Arguments, Follower, mark_outputs, samples_of_outputs
from cockpit_core.engine.survey import Survey


class Calls:
    """Calls are numbered over the run; everything else belongs to one step."""

    def __init__(self) -> None:
        self.number = 0
        self.size: int | None = None  # samples of the last call
        self.sizes: dict[int, int] = {0: 0}  # by number
        self.arguments = Arguments()  # of the last call
        self.forward: Forward | None = None  # the last one, where it may have to be repeated
        self.outputs: list[Output] = []  # where curvature may ask for them
        self.last_layer: Output | None = None  # for loops that call parts of the model
        self.held: weakref.WeakSet[Held] = weakref.WeakSet()  # what a graph holds goes with it
        self.follower = Follower()
        self.loss_key = object()  # marks what the tracked loss module gave in the graphs of this run

    def begin(self) -> None:
        self.forward, self.sizes, self.outputs, self.last_layer = None, {}, [], None
        for held in self.held:
            held.values = None
        self.held.clear()
        self.follower.begin()

    def add(self, size: int | None, args: tuple, kwargs: dict, batch_dim: int) -> None:
        """The model is called."""
        inputs = all_tensors((args, kwargs))
        lengths = {len(value) for value in (*args, *kwargs.values()) if isinstance(value, (list, tuple))}
        self.arguments = Arguments(lengths, {t.shape[batch_dim] for t in inputs if t.dim() > batch_dim})
        if inputs and inputs[0].dim() in self.follower.singles:
            size, self.arguments = 1, Arguments(lengths)
        self.size = size
        self.number += 1
        self.sizes[self.number] = size or 0
        self.follower.note_inputs(inputs, batch_dim, self.number)

    def may_repeat(self, forward: Forward) -> None:
        forward.number = self.number
        self.forward = forward

    def count_outputs(self, outputs: list[Tensor], batch_dim: int) -> None:
        """The outputs may count other samples than the inputs: graphs, not nodes."""
        mark_outputs(outputs, self.number)
        rows = self.follower.rows_of(self.number)
        self.resize(samples_of_outputs(outputs, self.size or 0, batch_dim, self.arguments, rows))

    def take_as_single(self) -> None:
        """A layer sees an input of the model as one sample: no size of it counts any, but a list of them may."""
        self.arguments = Arguments(self.arguments.lengths)
        self.resize(1)

    def resize(self, samples: int) -> None:
        """The last call of the model has this many samples, whatever its inputs suggested."""
        if samples != (self.size or 0):
            self.size = self.sizes[self.number] = samples
            self.follower.resize(self.number, samples)
            if self.forward is not None:
                self.forward.batch_size = samples

    def keep_output(self, position: int, tensor: Tensor) -> None:
        if self.forward is not None:
            self.outputs = [*self.outputs[-MOST_OUTPUTS:], Output(self.forward, position, tensor)]

    def hold(self, tensor: Tensor) -> None:
        """What a loss may be linear in: its values are not in the graph."""
        held = Held(tensor.detach())
        self.held.add(held)
        mark(tensor, OUTPUT, held)

    def mark_loss(self, output: Tensor) -> None:
        if output.dim():
            self.hold(output)
        else:
            mark(output, LOSS, self.loss_key)

    def find_origin(self, size: int | None) -> tuple[int, int]:
        """Which call of the model does a loss with so many samples belong to, and how many has it? The last one that
        fits, where the loop calls the model on several batches before their losses."""
        if size != self.size and size in self.sizes.values():
            return max(number for number, own in self.sizes.items() if own == size), size or 0
        return self.number, self.size or size or 0

    def origin_of(self, seen: Survey, batch_dim: int) -> tuple[int, int]:
        """The call of the model that a root belongs to, and its samples."""
        if seen.given:
            return self.find_origin(seen.given)
        number = max(seen.forwards, default=self.number)
        return number, self.sizes.get(number) or self.size or seen.rows(batch_dim)


def all_tensors(value: Any) -> list[Tensor]:
    """Integer tensors too: tokens are data."""
    if isinstance(value, Tensor):
        return [value] if value.layout == torch.strided else []
    if isinstance(value, dict) or hasattr(value, "keys"):
        value = list(value.values())
    return [tensor for item in value for tensor in all_tensors(item)] if isinstance(value, (list, tuple)) else []
