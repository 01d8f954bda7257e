"""The trace of the Hessian of any network: ``Tr(H) = Tr(G) + Tr(R)``.

``G`` is Gauss-Newton: exact, from one backward pass per column of the loss's curvature, or (many classes, many positions) from
columns with random signs. ``R = H - G`` is probed (rest.py). Both are sums over samples with separate draws, so a few
draws suffice, and their standard errors are known well (spread.py). The diagonal of G comes along where it is asked
for.
Where samples are mixed (BatchNorm), signs are shared by the whole batch, in both: columns of G then take one backward pass each,
far less than a product with H, and R alone is less noisy than H.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .autograd_graph import kind_of, reachable
from .gauss_newton import LEAST_FREEDOM, MOST_DRAWS, GaussNewton, Traces, least_draws
from .individual import Individual
from .operators import parts_needed
from .point import NoCurvature, Point
from .rest import RestProbes
from .signs import SWEEP
from .spread import Draws, Elements

LEAST_SHARED, FEW_ELEMENTS = 4, 1000
"""Where all samples share their signs: at least this many draws, and more where only few elements have signs."""
PROBE = 2
"""What a probe of the rest takes, in columns of Gauss-Newton: measured, 1.5 to 3."""


@dataclass
class Split:
    """By parameter: traces and their standard errors; ``ggn``: diagonals of Gauss-Newton (if asked for)."""

    traces: dict[str, float]
    errors: dict[str, float]
    trace_error: float
    ggn: dict[str, Tensor] = field(default_factory=dict)
    ggn_traces: dict[str, float] = field(default_factory=dict)
    ggn_exact: bool = True
    columns: int = 0
    probes: int = 0
    uncovered: dict[str, str] = field(default_factory=dict)

    def plus(self, other: Split) -> Split:
        """The sum over two parts of the batch; the squares of their errors add up."""
        return Split(
            {name: trace + other.traces[name] for name, trace in self.traces.items()},
            {name: math.hypot(error, other.errors[name]) for name, error in self.errors.items()},
            math.hypot(self.trace_error, other.trace_error),
            {name: values + other.ggn[name] for name, values in self.ggn.items() if name in other.ggn},
            {name: trace + other.ggn_traces[name] for name, trace in self.ggn_traces.items()},
            self.ggn_exact and other.ggn_exact,
            max(self.columns, other.columns), max(self.probes, other.probes), self.uncovered | other.uncovered,
        )  # fmt: skip


class _Rest:
    """What is accumulated of the rest. ``sweep`` probes make one draw."""

    def __init__(self, point: Point, individuals: dict[str, Individual], leaves: dict[str, Tensor], memory_budget: int):
        self._probes, self._names = RestProbes(point, individuals, leaves, memory_budget), list(individuals)
        self._drawn, self._elements, self.draws = Draws(), Elements(), 0
        self.sweep = SWEEP if self._probes.gated else 1
        few = sum(p.numel() for p in leaves.values()) < FEW_ELEMENTS
        self.least_draws = LEAST_FREEDOM if leaves and few else max(least_draws(point), LEAST_SHARED if leaves else 0)

    @property
    def probes(self) -> int:
        return self.draws * self.sweep

    def probe(self, generator: torch.Generator) -> None:
        drawn, others = self._probes.probe(generator, self.sweep)
        self._drawn.add(drawn)
        self._elements.add(others)
        self.draws += 1

    @property
    def gain(self) -> float:
        return self.sum_up()[1] ** 2 / (self.draws + 1) / (PROBE * self.sweep)

    def sum_up(self) -> tuple[float, float]:
        """The whole trace and its standard error."""
        total, error = self._drawn.sum_up()
        more, errors = self._elements.finish()
        return total + sum(more.values()), math.hypot(error, *errors.values())

    def traces(self) -> Traces:
        means, errors, error = self._drawn.finish()
        more, more_errors = self._elements.finish()
        return Traces(
            dict(zip(self._names, means, strict=True)) | more,
            dict(zip(self._names, errors, strict=True)) | more_errors,
            math.hypot(error, *more_errors.values()),
        )

    def close(self) -> None:
        self._probes.close()


def estimate_split(
    point: Point,
    generator: torch.Generator,
    *,
    elements: bool = False,
    target: float = 0.05,
    max_probes: int = 6,
    memory_budget: int = 2**27,
) -> Split:
    """Traces of the Hessian, with standard errors; NoCurvature with the reason where there are none.

    elements: the diagonal of Gauss-Newton too. Goes on until the standard error is below ``target`` of the trace.
    Misleads where the trace is near zero: then the relative error cannot be reached, and the absolute one is given.
    """
    ggn = GaussNewton(point, generator, memory_budget, elements)
    ggn.add_fixed_columns()
    for _ in range(ggn.least_draws):
        ggn.draw_column()
    rest = _Rest(point, ggn.individuals, ggn.leaves, memory_budget)
    try:
        for _ in range(rest.least_draws):
            rest.probe(generator)
        while not _is_enough(ggn, rest, target):
            probes = rest.probes < max_probes
            better = ggn.gain >= rest.gain if probes else ggn.sum_up()[1] > rest.sum_up()[1]
            if better and ggn.draws_columns and ggn.draws < MOST_DRAWS:
                ggn.draw_column()
            elif probes:
                rest.probe(generator)
            else:
                break
        return _put_together(ggn, rest)
    finally:
        rest.close()


def _is_enough(ggn: GaussNewton, rest: _Rest, target: float) -> bool:
    (one, error), (two, more) = ggn.sum_up(), rest.sum_up()
    return not math.hypot(error, more) > target * abs(one + two)


def _put_together(ggn: GaussNewton, rest: _Rest) -> Split:
    one, two = ggn.traces(), rest.traces()
    return Split(
        {name: trace + two.traces[name] for name, trace in one.traces.items()},
        {name: math.hypot(error, two.errors[name]) for name, error in one.errors.items()},
        math.hypot(one.error, two.error),
        ggn.diagonal(), one.traces, ggn.exact and not ggn.leaves, max(ggn.columns, ggn.draws), rest.probes, ggn.uncovered,
    )  # fmt: skip


def estimate_in_parts(
    point: Point,
    generator: torch.Generator,
    *,
    elements: bool = False,
    target: float = 0.05,
    max_probes: int = 6,
    memory_budget: int = 2**27,
) -> Split:
    """The same, on a few samples at a time where the graph of the gradient would not fit into the memory budget."""
    parts = parts_needed(point, memory_budget)
    if parts == 1 or point.part is None:
        return estimate_split(
            point, generator, elements=elements, target=target, max_probes=max_probes, memory_budget=memory_budget
        )
    size, total = math.ceil(point.batch_size / parts), None
    for begin in range(0, point.batch_size, size):
        part = point.part(begin, min(begin + size, point.batch_size))
        own = estimate_split(
            part,
            generator,
            elements=elements,
            target=target * math.sqrt(parts),
            max_probes=max_probes,
            memory_budget=memory_budget,
        )
        total = own if total is None else total.plus(own)
    assert total is not None
    return total


def refuse_fused_attention(point: Point) -> None:
    """Refuses before anything is computed in vain: there is no second derivative."""
    if any(kind_of(node).startswith("ScaledDotProduct") for node in reachable([point.loss.grad_fn])):
        raise NoCurvature("fused attention has no second derivative; use the plain ('math') attention kernel")
