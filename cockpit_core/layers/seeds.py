"""The gradients that go into a module's outputs, sample by sample, and copies of its inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cockpit_core.layers.copying import PLAIN, Copier
from cockpit_core.layers.module_state import NotRepeatable
from cockpit_core.layers.registry import Call, NotCovered
from cockpit_core.layers.row_order import batch_axis


def flatten_tensors(value: Any) -> list[Tensor]:
    """All floating point tensors in an output, in a fixed order: tuples, lists, dicts, dataclass-like mappings."""
    if isinstance(value, Tensor):
        return [value] if torch.is_floating_point(value) else []
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in flatten_tensors(item)]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in flatten_tensors(item)]
    if hasattr(value, "__dataclass_fields__"):
        return [tensor for name in value.__dataclass_fields__ for tensor in flatten_tensors(getattr(value, name))]
    return []


def sample_dim(tensor: Tensor, call: Call, position: int) -> int:
    """Which dimension of an output counts samples."""
    module, B = call.module, call.batch_size
    if position in call.dims:
        return call.dims[position]
    wanted = batch_axis(module, position, call.batch_dim)
    if tensor.dim() > wanted and tensor.shape[wanted] == B:
        return wanted
    for dim, size in enumerate(tensor.shape):
        if size == B:
            return dim
    raise NotCovered(
        f"no dimension of the output {tuple(tensor.shape)} of {type(module).__name__} counts the {B} samples"
        + ("; a single sample needs a dimension that counts it: model(x.unsqueeze(0))" if B == 1 else "")
    )


def copy_inputs(value: Any) -> Any:
    """A forward pass may write into what it is given, so that must not be the user's own."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, (tuple, list)):
        items = [copy_inputs(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if type(value) is dict:
        return {key: copy_inputs(item) for key, item in value.items()}
    return copy_object(value)


class Uncopied:
    """Stands for an argument that cannot be copied: the call that got it is not repeated."""

    def __init__(self, reason: str):
        self.reason = reason


def copy_object(value: Any) -> Any:
    """An argument that is no tensor and no plain container of them: the user may go on with it, so that a repeated call must
    not write into it."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, Uncopied):
        raise NotRepeatable(f"it cannot be run again without a trace: {value.reason}")
    try:
        return Copier().copy(value, "an argument")
    except Exception as error:  # whatever a user's object does when it is copied
        return Uncopied(str(error))


def seeds_of_samples(b: Tensor, call: Call, position: int, lo: int, hi: int) -> Tensor:
    """The output gradient of one sample at a time, zero elsewhere: [hi - lo, *shape]."""
    if position in call.rows:
        rows, lead = call.rows[position]
        own = rows == torch.arange(lo, hi, device=rows.device)[:, None]  # [n, rows]
        return b * own.reshape(hi - lo, *b.shape[:lead], *(1,) * (b.dim() - lead))
    dim = sample_dim(b, call, position)
    seed = b.new_zeros(hi - lo, *b.shape)
    picked = b.movedim(dim, 0)
    for n in range(lo, hi):
        seed[n - lo].movedim(dim, 0)[n] = picked[n]
    return seed


def external_seeds(outputs: dict[int, Tensor], totals: dict[int, Tensor], call: Call) -> dict[int, Tensor]:
    """What came to each output from outside the module.

    Where one output is computed from another (the cell state and the hidden state of an LSTM cell), the gradient seen
    at the latter includes that of the former, which would count twice. An output without samples (a mean loss) is
    dropped:
    what it sends to the others is in their gradients.
    """
    batched = [k for k, b in totals.items() if has_samples(b, call, k)] or list(totals)
    if len(batched) == 1:
        return {k: totals[k] for k in batched}
    reached = {k: dependents(outputs, batched, k) for k in batched}
    seeds: dict[int, Tensor] = {}
    for k in sorted(batched, key=lambda k: len(reached[k])):
        seeds[k] = totals[k]
        if reached[k]:
            later = [(outputs[j], seeds[j].to(outputs[j].dtype)) for j in reached[k] if j in seeds]
            inner = torch.autograd.grad([o for o, _ in later], outputs[k], [s for _, s in later], retain_graph=True)[0]
            seeds[k] = totals[k] - inner
    return {k: seeds[k] for k in batched}


def dependents(outputs: dict[int, Tensor], batched: list[int], k: int) -> list[int]:
    """Which other outputs were computed from output k."""
    others = [j for j in batched if j != k and outputs[j].requires_grad and outputs[k].requires_grad]
    positions = []
    for j in others:
        seed = torch.ones_like(outputs[j])
        if torch.autograd.grad(outputs[j], outputs[k], seed, retain_graph=True, allow_unused=True)[0] is not None:
            positions.append(j)
    return positions


def has_samples(tensor: Tensor, call: Call, position: int) -> bool:
    if position in call.rows:
        return True
    try:
        sample_dim(tensor, call, position)
    except NotCovered:
        return False
    return True


def stack_rows(column: tuple[Tensor | None, ...]) -> Any:
    present = [row for row in column if row is not None]
    return torch.stack(present) if len(present) == len(column) else None
