"""SyncBatchNorm on the CPU: the module as it is, with plain kernels in place of those that exist for GPUs only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.distributed_worker import fingerprint, replaced, scenario, train


def others(x: Tensor) -> tuple[int, ...]:
    return tuple(dim for dim in range(x.dim()) if dim != 1)


def spread(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(1, -1, *(1,) * (like.dim() - 2))


def stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return x.mean(others(x)), (x.var(others(x), correction=0) + eps).rsqrt()


def gather_stats(x, means, inverses, running_mean, running_var, momentum, eps, counts):
    shares = (counts / counts.sum())[:, None]
    mean = (shares * means).sum(0)
    var = (shares * (inverses**-2 - eps + means**2)).sum(0) - mean**2
    running_mean.lerp_(mean, momentum)
    running_var.lerp_(var * counts.sum() / (counts.sum() - 1), momentum)
    return mean, (var + eps).rsqrt()


def elements(x, weight, bias, mean, inverse, eps):
    return (x - spread(mean, x)) * spread(inverse * weight, x) + spread(bias, x)


def backward_sums(dy, x, mean, inverse, weight, *wanted):
    total, product = dy.sum(others(x)), (dy * (x - spread(mean, x))).sum(others(x))
    return total, product, product * inverse, total.clone()


def backward_elements(dy, x, mean, inverse, weight, total, product, counts):
    n = counts.sum()
    rest = spread(total / n, x) + (x - spread(mean, x)) * spread(inverse**2 * product / n, x)
    return (dy - rest) * spread(inverse * weight, x)


@contextmanager
def sync_batch_norm_on_the_cpu() -> Iterator[None]:
    """The module as it is; only its five kernels, which exist for GPUs alone, are replaced by plain ones."""
    with ExitStack() as stack:
        for name, kernel in (
            ("batch_norm_stats", stats),
            ("batch_norm_gather_stats_with_counts", gather_stats),
            ("batch_norm_elemt", elements),
            ("batch_norm_backward_reduce", backward_sums),
            ("batch_norm_backward_elemt", backward_elements),
        ):
            stack.enter_context(replaced(torch, name, kernel))
        stack.enter_context(replaced(torch._C, "_get_privateuse1_backend_name", lambda: "cpu"))
        stack.enter_context(
            replaced(DistributedDataParallel, "_passing_sync_batchnorm_handle", lambda self, module: None)
        )
        yield


@scenario
def sync_batch_norm(rank: int, processes: int, folder: Path) -> dict[str, list[dict[str, str]]]:
    """Measured, and in the same run neutral."""
    prints = []
    convert = nn.SyncBatchNorm.convert_sync_batchnorm
    with sync_batch_norm_on_the_cpu():
        for logdir in (None, folder / "sync"):
            _, model, optimizer = train("batchnorm", rank, processes, logdir, change=convert)
            prints.append(fingerprint(model, optimizer))
        train("batchnorm", rank, processes, folder / "sync eval", change=lambda m: convert(m).eval())
    return {"batchnorm": prints}
