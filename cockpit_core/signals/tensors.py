"""Tensors in whatever structure a model takes or a loss gets: dicts, named tuples, batches of other libraries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

DEEPEST = 4
MOST_TENSORS = 64
MOST_ELEMENTS = 32768  # a statistic of more elements uses evenly spread ones


def list_tensors(value: Any) -> list[Tensor]:
    """All dense tensors in it, of any type, in a fixed order; graphs and other objects are looked at by attribute."""
    tensors: list[Tensor] = []
    for tensor in _walk(value, 0):
        if not tensor.is_sparse and not tensor.is_quantized and tensor.numel():
            tensors.append(tensor.detach())
        if len(tensors) >= MOST_TENSORS:
            break
    return tensors


def _walk(value: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if not hasattr(value, "full_tensor"):  # sharded: its arithmetic would talk to other processes
            yield value
    elif depth < DEEPEST:
        if isinstance(value, Mapping) or hasattr(value, "keys"):
            items = [value[key] for key in value.keys()]  # noqa: SIM118  batches of other libraries have only keys()
        elif isinstance(value, (list, tuple)):
            items = list(value)
        elif hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module)) and not callable(value):
            items = list(vars(value).values())
        else:
            items = []
        for item in items:
            yield from _walk(item, depth + 1)


def find_tensor(value: Any, batch_size: int, floating: bool) -> Tensor | None:
    """The largest tensor with one entry per sample (else the largest of all) that is floating point, or is not."""
    return choose_tensor(list_tensors(value), batch_size, floating)


def are_codes(tensors: list[Tensor]) -> bool:
    """Is the first input one of codes, as a text has them? What comes with it (a state, a mask) is no input of its own."""
    return bool(tensors) and tensors[0].dim() > 0 and not (tensors[0].is_floating_point() or tensors[0].is_complex())


def choose_inputs(tensors: list[Tensor], batch_size: int) -> tuple[Tensor | None, Tensor | None]:
    """Numbers and codes that go into a model: the largest of each. With codes first, only a table beside them counts (columns of
    numbers beside categories): a mask has the shape of the codes, a state has more dimensions."""
    if not are_codes(tensors):
        numbers = choose_tensor(tensors, batch_size, True)
        return numbers, choose_tensor(tensors, batch_size, False) if numbers is None else None
    codes = choose_tensor(tensors, batch_size, False)
    shapes = {t.shape for t in tensors if not t.is_floating_point()}
    tables = [
        t for t in tensors if t.dim() == 2 and t.shape[0] == batch_size and t.shape[1] > 1 and t.shape not in shapes
    ]
    return choose_tensor(tables, batch_size, True), codes


def identify_by(tensors: list[Tensor], batch_size: int) -> list[Tensor]:
    """What tells batches apart: the numbers that go into a model, or all codes with the numbers beside them (one category of
    a table is the same in many batches)."""
    x, codes = choose_inputs(tensors, batch_size)
    if codes is None:
        return [] if x is None else [x]
    beside = [t for t in tensors if t.dim() and len(t) == batch_size and not (t.is_floating_point() or t.is_complex())]
    return [*beside, *([] if x is None else [x])] if beside else [codes]


def choose_tensor(tensors: list[Tensor], batch_size: int, floating: bool) -> Tensor | None:
    kind = [t for t in tensors if t.is_floating_point() == floating and not t.is_complex()]
    batched = [t for t in kind if t.dim() and t.shape[0] == batch_size]
    own = [t for t in batched if t.shape != (batch_size, batch_size)]  # which samples belong together is no sample
    return max(own or batched or kind, key=Tensor.numel, default=None)


def as_rows(tensor: Tensor, most: int = MOST_ELEMENTS) -> Tensor:
    """[B, F] in float32, with evenly spread columns (and then rows) so that there are at most ``most`` elements."""
    tensor = thin(tensor, most)
    rows = tensor.reshape(tensor.shape[0], -1) if tensor.dim() else tensor.reshape(1, 1)
    if rows.shape[0] > most // 16:
        rows = rows[:: -(-rows.shape[0] * 16 // most)]
    columns = max(1, most // rows.shape[0])
    if rows.shape[1] > columns:
        rows = rows[:, :: -(-rows.shape[1] // columns)]
    return rows.float()


def thin(tensor: Tensor, most: int) -> Tensor:
    """Every few positions of a tensor that flattening would copy (channels last, transposed), as far as it is too large."""
    excess = tensor.numel() / most
    if tensor.is_contiguous() or tensor.dim() < 3 or excess <= 1:
        return tensor
    step = max(1, int(excess ** (1 / (tensor.dim() - 2))))
    return tensor[(slice(None), slice(None), *[slice(None, None, step)] * (tensor.dim() - 2))]
