"""Several processes, one run: what they tell each other, and when.

Under DistributedDataParallel with R ranks the loss is ``L = (1/R) sum_r L_r``: each rank's mean counts equally, even
where local batches differ in size, because that is how the gradient is reduced. The batch is the union of the local
ones,
B = sum_r B_r, in the order of the ranks, and ``g_n = (B/R) dL_r/dtheta^(n)`` for a sample n of rank r.

Where ``fully_shard`` splits the parameters over the processes, all of this is the same: it reduces gradients to the same
mean. Whole gradients and steps, which projections need, are put together layer by layer, and freed. What cannot be
had (curvature: the graph's own parameters are freed between the passes) has no value, and the reason is on record.

Ranks only talk at steps that all of them track, and every message carries the place in the step where it was sent: a
rank that is somewhere else is noticed at once, and measuring stops for good instead of waiting. An error on one rank is
its answer to the others, so that nobody waits for it. Rank 0 writes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cockpit_core.curvature import NoCurvature
from cockpit_core.distributed.agreement import Decisions, JointDecisions
from cockpit_core.foundation.faults import describe_error
from cockpit_core.foundation.sharded import has_peers
from cockpit_core.kernels.counts import Counts
from cockpit_core.layers.registry import NotCovered

ALONE = {
    "probe": "with several processes no probe is made: a forward pass may need all of them",
    "BackPACK": "BackPACK sees the samples of one process",
    "preconditioned": "with several processes it is not measured: a product would need all of them",
}
"""What only a group of one can measure, and why."""


class OutOfStep(RuntimeError):
    """The ranks are not at the same place, or one is gone; nothing can be measured together any more."""


class Group:
    """The processes that train one model. This class is the group of one: its operations are free.

    Others ask it what they may do, never whether it is alone. ``broken`` says why the processes no longer talk, "" while they
    do. ``sharded``: each holds some rows of every parameter (fully_shard) instead of all of them (DistributedDataParallel).
    """

    rank, size = 0, 1
    broken = ""
    sharded = is_joint = is_joining = False
    """``is_joint``: there are others; for this folder only. ``is_joining``: inside ``with ddp.join():``."""
    reduces_late = False
    """Layers wait for the end of the step, because reducing them takes messages."""
    repeats_alone = True
    """A process may run passes of the step once more by its own decision."""
    owns_gradient = True
    """The gradient is that of this process's samples alone."""
    paces_each = True
    """Each quantity may have a pace of its own; several processes would have to agree on it, step by step."""
    looks_for_steps = True
    """Parameters that move without a step of the optimizer are looked for."""

    def gather(self, place: str, item: Any) -> list[Any]:
        """What every rank sent from the same place, by rank. Items are plain Python and tensors."""
        return [item]

    def add(self, tensors: list[Tensor]) -> None:
        """Sums over the ranks, in place; only after a ``gather`` has shown that all of them come here."""

    def own(self, tensor: Tensor) -> Tensor:
        """Something that ``add`` may be called with, where ``tensor`` may share its memory."""
        return tensor

    def own_tables(self, counts: Counts) -> list[Tensor]:
        """What ``add`` is to be called with, so that ``counts`` are those of all processes."""
        return []

    def may_use(self, own: bool) -> bool:
        """Is a parameter part of the batch's loss? ``own``: of this process's part. Even if not, another process may
        use it."""
        return own

    def comparable(self, samples: int) -> int:
        """The individual gradients of this many samples can be multiplied with each other; they are never sent."""
        return samples

    def losses_of_batch(self, own: Iterable[float]) -> Iterable[float]:
        """Losses of steps that were not tracked, as far as this process knows those of the whole batch."""
        return own

    def lacks_backward(self, passes: int) -> bool:
        """Is this a step without a backward pass so far? Of several processes some may lack one; all of them do the
        same."""
        return not passes

    def decisions(self, budget: float | None) -> Decisions:
        """Who decides on triggers, stops and the budget."""
        return Decisions()

    def why_not(self, what: str) -> str:
        """Why these processes cannot measure it, a key of ``ALONE``; "" if they can."""
        return ""

    def mixes_samples(self, model: nn.Module) -> bool:
        """Does a forward pass need those of the other processes?"""
        return False

    def describe(self) -> dict[str, str]:
        """For the header."""
        return {}

    def describe_others(self) -> str:
        """A warning about processes that train beside this one and have no part in its numbers; "" if there are
        none."""
        if not has_peers():
            return ""
        return (
            f"torch.distributed runs with {dist.get_world_size()} processes, but no DistributedDataParallel wraps this model: "
            "the numbers are those of this process alone. Wrap (or fully_shard) the model first, then call track(...) on it."
        )

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
        """Do other processes wait for a result of this one, or for the reason why there is none?"""
        return False

    def most_passes(self, own: int) -> int:
        """Backward passes of the last measured step on the process that made most; ``own``: those of this one."""
        return own

    def note_passes(self, each: list[int]) -> None:
        """The backward passes of the step that is being measured, by rank."""

    def refusal(self, model: nn.Module) -> str:
        """Why a pass of ours through the user's graph would disturb the other processes; "" if it would not."""
        return ""


class Processes(Group):
    """Several processes, each with a part of the batch."""

    is_joint = reduces_late = True
    repeats_alone = owns_gradient = paces_each = looks_for_steps = False

    def __init__(self, wrapped: nn.Module, group: Any, sharded: bool = False):
        self.sharded = sharded
        self.group, self.broken = group, ""
        self.passes = 0
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.wrapped = weakref.ref(wrapped)

    def gather(self, place: str, item: Any) -> list[Any]:
        if self.broken:
            raise OutOfStep(self.broken)
        answers: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(answers, (place, to_host(item)), group=self.group)
        except Exception as error:
            self.broken = f"another process cannot be reached: {error}"
            raise OutOfStep(self.broken) from error
        places = [where for where, _ in answers]
        if len(set(places)) > 1:
            self.broken = f"the processes are at different places of the step: {', '.join(places)}"
            raise OutOfStep(self.broken)
        return [item for _, item in answers]

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

    def own_tables(self, counts: Counts) -> list[Tensor]:
        counts.touch()
        return [table for table in (counts.table1d, counts.table2d) if table is not None]

    def may_use(self, own: bool) -> bool:
        return True

    def comparable(self, samples: int) -> int:
        return 0

    def losses_of_batch(self, own: Iterable[float]) -> Iterable[float]:
        return ()

    def lacks_backward(self, passes: int) -> bool:
        return False

    def decisions(self, budget: float | None) -> Decisions:
        return JointDecisions(self.gather, budget)

    def why_not(self, what: str) -> str:
        return ALONE[what]

    def mixes_samples(self, model: nn.Module) -> bool:
        return any(isinstance(m, nn.SyncBatchNorm) and m.training for m in model.modules())

    def describe(self) -> dict[str, str]:
        return {"processes": str(self.size)}

    def describe_others(self) -> str:
        return ""

    def hold_back(self, error: Exception) -> None:
        return None

    def rounds(self, names: list[str]) -> list[list[str]]:
        """All at a time: each round takes messages."""
        return [names] if names else []

    def when_reduced(self, callback: Callable[[], None]) -> None:
        """After the callbacks that reduce the gradient over the processes; there may be two in a row."""
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
        if self.mixes_samples(model):
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
    """Messages hold CPU tensors only."""
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
    """The first of all ranks' problems, with its rank; "" if there is none."""
    return next((f"rank {rank}: {problem}" for rank, problem in enumerate(problems) if problem), "")
