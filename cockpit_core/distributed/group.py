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
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from cockpit_core.curvature import NoCurvature
from cockpit_core.events.resume import Past
from cockpit_core.events.writer import EventWriter
from cockpit_core.foundation.faults import describe_error
from cockpit_core.foundation.records import Record
from cockpit_core.foundation.sharded import find_mesh
from cockpit_core.layers.registry import NotCovered

HANDSHAKE_SECONDS = 120.0
ANSWER_SECONDS = 300.0
"""How long a process waits for the others' numbers. Then it says so, measures nothing more, and training goes on."""
_calls = itertools.count()


class OutOfStep(RuntimeError):
    """The ranks are not at the same place, or one is gone; nothing can be measured together any more."""


class Group:
    """The processes that train one model. ``broken`` says why they no longer talk, "" while they do.

    ``sharded``: each holds some rows of every parameter (fully_shard) instead of all of them (DistributedDataParallel).
    """

    def __init__(self, wrapped: nn.Module, group: Any, sharded: bool = False):
        self.sharded = sharded
        self.group, self.broken = group, ""
        self.most_passes = 0  # backward passes of the last measured step, on the process that did most
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.wrapped = weakref.ref(wrapped)

    def gather(self, place: str, item: Any) -> list[Any]:
        """What every rank sent from the same place, by rank. Items are plain Python and CPU tensors."""
        if self.broken:
            raise OutOfStep(self.broken)
        found: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(found, (place, item), group=self.group)
        except Exception as error:
            self.broken = f"another process cannot be reached: {error}"
            raise OutOfStep(self.broken) from error
        places = [where for where, _ in found]
        if len(set(places)) > 1:
            self.broken = f"the processes are at different places of the step: {', '.join(places)}"
            raise OutOfStep(self.broken)
        return [item for _, item in found]

    def add(self, tensors: list[Tensor]) -> None:
        """Sums over the ranks, in place; only after a ``gather`` has shown that all of them come here."""
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

    @property
    def is_joining(self) -> bool:
        """Inside ``with ddp.join():`` a rank may have run out of data, and would never answer."""
        config = getattr(self.wrapped(), "_join_config", None)
        return bool(config is not None and config.enable)

    @property
    def delays_reduction(self) -> bool:
        """The first backward pass of a static graph: a pass of ours through it would start its reduction."""
        wrapped: Any = self.wrapped()
        if self.sharded or wrapped is None:
            return False
        return bool(wrapped.static_graph and not wrapped._static_graph_delay_allreduce_enqueued)


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


def find_group(model: nn.Module) -> Group | None:
    """The processes that train ``model``: sharded, or DistributedDataParallel itself, or the module inside it.

    None for a model of just one process.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return None
    mesh = find_mesh(model)
    if mesh is not None:
        return Group(model, open_channel(mesh.mesh.flatten().tolist()), sharded=True)
    wrapped = find_wrapper(model) if dist.get_world_size() > 1 else None
    if wrapped is None:
        return None
    ranks = dist.get_process_group_ranks(wrapped.process_group)
    return Group(wrapped, open_channel(ranks)) if len(ranks) > 1 else None


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


class SilentWriter:
    """What the other ranks write to: nothing. Their numbers are in the log of rank 0."""

    generation = next_seq = 0

    def __init__(self, past: Past | None):
        self.past = past

    def preview(self, record: Record) -> Record:
        return record

    def _ignore(self, *args: Any, **kwargs: Any) -> bool:
        return False

    write_header = write_record = write_heavy = write_scalars = close = abandon = _ignore


def open_log(logdir: Path, resume: bool, group: Group | None, settings: str) -> tuple[Any, Path]:
    """The writer and where it writes. With several ranks all of them fail if one does, or if they were told different things."""
    if group is None:
        return EventWriter(logdir, resume=resume), logdir
    error: Exception | None = None
    writer: Any = None
    try:
        writer = EventWriter(logdir, resume=resume) if group.rank == 0 else None
    except Exception as raised:
        error = raised
    past = None if writer is None else writer.past
    answers = group.gather("start", ("" if error is None else describe_error(error), settings, logdir, past))
    problem = first_problem([answer[0] for answer in answers])
    if not problem and len({answer[1] for answer in answers}) > 1:
        problem = "the arguments differ between ranks: " + " | ".join(answer[1] for answer in answers)
    if problem:
        if writer is not None:
            writer.close()
        raise error or RuntimeError(f"cockpit_core.track(...): {problem}")
    return writer or SilentWriter(answers[0][3]), answers[0][2]
