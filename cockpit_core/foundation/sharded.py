"""Parameters that ``fully_shard`` has split over processes: each process holds some rows of every tensor.

Such a tensor's own arithmetic may answer with this process's part of the number, so nothing here relies on it: sums are
formed of local parts and added up, and whole tensors are put together one at a time. Both talk to the other processes, which
must therefore do the same, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

_PLAIN = (Tensor, nn.Parameter)  # for most tensors the type alone tells


def has_peers(process_group: Any = None) -> bool:
    """Can the user's code, if it runs now, talk to other processes? ``process_group``: those it talks to, all by
    default."""
    dist = torch.distributed
    return dist.is_available() and dist.is_initialized() and dist.get_world_size(process_group) > 1


def is_sharded(tensor: Any) -> bool:
    """A DTensor; recognised by its methods, because importing its class takes time that others need not spend."""
    return type(tensor) not in _PLAIN and hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself, or what all processes hold of it, put together."""
    return tensor.detach().full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def whole_of_each(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return {name: whole(tensor) for name, tensor in tensors.items()}


def local_part(tensor: Tensor) -> Tensor:
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def norms_of_shards(tensors: list[Tensor]) -> Tensor:
    """``||x||_2`` of each whole tensor: squares of the local parts, added up in one message."""
    norms = torch._foreach_norm([local_part(t.detach()) for t in tensors])
    squares = torch.stack([norm.double() for norm in norms]).square_()
    torch.distributed.all_reduce(squares, group=tensors[0].device_mesh.get_group())  # type: ignore[attr-defined]
    return squares.sqrt_()


def any_nonzero(tensors: Iterable[Tensor]) -> bool:
    """Is there an element other than zero anywhere, on any process?"""
    listed = list(tensors)
    if listed and is_sharded(listed[0]):
        return bool((norms_of_shards(listed) != 0).any())
    return any(bool((t.to_dense() if t.is_sparse else t).ne(0).any()) for t in listed)


# ---- at track(...) ---------------------------------------------------------------------------------------------------


def find_mesh(model: nn.Module) -> Any:
    """The processes that ``fully_shard`` has split this model over, None if it did not; other ways of sharding raise."""
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise TypeError(
            "FullyShardedDataParallel keeps one flat tensor for many parameters, and Cockpit cannot tell them apart: "
            "shard with torch.distributed.fsdp.fully_shard, or train with DistributedDataParallel to track this model"
        )
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    by_parameter = [p.device_mesh for _, p in named if is_sharded(p)]  # type: ignore[attr-defined]
    meshes = {tuple(mesh.mesh.flatten().tolist()): mesh for mesh in by_parameter}
    if not meshes:
        return None
    for name, p in named:
        if not is_sharded(p):
            raise TypeError(
                f"{name} is not sharded, though other parameters are: its gradient is not that of the batch"
            )
        rows = [getattr(placement, "dim", None) for placement in p.placements]  # type: ignore[attr-defined]
        if len(meshes) > 1 or len(rows) != 1 or rows[0] is None:
            raise TypeError(
                f"the parameter {name} is sharded as {p.placements}: "  # type: ignore[attr-defined]
                "Cockpit measures models that fully_shard has split over one group of processes; with tensor "
                "parallelism, or replicas of shards, train with DistributedDataParallel to track this model"
            )
    return next(iter(meshes.values()))


def contains_sharded_modules(module: nn.Module) -> bool:
    """Running such a module would gather its parameters, which the other processes do not expect."""
    return any(type(child).__name__.startswith("FSDP") for child in module.modules())
