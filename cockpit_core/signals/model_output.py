"""What a model gave: which tensor the loss is taken to get, and parameters behind it that the model does not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from cockpit_core.curvature.autograd_graph import variable_of
from cockpit_core.signals.graph_losses import Given
from cockpit_core.signals.tensors import find_tensor

MOST = 2000  # nodes


def choose_given(output: Any, batch_size: int) -> Given | None:
    """The scores among what the model returned, if it says so; else the largest tensor with an entry for each sample."""
    chosen = output.get("logits") if hasattr(output, "get") else None
    alone = isinstance(output, Tensor) and output.is_floating_point()
    z = chosen if isinstance(chosen, Tensor) else output if alone else find_tensor(output, batch_size, True)
    held = output.values() if isinstance(output, Mapping) else output
    parts = held if isinstance(output, (tuple, list, Mapping)) else ()  # no iterator: it is the user's to exhaust
    several = [(t.detach(), t.grad_fn) for t in parts if isinstance(t, Tensor) and t.grad_fn is not None]
    return None if z is None else Given(z.detach(), z.grad_fn, tuple(several))


class Strays:
    """Parameters that the output depends on and the model does not have: those of layers in a plain list, which no optimizer
    gets from ``model.parameters()``. Somebody else may train them (another network, of which this one takes the output): then
    they change."""

    def __init__(self, model: nn.Module) -> None:
        self.model: nn.Module | None = model
        self.seen: list[tuple[Tensor, int]] = []  # with the version that they had

    def look(self, output: Any) -> None:
        """Once, at the first output."""
        if self.model is None or not isinstance(output, Tensor):
            return
        own = {id(p) for p in self.model.parameters()}
        self.model = None
        waiting, seen = [output.grad_fn], set[Any]()
        while waiting and len(seen) < MOST:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            leaf = variable_of(node)
            if isinstance(leaf, nn.Parameter) and id(leaf) not in own:
                self.seen.append((leaf, leaf._version))
            waiting += [child for child, _ in node.next_functions]

    def measure(self) -> dict[str, float]:
        """``stray``: how many numbers of them are as they were; nothing where there are none."""
        still = sum(p.numel() for p, version in self.seen if p._version == version)
        return {"stray": float(still)} if still else {}
