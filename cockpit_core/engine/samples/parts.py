"""Several calls of the model on batches of the same size before one loss: looks at the same samples, or other samples?

Entry n of each call counts as one sample. That is so for calls on the same tensor, for steps of time (``x[:, t]``), for a call
that depends on another one, and where the loss compares outputs entry by entry (pairs). Outputs that only lie side by side in
the loss may as well be parts of a batch (``x.chunk(2)``), real and generated images, or two data sets: layers are then marked.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from cockpit_core.engine.samples.behind import GIVEN

PARTS = (
    "one loss takes several calls of the model side by side, and entry n of each call counts as one sample: if these are parts "
    "of a batch, call the model on the whole batch, or go back through each part by itself"
)
SIDE_BY_SIDE = ("Cat", "Stack")

Place = tuple[int, int, int]
"""Number of a tensor, samples in a part of it, and the sample where the part begins."""

Others = dict[int, tuple[int, int]]
"""By call of the model: its number in the step, and the calls that may have other samples, as bits."""


@dataclass(eq=False)
class GivenSamples:
    """Which samples each call of the model was given, as far as tensors tell it."""

    wholes: list[weakref.ref] = field(default_factory=list)
    """Tensors that calls were given, or parts of. Memory that was freed may come again, a tensor does not."""
    of_calls: dict[int, frozenset[Place]] = field(default_factory=dict)

    def clear(self) -> None:
        self.wholes.clear()
        self.of_calls.clear()

    def note(self, forward: int, tensors: list[Tensor], dim: int) -> None:
        places = (self._find(tensor, dim) for tensor in tensors)
        self.of_calls[forward] = frozenset(place for place in places if place is not None)

    def _find(self, tensor: Tensor, dim: int) -> Place | None:
        if tensor.dim() <= dim:
            return None
        whole = tensor if tensor._base is None else tensor._base
        number = next((n for n, other in enumerate(self.wholes) if other() is whole), len(self.wholes))
        if number == len(self.wholes):
            self.wholes.append(weakref.ref(whole))
        try:
            return number, tensor.shape[dim], start_of(tensor, whole, dim)
        except (RuntimeError, NotImplementedError):  # no memory of its own
            return None

    def others(self) -> Others:
        """Empty where all calls have the same samples."""
        if len(set(self.of_calls.values())) < 2:
            return {}
        numbered = list(enumerate(self.of_calls.values()))
        others = {
            forward: (nr, sum(1 << other for other, theirs in numbered if may_differ(own, theirs)))
            for nr, (forward, own) in enumerate(self.of_calls.items())
        }
        return others if any(mask for _, mask in others.values()) else {}


def start_of(tensor: Tensor, whole: Tensor, dim: int) -> int:
    """The first sample of a view; its place in memory, where it is no part along a dimension of the whole tensor."""
    step, rest = tensor.stride(dim), int(tensor.storage_offset()) - int(whole.storage_offset())
    for size, stride in sorted(zip(whole.shape, whole.stride(), strict=True), key=lambda own: -own[1]):
        if stride > 0:
            index, rest = divmod(rest, stride)
            if stride == step and size >= tensor.shape[dim]:
                return index
    return int(tensor.storage_offset())


def may_differ(one: frozenset[Place], other: frozenset[Place]) -> bool:
    """May calls that were given these have other samples, and as many of them?"""
    if not {size for _, size, _ in one} & {size for _, size, _ in other}:
        return False
    return not one & other or any(a[:2] == b[:2] and a != b for a in one for b in other)


def are_parts(root: Any, others: Others) -> bool:
    """Do calls with other samples meet below this loss only side by side: as terms of a sum, or joined?"""
    if not others:
        return False
    below: dict[Any, int] = {}
    behind, beside, paired = ([0] * len(others) for _ in range(3))
    waiting = [root]
    while waiting:
        node = waiting[-1]
        if node in below:
            waiting.pop()
            continue
        children = [child for child, _ in node.next_functions if child is not None]
        new = [child for child in children if child not in below]
        waiting += new
        if new:
            continue
        masks = {below[child] for child in children} - {0}
        below[node] = union = joined(masks)
        for nr in {others[forward][0] for forward, _ in node.metadata.get(GIVEN, ()) if forward in others}:
            behind[nr] |= union
            below[node] |= 1 << nr
        if len(masks) > 1:
            meet(masks, beside if is_side_by_side(node) else paired)
    return any(beside[nr] & mask & ~paired[nr] & ~behind[nr] & ~before(nr, behind) for nr, mask in others.values())


def joined(masks: set[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union


def meet(masks: set[int], known: list[int]) -> None:
    """Calls below one child meet those below the other children here."""
    for mask in masks:
        rest = joined(masks - {mask})
        for nr in range(mask.bit_length()):
            if mask >> nr & 1:
                known[nr] |= rest


def before(nr: int, behind: list[int]) -> int:
    """Calls that depend on this one."""
    return sum(1 << other for other, mask in enumerate(behind) if mask >> nr & 1)


def is_side_by_side(node: Any) -> bool:
    scalar = all(len(meta.shape) == 0 for meta in node._input_metadata)
    return scalar or node.name().startswith(SIDE_BY_SIDE)
