"""Count individual gradients into histograms: the way to all paths, which give identical counts.

``path=None`` takes Triton for CUDA tensors, the native kernels for CPU tensors, and plain torch where those are
missing.
"""

from __future__ import annotations

import warnings
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor

from cockpit_core.foundation.ungraded import ungraded
from cockpit_core.kernels import plain
from cockpit_core.kernels.bins import AnyBins, Spec
from cockpit_core.kernels.counts import Counts
from cockpit_core.kernels.native import find_library
from cockpit_core.kernels.parameters import ParameterBins

MODULES = {"plain": "plain", "native": "native.counting", "triton": "gpu"}
BEST = {"cpu": "native", "cuda": "triton"}
# Paths that raised here (no compiler, no disk for its cache) and are not tried again in this process.
_failed: set[str] = set()


def choose_path(device: torch.device) -> str:
    """The fastest path that works on this device here."""
    path = BEST.get(device.type, "plain")
    return path if path not in _failed and is_there(path) else "plain"


def is_there(path: str) -> bool:
    if path == "native":
        return find_library() is not None
    return path == "plain" or find_spec(path) is not None


@cache
def _load(path: str) -> ModuleType:
    if path not in MODULES:
        raise ValueError(f"unknown path {path!r}: use one of {', '.join(MODULES)}")
    return import_module(f"cockpit_core.kernels.{MODULES[path]}")


def _run(kernel: str, path: str | None, device: torch.device, table: Tensor, *inputs: object) -> None:
    """Run a kernel of the wanted path, or of the best one; where that one breaks, warn and go on with plain torch."""
    chosen = path or choose_path(device)
    fresh = torch.zeros_like(table)  # a path that breaks halfway leaves the table as it was
    try:
        getattr(_load(chosen), kernel)(*inputs, fresh)
    except Exception as error:
        if path is not None or chosen == "plain":
            raise
        _failed.add(chosen)
        message = f"histograms: {chosen} failed ({error!r}); plain torch goes on"
        warnings.warn(message, RuntimeWarning, stacklevel=3)
        getattr(plain, kernel)(*inputs, fresh.zero_())
    table += fresh


def _histograms(
    into: Counts, parameter: ParameterBins | None, shape: tuple[int, ...]
) -> list[tuple[Tensor | None, AnyBins, Tensor]]:
    """What to fill: (parameter categories or None, gradient bins, table), after checking that the parameter fits."""
    work: list[tuple[Tensor | None, AnyBins, Tensor]] = []
    if into.table2d is not None and into.spec.joint is not None:
        if parameter is None:
            raise ValueError("the 2D histogram needs the parameter's bins: pass prepare_parameter(parameter, spec)")
        if parameter.categories.numel() != torch.Size(shape).numel() or parameter.count != into.spec.joint[1].count:
            raise ValueError(
                f"parameter bins of shape {parameter.shape} do not fit gradients of shape {shape} and {into.spec}"
            )
        work.append((parameter.categories, into.spec.joint[0], into.table2d))
    if into.table1d is not None and into.spec.gradient is not None:
        work.append((None, into.spec.gradient, into.table1d))
    return work


def _check(gradients: Tensor, spec: Spec, into: Counts) -> None:
    if into.spec != spec:
        raise ValueError(f"these counts were made for {into.spec}, not for {spec}")
    if gradients.dtype not in plain.GRADIENT_DTYPES:
        raise TypeError(f"gradients must be float32, float64, bfloat16 or float16, got {gradients.dtype}")


@ungraded
def count_values(
    values: Tensor, parameter_bins: ParameterBins | None, spec: Spec, into: Counts, *, path: str | None = None
) -> None:
    """Add the stored individual gradients of a block of samples, [n, *shape of the parameter]."""
    _check(values, spec, into)
    flat = values.detach().reshape(values.shape[0], -1) if values.numel() else values.new_empty(0, 0)
    work = _histograms(into, parameter_bins, tuple(values.shape[1:]))
    if flat.numel():
        for categories, bins, table in work:
            _run("count_values", path, values.device, table, flat, categories, bins)
        into.touch()


@ungraded
def count_outer(
    b: Tensor, a: Tensor, parameter_bins: ParameterBins | None, spec: Spec, into: Counts, *, path: str | None = None
) -> None:
    """Add all products ``b[n, i] * a[n, j]`` ([n, out] and [n, in]): a Linear layer's individual gradients, never
    stored.
    """
    _check(b, spec, into)
    if a.dtype != b.dtype:
        raise TypeError(f"both factors must have the gradients' dtype, got {b.dtype} and {a.dtype}: cast one first")
    if b.dim() != 2 or a.dim() != 2 or b.shape[0] != a.shape[0]:
        raise ValueError(f"factors must be [n, out] and [n, in], got {tuple(b.shape)} and {tuple(a.shape)}")
    shape = (b.shape[1], a.shape[1])
    work = _histograms(into, parameter_bins, shape)
    if b.numel() and a.numel():
        for categories, bins, table in work:
            matrix = None if categories is None else categories.view(shape)
            _run("count_outer", path, b.device, table, b.detach(), a.detach(), matrix, bins)
        into.touch()
