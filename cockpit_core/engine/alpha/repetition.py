"""What Alpha did not keep: the passes of the step once more, before the step's move, projected layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cockpit_core.engine.capture import Captured, Pass, make_call
from cockpit_core.engine.forward import Forward
from cockpit_core.engine.making import Maker
from cockpit_core.engine.statistics import project
from cockpit_core.layers.module_state import NotRepeatable
from cockpit_core.layers.registry import Call
from cockpit_core.layers.seeds import external_seeds, flatten_tensors


class Repetition:
    """Forward and backward of one pass once more; ``g_n . s`` of the wanted parameters is taken layer by layer.

    The hooks of the layers hand it what comes by (``next_place``, ``saw``, ``take``).
    """

    def __init__(self, maker: Maker, forward: Forward, update: dict[str, Tensor], scale: float):
        self.maker, self.forward, self.update, self.scale = maker, forward, update, scale
        self.slopes: dict[str, Tensor] = {}
        self.outputs: dict[int, int] = {}
        self.waiting: dict[int, Captured] = {}
        self.seen = -1

    def next_place(self) -> tuple[int, int]:
        """The place of the next call: the call of the model that it belongs to, and its number in it."""
        self.seen += 1
        return self.forward.number, self.seen

    def run(self, batch_dim: int, mute: Callable[[], Any]) -> dict[str, Tensor]:
        forward, cover = self.forward, self.maker.cover
        result = forward.repeat(cover.model)
        outputs, gradients = dict(enumerate(flatten_tensors(result))), forward.gradients
        if any(k not in outputs or outputs[k].shape != b.shape for k, b in gradients.items()):
            raise NotRepeatable("the model gives other outputs when its forward pass is repeated")
        call = make_call(cover.model, forward.args, forward.kwargs, forward.batch_size, batch_dim, None, result)
        with mute():
            seeds = external_seeds({k: outputs[k] for k in gradients}, gradients, call)
        wanted = [cover.parameters[name] for name in self.update]
        ends = [(outputs[k], seed.to(outputs[k].dtype)) for k, seed in seeds.items()]
        try:
            torch.autograd.grad([out for out, _ in ends], wanted, [seed for _, seed in ends], allow_unused=True)
        except RuntimeError as error:  # checkpointing of the reentrant kind
            raise NotRepeatable(f"its backward pass cannot be repeated: {error}") from error
        for held in self.waiting.values():
            self._project(held)
        return self.slopes

    def saw(self, call: Call, outputs: int) -> None:
        self.outputs[id(call)] = outputs

    def take(self, call: Call, names: list[str], position: int, gradient: Tensor) -> None:
        held = self.waiting.setdefault(id(call), Captured(call, names))
        held.gradients[position] = gradient
        if self.outputs.get(id(call)) == 1 and not call.adds_up:
            self._project(self.waiting.pop(id(call)))

    def _project(self, held: Captured) -> None:
        names, own = self.maker.cover.names, dict(held.call.module.named_parameters(remove_duplicate=False))
        held.names = [local for local in held.names if names[id(own[local])] in self.update]
        if held.names:
            for local, part in self.maker.of_call(held, self.scale).items():
                name = names[id(own[local])]
                slopes = project(part, self.update[name])
                self.slopes[name] = self.slopes[name] + slopes if name in self.slopes else slopes
        held.call.release()


def join_passes(names: list[str], passes: list[Pass], repeat: Callable[[Pass], dict[str, Tensor]]) -> dict[str, Tensor]:
    """``g_n . s`` [B] over all passes of the step."""
    parts: dict[str, list[Tensor]] = {name: [] for name in names}
    for pass_ in passes:
        seen = repeat(pass_)
        for name in names:
            if name not in seen:
                raise NotRepeatable(f"{name} was not seen when the forward pass was repeated")
            parts[name].append(seen[name])
    return {name: torch.cat(pieces) for name, pieces in parts.items()}


def check_mean(name: str, slopes: Tensor, gradient: Tensor, step: Tensor, tolerance: float) -> None:
    """The slopes average to ``g . s``, which is known: a repetition that took another course shows here."""
    expected = float(torch.linalg.vecdot(gradient.reshape(-1).double(), step.reshape(-1).double()))
    mean, scale = float(slopes.mean()), float(slopes.abs().mean())
    if abs(mean - expected) > tolerance * (scale + abs(expected)):
        raise NotRepeatable(f"the forward pass did not come out the same when it was repeated (seen at {name})")
