"""Several processes, one run: what they tell each other, and when.

Under DistributedDataParallel with R ranks the loss is ``L = (1/R) sum_r L_r``: each rank's mean counts alike, also where
local batches differ in size, because that is how the gradient is reduced. The batch is the union of the local ones,
B = sum_r B_r, in the order of the ranks, and ``g_n = (B/R) dL_r/dtheta^(n)`` for a sample n of rank r.

Where ``fully_shard`` splits the parameters over the processes, all of this is the same: it reduces gradients to the same
mean. Whole gradients and steps, which projections need, are put together layer by layer, and freed. What there is no way to
have (curvature: the graph's own parameters are freed between the passes) has no value, with that reason.

Ranks only talk at steps that all of them track, and every message carries the place in the step where it was sent: a
rank that is somewhere else is noticed at once, and measuring stops for good instead of waiting. An error on one rank is
its answer to the others, so that nobody waits for it. Rank 0 writes.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cockpit_core.curvature import NoCurvature
from cockpit_core.foundation.faults import describe_error
from cockpit_core.foundation.sharded import find_mesh
from cockpit_core.layers.registry import NotCovered

HANDSHAKE_SECONDS = 120.0
ANSWER_SECONDS = 300.0
"""How long a process waits for the others' numbers. Then it says so, measures nothing more, and training goes on."""
_calls = itertools.count()


class OutOfStep(RuntimeError):
    """The ranks are not at the same place, or one is gone; nothing can be measured together any more."""


class Group:
    """The processes that train one model. This class is the group of one: its operations are free.

    ``broken`` says why the processes no longer talk, "" while they do. ``sharded``: each holds some rows of every
    parameter (fully_shard) instead of all of them (DistributedDataParallel).
    """

    rank, size = 0, 1
    broken = ""
    sharded = is_joint = is_joining = False
    """``is_joint``: all decisions are made together. ``is_joining``: inside ``with ddp.join():``."""

    def gather(self, place: str, item: Any) -> list[Any]:
        """What every rank sent from the same place, by rank. Items are plain Python and tensors."""
        return [item]

    def add(self, tensors: list[Tensor]) -> None:
        """Sums over the ranks, in place; only after a ``gather`` has shown that all of them come here."""

    def own(self, tensor: Tensor) -> Tensor:
        """Something that ``add`` may be called with, where ``tensor`` may share its memory."""
        return tensor

    def hold_back(self, error: Exception) -> None:
        """An error must not keep this process from answering the others: it is raised once they have their answers."""
        raise error

    def rounds(self, names: list[str]) -> list[list[str]]:
        """Which layers are measured at a time: one alone, so that its memory is free before the next one's is taken."""
        return [[name] for name in names]

    def when_reduced(self, callback: Callable[[], None]) -> None:
        """Called at the end of a backward pass: call back once the gradient is that of all processes."""
        callback()

    @property
    def expects_answers(self) -> bool:
        """Do other processes wait for what this one has found, or why it has found nothing?"""
        return False

    def most_passes(self, own: int) -> int:
        """Backward passes of the last measured step, on the process that did most; ``own`` are this one's."""
        return own

    def note_passes(self, each: list[int]) -> None:
        """Of the step that is being measured, by rank."""

    def refusal(self, model: nn.Module) -> str:
        """Why a pass of ours through the user's graph would disturb the other processes; "" if it would not."""
        return ""


