"""At ``track(...)``: which processes train a model together, and a channel of our own between them."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import nn

from cockpit_core.distributed.group import Group, Processes
from cockpit_core.foundation.sharded import find_mesh

HANDSHAKE_SECONDS = 120.0
ANSWER_SECONDS = 300.0
"""How long a process waits for the others' numbers. Then it says so, measures nothing more, and training goes on."""
_calls = itertools.count()


def find_group(models: Iterable[nn.Module]) -> Group:
    """The processes that train a model, given with its wrappers from the outside in."""
    return next((group for model in models if (group := find_group_of(model)).is_joint), Group())


def find_group_of(model: nn.Module) -> Group:
    """Sharded, or DistributedDataParallel itself, or the module inside it."""
    if not (dist.is_available() and dist.is_initialized()):
        return Group()
    mesh = find_mesh(model)
    if mesh is not None:
        return Processes(model, open_channel(mesh.mesh.flatten().tolist()), sharded=True)
    wrapped = find_wrapper(model) if dist.get_world_size() > 1 else None
    if wrapped is None:
        return Group()
    ranks = dist.get_process_group_ranks(wrapped.process_group)
    return Processes(wrapped, open_channel(ranks)) if len(ranks) > 1 else Group()


def open_channel(ranks: list[int]) -> Any:
    """A process group of our own, on the CPU: our messages never meet those of the training."""
    shake_hands(ranks)
    patience = timedelta(seconds=ANSWER_SECONDS)
    backend = "gloo" if dist.is_gloo_available() else None
    return dist.new_group(ranks, timeout=patience, backend=backend, use_local_synchronization=True)


def find_wrapper(model: nn.Module) -> Any:
    """A module does not know the DistributedDataParallel around it, so all living ones are looked through, once."""
    from torch.nn.parallel import DistributedDataParallel

    if isinstance(model, DistributedDataParallel):
        return model
    wrappers = (o for o in gc.get_objects() if issubclass(type(o), DistributedDataParallel))
    return next((w for w in wrappers if getattr(w, "module", None) is model), None)


def shake_hands(ranks: list[int]) -> None:
    """All ranks must call ``track``: whoever waits for one that does not says so instead of hanging."""
    store, number = dist.distributed_c10d._get_default_store(), next(_calls)
    names = {rank: f"cockpit/{number}/{'-'.join(map(str, ranks))}/{rank}" for rank in ranks}
    store.set(names[dist.get_rank()], "here")
    try:
        store.wait(list(names.values()), timedelta(seconds=HANDSHAKE_SECONDS))
    except RuntimeError as error:
        raise RuntimeError(
            f"cockpit_core.track(...) was called by rank {dist.get_rank()}, but not by all of the ranks {ranks}: "
            "call it in every process, with the same arguments; rank 0 alone writes the log"
        ) from error
