"""The trace of the Hessian of any network: ``Tr(H) = Tr(G) + Tr(R)``.

``G`` is Gauss-Newton: exact, from one backward pass per column of the loss's curvature, or (many classes, many positions) from
columns with random signs. ``R = H - G`` is probed (rest.py). Both are sums over samples that are drawn apart, so a few draws
suffice, and their standard errors are known well (spread.py). The diagonal of G comes along where it is asked for.
Where samples are mixed (BatchNorm), signs are shared by the whole batch, in both: columns of G then take one backward pass each,
far less than a product with H, and R alone is less noisy than H.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node

from .apart import tell_apart
from .autograd_graph import kind_of, output_shape, reachable
from .columns import SMALL, Sender
from .individual import Individual
from .loss_hessian import LossHessian, Seeds
from .operators import parts_needed
from .point import NoCurvature, Point, explained
from .rest import RestProbes
from .signs import SWEEP
from .sites import refuse_beside
from .spread import Draws, Elements

EXACT_COLUMNS = 6
"""Up to so many columns Gauss-Newton is exact; of more, a few random mixtures have an error well below that of the rest."""
LEAST_DRAWS, MOST_DRAWS = 2, 32
LEAST_SHARED, FEW_ELEMENTS = 4, 1000
"""Signs that all samples share: so many draws at least, and more where they are those of few elements only."""
PROBE = 2
"""What a probe of the rest takes, in columns of Gauss-Newton: measured, 1.5 to 3."""
LEAST_FREEDOM = 12
"""Of the variance: samples times draws. Below it, a small spread may be chance."""


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
        """Of two parts of the batch: sums, and the squares of the errors add up."""
        return Split(
            {name: trace + other.traces[name] for name, trace in self.traces.items()},
            {name: math.hypot(error, other.errors[name]) for name, error in self.errors.items()},
            math.hypot(self.trace_error, other.trace_error),
            {name: values + other.ggn[name] for name, values in self.ggn.items() if name in other.ggn},
            {name: trace + other.ggn_traces[name] for name, trace in self.ggn_traces.items()},
            self.ggn_exact and other.ggn_exact,
            max(self.columns, other.columns), max(self.probes, other.probes), self.uncovered | other.uncovered,
        )  # fmt: skip


class Traces(NamedTuple):
    """By parameter, with standard errors, and the standard error of their sum."""

    traces: dict[str, float]
    errors: dict[str, float]
    error: float

    @property
    def total(self) -> float:
        return sum(self.traces.values())


class _Estimate:
    """What is accumulated of Gauss-Newton at one point."""

    def __init__(self, point: Point, generator: torch.Generator, memory_budget: int, elements: bool):
        assert point.outputs is not None
        self.point, self.generator, self.elements, self.memory_budget = point, generator, elements, memory_budget
        refuse_beside(point)
        self.loss = LossHessian(point)
        self.exact = self.loss.count <= EXACT_COLUMNS
        self.individuals, self.uncovered = tell_apart(point, generator, memory_budget)
        self.leaves = {name: point.trainable[name] for name in self.uncovered}
        self._sender, self._nodes = Sender(), _nodes_of(self.individuals)
        self._norms = torch.zeros(len(self.individuals), point.batch_size, dtype=torch.float64)
        self._fixed, self._mean = self._zeros(), self._zeros()  # diagonals: of all columns, and summed over drawn ones
        self.columns = self.draws = 0
        self._drawn, self._drawn_of_leaves = Draws(), Draws()
        self._squares = {n: torch.zeros_like(p.detach()) for n, p in self.leaves.items()} if elements else {}

    def _zeros(self) -> dict[str, Tensor]:
        like = self.point.outputs
        return {n: torch.zeros(one.shape).to(like) for n, one in self.individuals.items()} if self.elements else {}

    @property
    def _column_bytes(self) -> int:
        """What one column takes on its way back: the gradients at all nodes, and its front."""
        sizes = [math.prod(output_shape(node)) for node in self._nodes]
        return max(1, (sum(sizes) + 2 * max(sizes, default=0)) * self.point.loss.element_size())

    @torch.no_grad()
    def _send(self, seeds: Seeds, into: dict[str, Tensor]) -> Tensor:
        """Columns back to all uses: ``sum_v sign ||g_{v,n}||^2``, [P, B]; their squares are added up on the way."""
        outputs = self.point.outputs
        assert outputs is not None
        small = outputs.device.type != "cpu" or len(seeds.columns) * self._column_bytes <= SMALL
        gradients = self._sender.send(outputs, seeds.columns.to(outputs.dtype), self._nodes, together=small)
        at, rows = dict(zip(self._nodes, gradients, strict=True)), []
        for name, one in self.individuals.items():
            bs = [b for b in (at[piece.site.node] for piece in one.pieces) if b is not None]
            norms = torch.zeros(self.point.batch_size).to(outputs)
            if len(bs) == len(one.pieces):
                norms = self._add(one, bs, seeds.signs, norms, into.get(name))
            elif bs:
                raise NoCurvature(f"only some of the uses of {name} reach the outputs")
            rows.append(norms.double().cpu())
        self.columns += len(seeds.columns)
        return torch.stack(rows) if rows else self._norms.clone()

    def _add(
        self, one: Individual, bs: list[Tensor], signs: Tensor | None, norms: Tensor, squares: Tensor | None
    ) -> Tensor:
        if squares is not None:
            one.add_squares(bs, signs, squares, norms)
            return norms
        if signs is None:
            return one.inner_products(bs, bs)
        signed = [piece.site.layout.times(b, signs) for piece, b in zip(one.pieces, bs, strict=True)]
        return one.inner_products(bs, signed)

    def add_fixed_columns(self) -> None:
        """All columns, if they are few; else those that are the same at all positions, which carry most of the trace."""
        if not self.individuals:
            return
        share = min(self.memory_budget // 2, SMALL)  # more than stays in the caches gains nothing: measured
        few = max(1, share // self._column_bytes)
        for seeds in self.loss.seeds(few) if self.exact else self.loss.constant_seeds(few):
            self._norms += self._send(seeds, self._fixed)

    def draw_column(self) -> None:
        """One random column per sample; for the parameters that are not covered, over the whole batch."""
        outputs = self.point.outputs
        assert outputs is not None
        self.draws += 1
        if not self.exact and self.individuals:
            self._drawn.add(self._send(self.loss.draw(1, self.generator, centred=True), self._mean))
        if self.leaves:
            column = self.loss.draw(1, self.generator).columns[0].to(outputs.dtype)
            with explained():
                found = torch.autograd.grad(
                    outputs, list(self.leaves.values()), column, retain_graph=True, allow_unused=True
                )
            for total, f in zip(self._squares.values(), found, strict=False):
                total += 0.0 if f is None else f.detach().square()
            sums = [0.0 if f is None else float(f.double().square().sum()) for f in found]
            self._drawn_of_leaves.add(torch.tensor(sums, dtype=torch.float64).unsqueeze(1))

    @property
    def draws_columns(self) -> bool:
        return not self.exact or bool(self.leaves)

    @property
    def least_draws(self) -> int:
        """Of columns over the whole batch only the sums are seen: so many, or their spread is not known."""
        if self.leaves and not self.individuals:
            return LEAST_FREEDOM
        return least_draws(self.point) if self.draws_columns else 0

    @property
    def gain(self) -> float:
        """By how much one more draw lowers the variance, for what it costs."""
        return self.traces().error ** 2 / (self.draws + 1)

    def traces(self) -> Traces:
        names, found = list(self.individuals), self._norms.sum(1)
        traces, errors, error = Traces(dict(zip(names, found.tolist(), strict=True)), dict.fromkeys(names, 0.0), 0.0)
        if not self.exact:
            means, own, error = self._drawn.finish()
            traces = {name: trace + more for (name, trace), more in zip(traces.items(), means, strict=True)}
            errors = dict(zip(names, own, strict=True))
        if self.leaves:
            means, own, more = self._drawn_of_leaves.finish()
            traces |= dict(zip(self.leaves, means, strict=True))
            errors |= dict(zip(self.leaves, own, strict=True))
            error = math.hypot(error, more)
        return Traces(traces, errors, error)

    def diagonal(self) -> dict[str, Tensor]:
        drawn = {name: total / max(1, self.draws) for name, total in self._squares.items()}
        if self.exact:
            return self._fixed | drawn
        return {name: fixed + self._mean[name] / max(1, self.draws) for name, fixed in self._fixed.items()} | drawn


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
        return self.traces().error ** 2 / (self.draws + 1) / (PROBE * self.sweep)

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


def _nodes_of(individuals: dict[str, Individual]) -> list[Node]:
    return list(dict.fromkeys(piece.site.node for one in individuals.values() for piece in one.pieces))


def estimate_split(
    point: Point,
    generator: torch.Generator,
    *,
    elements: bool = False,
    target: float = 0.05,
    max_probes: int = 5,
    memory_budget: int = 2**27,
) -> Split:
    """Traces of the Hessian, with standard errors; NoCurvature with the reason where there are none.

    elements: the diagonal of Gauss-Newton too. Goes on until the standard error is below ``target`` of the trace.
    Misleads where the trace is near zero: then the relative error cannot be reached, and the absolute one is given.
    """
    ggn = _Estimate(point, generator, memory_budget, elements)
    ggn.add_fixed_columns()
    for _ in range(ggn.least_draws):
        ggn.draw_column()
    rest = _Rest(point, ggn.individuals, ggn.leaves, memory_budget)
    try:
        for _ in range(rest.least_draws):
            rest.probe(generator)
        while not _is_enough(ggn, rest, target):
            columns, probes = ggn.draws_columns and ggn.draws < MOST_DRAWS, rest.probes < max_probes
            if columns and (not probes or ggn.gain >= rest.gain):
                ggn.draw_column()
            elif probes:
                rest.probe(generator)
            else:
                break
        return _put_together(ggn, rest)
    finally:
        rest.close()


def least_draws(point: Point) -> int:
    return max(LEAST_DRAWS, 1 + math.ceil(LEAST_FREEDOM / point.batch_size))


def _is_enough(ggn: _Estimate, rest: _Rest, target: float) -> bool:
    one, two = ggn.traces(), rest.traces()
    return not math.hypot(one.error, two.error) > target * abs(one.total + two.total)


def _put_together(ggn: _Estimate, rest: _Rest) -> Split:
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
    max_probes: int = 5,
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
        found = estimate_split(
            part,
            generator,
            elements=elements,
            target=target * math.sqrt(parts),
            max_probes=max_probes,
            memory_budget=memory_budget,
        )
        total = found if total is None else total.plus(found)
    assert total is not None
    return total


def refuse_fused_attention(point: Point) -> None:
    """Before anything is computed for nothing: its second derivative does not exist."""
    if any(kind_of(node).startswith("ScaledDotProduct") for node in reachable([point.loss.grad_fn])):
        raise NoCurvature("fused attention has no second derivative; use the plain ('math') attention kernel")