class Processes(Group):
    """Several processes, each with a part of the batch."""

    is_joint = True

    def __init__(self, wrapped: nn.Module, group: Any, sharded: bool = False):
        self.sharded = sharded
        self.group, self.broken = group, ""
        self.passes = 0
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.wrapped = weakref.ref(wrapped)

    def gather(self, place: str, item: Any) -> list[Any]:
        if self.broken:
            raise OutOfStep(self.broken)
        found: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(found, (place, to_host(item)), group=self.group)
        except Exception as error:
            self.broken = f"another process cannot be reached: {error}"
            raise OutOfStep(self.broken) from error
        places = [where for where, _ in found]
        if len(set(places)) > 1:
            self.broken = f"the processes are at different places of the step: {', '.join(places)}"
            raise OutOfStep(self.broken)
        return [item for _, item in found]

    def add(self, tensors: list[Tensor]) -> None:
        try:
            for tensor in tensors:
                if tensor.device.type == "cpu":
                    dist.all_reduce(tensor, group=self.group)
                else:
                    on_host = tensor.cpu()
                    dist.all_reduce(on_host, group=self.group)
                    tensor.copy_(on_host)
        except Exception as error:
            self.broken = f"another process cannot be reached: {error}"
            raise OutOfStep(self.broken) from error

    def send_from_first(self, tensor: Tensor) -> None:
        """Rank 0's CPU tensor, on every rank, in place."""
        dist.broadcast(tensor, dist.get_global_rank(self.group, 0), group=self.group)

    def own(self, tensor: Tensor) -> Tensor:
        return tensor.clone(memory_format=torch.contiguous_format)

    def hold_back(self, error: Exception) -> None:
        return None

    def rounds(self, names: list[str]) -> list[list[str]]:
        """All at a time: each round takes messages."""
        return [names] if names else []

    def when_reduced(self, callback: Callable[[], None]) -> None:
        """Behind the callbacks that reduce the gradient over the processes; there may be two in a row."""
        queue = torch.autograd.Variable._execution_engine.queue_callback
        queue(lambda: queue(callback))

    @property
    def expects_answers(self) -> bool:
        return not self.broken

    def most_passes(self, own: int) -> int:
        return self.passes

    def note_passes(self, each: list[int]) -> None:
        self.passes = max(each)

    @property
    def is_joining(self) -> bool:  # type: ignore[override]
        """Inside ``with ddp.join():`` a rank may have run out of data, and would never answer."""
        config = getattr(self.wrapped(), "_join_config", None)
        return bool(config is not None and config.enable)

    def refusal(self, model: nn.Module) -> str:
        if self.sharded:
            return "the parameters are sharded over processes, and gone from the graph that second derivatives need"
        if self.delays_reduction:
            return "the first backward pass of DistributedDataParallel(static_graph=True) must be the user's own"
        if any(isinstance(m, nn.SyncBatchNorm) and m.training for m in model.modules()):
            return "SyncBatchNorm mixes the samples of several processes and has no second derivative"
        return ""

    @property
    def delays_reduction(self) -> bool:
        """The first backward pass of a static graph: a pass of ours through it would start its reduction."""
        wrapped: Any = self.wrapped()
        if self.sharded or wrapped is None:
            return False
        return bool(wrapped.static_graph and not wrapped._static_graph_delay_allreduce_enqueued)


def to_host(item: Any) -> Any:
    """Messages hold tensors of the CPU only."""
    if isinstance(item, Tensor):
        return item.cpu()
    if isinstance(item, dict):
        return {key: to_host(value) for key, value in item.items()}
    if type(item) in (list, tuple):
        return type(item)(to_host(value) for value in item)
    return item


def attempt(compute: Callable[[], Any]) -> tuple[Any, str]:
    """(result, "") or (None, what went wrong): an error on one rank must not keep it from answering the others."""
    try:
        return compute(), ""
    except Exception as error:
        return None, reason_of(error)


def reason_of(error: Exception) -> str:
    """Our own exceptions are written to be read; others need their type."""
    return str(error) if isinstance(error, (NoCurvature, NotCovered)) else describe_error(error)


def first_problem(problems: list[str]) -> str:
    """Of all ranks' problems the first, with its rank; "" if there is none."""
    return next((f"rank {rank}: {problem}" for rank, problem in enumerate(problems) if problem), "")


# ---- at track(...) --------------------------------------------------------------------------------------------------


def find_group(model: nn.Module) -> Group:
    """The processes that train ``model``: sharded, or DistributedDataParallel itself, or the module inside it."""
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
    """DistributedDataParallel keeps no way back from its module, so the living ones are looked through, once."""
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
