"""Factors, parameters and bins on which all paths must agree; also for the process that runs Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from cockpit_core.kernels import Bins, Counts, LogBins, Spec, count_outer, count_values, prepare_parameter
from cockpit_core.kernels.plain import multiply

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
DEFAULT = Spec(Bins(-2, 2, 100), (Bins(-1, 1, 40), Bins(-2, 2, 50)))
NARROW = Spec(Bins(-0.5, 0.5, 8), (Bins(-0.6, 0.6, 6), Bins(-1, 1, 4)))
AWAY_FROM_ZERO = Spec(Bins(0.1, 1.7, 7), (Bins(0.3, 0.9, 5), Bins(0.2, 3, 3)))
ZERO_INSIDE_A_BIN = Spec(Bins(-0.35, 1, 6), (Bins(-1, 0.9, 3), Bins(-1, 1.1, 5)))
SINGLE = Spec(Bins(-1, 1, 1), (Bins(-1, 3, 1), Bins(-1, 1, 1)))
MANY = Spec(Bins(-1, 1, 600), (Bins(-1, 1, 301), Bins(-1, 1, 260)))
LOGARITHMIC = Spec(LogBins(2), (LogBins(3, -20, 10), LogBins(1, -6, 6)))


class Case(NamedTuple):
    name: str
    b: Tensor  # [n, out]
    a: Tensor  # [n, in]
    parameter: Tensor  # [out, in]
    spec: Spec


def _factors(seed: int, samples: int, out: int, inner: int, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(seed)
    double = {"dtype": torch.float64}
    return scale * torch.randn(samples, out, **double), torch.randn(samples, inner, **double), torch.randn(out, inner)


def _both_scaled(seed: int, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    b, a, _ = _factors(seed, 4, 3, 9, scale)
    return b, scale * a, torch.zeros(3, 9)


def _broken(b: Tensor, a: Tensor, parameter: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    infinity = float("inf")
    b[0, 0], b[1, 1], b[2, :2], b[3, 2] = float("nan"), infinity, 0.0, -infinity
    a[2, 1], a[4, 3], a[5, 0], a[1, 0] = float("nan"), infinity, -infinity, 0.0
    parameter[0, :3] = torch.tensor([float("nan"), infinity, -infinity])
    parameter[1, :2] = torch.tensor([50.0, -50.0])
    return b, a, parameter


def _broken_long_rows() -> tuple[Tensor, Tensor, Tensor]:
    """Few bins and long rows: the case for searching in sorted rows, which must not be tried here."""
    b, a, parameter = _factors(17, 5, 3, 700, 0.1)
    b[0, 0], b[1, 1], b[3, 0] = float("inf"), float("nan"), 0.0
    a[0, 5:9], a[2, 10:20] = 0.0, float("nan")
    a[3, 0], a[3, 1], a[4, 699] = float("inf"), -float("inf"), -float("inf")
    return b, a, parameter


def _on_edges(spec: Spec) -> tuple[Tensor, Tensor, Tensor]:
    assert spec.gradient is not None
    edges = torch.from_numpy(spec.gradient.edges)
    halves = (edges[1:] + edges[:-1]) / 2
    row = torch.cat([edges, halves, torch.tensor([-0.0, 0.0, 1e-9, -1e-9, 5.0, -5.0], dtype=torch.float64)])
    b = torch.tensor([[1.0, -1.0, 0.0, 2.0, -0.5]], dtype=torch.float64)
    return b, row[None], torch.linspace(-3, 3, 5 * row.numel()).reshape(5, -1)


def make_cases(dtype: torch.dtype) -> Iterator[Case]:
    """All cases in one dtype: plain ones, then everything that a fast path could get wrong."""
    plan = {
        "tiny": (_factors(0, 9, 5, 33, 1e-3), DEFAULT),
        "typical": (_factors(1, 7, 6, 70, 0.02), DEFAULT),
        "spread over all bins": (_factors(2, 6, 5, 40, 0.7), DEFAULT),
        "mostly outside": (_factors(3, 5, 4, 20, 30.0), DEFAULT),
        "longer out than in": (_factors(4, 5, 50, 3, 0.1), NARROW),
        "one element": (_factors(5, 1, 1, 1, 0.1), NARROW),
        "more samples than a byte counts": (_factors(6, 600, 2, 9, 0.01), NARROW),
        "bins away from zero": (_factors(7, 6, 4, 21, 1.0), AWAY_FROM_ZERO),
        "zero inside a bin": (_factors(8, 6, 4, 21, 0.1), ZERO_INSIDE_A_BIN),
        "single bin": (_factors(9, 3, 4, 11, 1.0), SINGLE),
        "more bins than a byte counts": (_factors(10, 5, 6, 30, 0.3), MANY),
        "NaN and infinity": (_broken(*_factors(11, 8, 5, 12, 0.1)), NARROW),
        "NaN and infinity in long rows": (_broken_long_rows(), NARROW),
        "a little outside": ((torch.ones(1, 1), torch.linspace(-0.2, 0.9, 50)[None], torch.zeros(1, 50)), NARROW),
        "overflow": (_both_scaled(12, 1e30), NARROW),
        "underflow": (_both_scaled(13, 4e-23), NARROW),
        "deep underflow": (_both_scaled(16, 1e-162), NARROW),
        "half underflow": (_both_scaled(14, 2e-4), NARROW),
        "default edges": (_on_edges(DEFAULT), DEFAULT),
        "odd edges": (_on_edges(AWAY_FROM_ZERO), AWAY_FROM_ZERO),
    }
    for name, ((b, a, parameter), spec) in plan.items():
        yield Case(name, b.to(dtype), a.to(dtype), parameter.to(dtype), spec)
    b, a, parameter = _factors(15, 6, 8, 40, 0.02)
    yield Case("after a ReLU", b.to(dtype), a.relu().to(dtype), parameter.to(dtype), DEFAULT)


def form_products(case: Case) -> Tensor:
    """The individual gradients that a slow implementation would store, in their own dtype, [n, out, in]."""
    return multiply(case.b[:, :, None], case.a[:, None, :]).to(case.b.dtype)


def count_both(case: Case, path: str) -> dict[str, Counts]:
    """The counts of one path, from the factors and from the stored products."""
    bins = prepare_parameter(case.parameter, case.spec)
    outer, values = Counts.zeros(case.spec), Counts.zeros(case.spec)
    count_outer(case.b, case.a, bins, case.spec, outer, path=path)
    count_values(form_products(case), bins, case.spec, values, path=path)
    return {"outer": outer, "values": values}


def find_differences(case: Case, path: str, against: str = "plain") -> list[str]:
    """Which tables of ``path`` differ from the other path's, and by how many elements."""
    ours, theirs = count_both(case, path), count_both(case, against)
    differences = []
    for kind in ours:
        for table in ("table1d", "table2d"):
            mine, other = getattr(ours[kind], table), getattr(theirs[kind], table)
            if mine is not None and not torch.equal(mine, other):
                differences.append(f"{case.name}, {kind}, {table}: {int((mine - other).abs().sum())} counts differ")
    return differences
