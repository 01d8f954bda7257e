"""Modules with a batch of their own (attention, recurrences): whose are the rows that they were given?

Their batch need not be the batch: windows of images are k B rows, sorted sequences lie in another order. What was seen in
the graph (``Call.rows``, ``Call.dims``) says which sample each row belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from cockpit_core.layers.registry import Call, gather_rows

BySample = Callable[[Tensor], Tensor]
"""Brings [R, S, features] of a module's own batch to [B, S', features]."""


def batch_axis(module: nn.Module, position: int, default: int) -> int:
    """Which dimension of this output counts the rows of the module's own batch."""
    if isinstance(module, nn.RNNBase):
        return (0 if module.batch_first else 1) if position == 0 else 1
    if isinstance(module, nn.MultiheadAttention):
        return (0 if module.batch_first else 1) if position == 0 else 0
    return default


def by_sample(call: Call, positions: Iterable[int], count: int) -> BySample | None:
    """How to bring ``count`` rows to their samples, from what is known about these outputs; None where it is not
    known."""
    order: Tensor | None = None
    for position in positions:
        axis = batch_axis(call.module, position, call.batch_dim)
        if call.dims.get(position, axis) != axis:
            return None
        if position in call.rows:
            rows = rows_along(call, position, axis, count)
            if rows is None or (order is not None and bool(((rows != order) & (rows >= 0) & (order >= 0)).any())):
                return None
            order = rows if order is None else torch.maximum(rows, order)
    if order is None:
        return (lambda tensor: tensor) if count == call.batch_size else None
    if count % call.batch_size == 0 and all(k in call.in_order for k in positions):
        return lambda tensor: tensor.reshape(call.batch_size, -1, tensor.shape[-1])
    return lambda tensor: gather_rows(tensor, order, call.batch_size, 1).flatten(1, 2)


def rows_along(call: Call, position: int, axis: int, count: int) -> Tensor | None:
    """The sample of each row [count] (-1: of none); None where a row belongs to several."""
    rows, lead = call.rows[position]
    if lead <= axis or call.shapes[position][axis] != count:
        return None
    each = rows.reshape(call.shapes[position][:lead]).movedim(axis, 0).reshape(count, -1)
    own = each.amax(1)
    return own if bool(((each == own[:, None]) | (each < 0)).all()) else None
