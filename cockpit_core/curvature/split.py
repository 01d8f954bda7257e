"""The trace of the Hessian of any network that keeps its samples apart: ``Tr(H) = Tr(G) + Tr(R)``.

``G`` is Gauss-Newton: exact, from one backward pass per column of the loss's curvature, or (many classes, many positions) from
columns with random signs. ``R = H - G`` is probed (rest.py). Both are sums over samples that are drawn apart, so a few draws
suffice, and their standard errors are known well (spread.py). The diagonal of G comes along where it is asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.autograd.graph import Node

from .autograd_graph import output_shape
from .columns import SMALL, Sender
from .factors import make_piece
from .individual import Individual
from .loss_hessian import LossHessian, Seeds
from .point import NoCurvature, Point
from .rest import RestProbes, refuse_repeated
from .sites import Sites, find_sites
from .spread import Draws, Elements

EXACT_COLUMNS = 24
"""Up to so many columns Gauss-Newton is exact; more are drawn."""
UNCOVERED = 0.3
"""Share of the parameters that may lack a rule; they get random signs of their own, which are far noisier."""
LEAST_DRAWS, MOST_DRAWS = 2, 32
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


class _Estimate:
    """Everything that is accumulated at one point."""

    def __init__(self, point: Point, generator: torch.Generator, memory_budget: int, elements: bool):
        assert point.outputs is not None
        self.point, self.generator, self.elements, self.memory_budget = point, generator, elements, memory_budget
        self.loss = LossHessian(point)
        self.exact = self.loss.count <= EXACT_COLUMNS
        sites = find_sites(point, generator)
        self.individuals, self.uncovered = make_individuals(point, sites, memory_budget)
        self.leaves = {name: point.trainable[name] for name in self.uncovered}
        self.sender, self.nodes = Sender(), _nodes_of(self.individuals)
        self.norms = torch.zeros(len(self.individuals), point.batch_size, dtype=torch.float64)
        self.squares = {
            name: torch.zeros(one.shape).to(point.outputs) for name, one in self.individuals.items() if elements
        }
        self.columns = 0
        self.drawn, self.drawn_of_leaves = Draws(), Draws()
        self.rest, self.rest_of_leaves = Draws(), Elements()

    # ---- Gauss-Newton ------------------------------------------------------------------------------------------------

    def send(self, seeds: Seeds) -> Tensor:
        """Columns back to all uses: ``sum_v sign ||g_{v,n}||^2``, [P, B]; the diagonal of G is added up on the way."""
        outputs = self.point.outputs
        assert outputs is not None
        gradients = self.sender.send(outputs, seeds.columns.to(outputs.dtype), self.nodes)
        at, rows = dict(zip(self.nodes, gradients, strict=True)), []
        for name, one in self.individuals.items():
            bs = [b for b in (at[piece.site.node] for piece in one.pieces) if b is not None]
            norms = torch.zeros(self.point.batch_size).to(outputs)
            if len(bs) == len(one.pieces):
                norms = self._add(name, one, bs, seeds.signs, norms)
            elif bs:
                raise NoCurvature(f"only some of the uses of {name} reach the outputs")
            rows.append(norms.double().cpu())
        self.columns += len(seeds.columns)
        return torch.stack(rows) if rows else self.norms.clone()

    def _add(self, name: str, one: Individual, bs: list[Tensor], signs: Tensor | None, norms: Tensor) -> Tensor:
        if self.elements:
            one.add_squares(bs, signs, self.squares[name], norms)
            return norms
        if signs is None:
            return one.inner_products(bs, bs)
        signed = [piece.site.layout.times(b, signs) for piece, b in zip(one.pieces, bs, strict=True)]
        return one.inner_products(bs, signed)

    def add_all_columns(self) -> None:
        outputs = self.point.outputs
        assert outputs is not None
        sizes = [math.prod(output_shape(node)) for node in self.nodes]
        each = (sum(sizes) + 2 * max(sizes, default=0)) * outputs.element_size()
        share = min(self.memory_budget // 4, SMALL) if outputs.device.type == "cpu" else self.memory_budget // 4
        for seeds in self.loss.seeds(max(1, share // max(1, each))):
            self.norms += self.send(seeds)

    def draw_column(self) -> None:
        """One random column per sample; for the parameters that are not covered, over the whole batch."""
        outputs = self.point.outputs
        assert outputs is not None
        seeds = self.loss.draw(1, self.generator)
        if not self.exact:
            self.drawn.add(self.send(seeds))
        if self.leaves:
            found = torch.autograd.grad(
                outputs,
                list(self.leaves.values()),
                seeds.columns[0].to(outputs.dtype),
                retain_graph=True,
                allow_unused=True,
            )
            sums = [0.0 if f is None else float(f.double().square().sum()) for f in found]
            self.drawn_of_leaves.add(torch.tensor(sums, dtype=torch.float64).unsqueeze(1))

    # ---- both ---------------------------------------------------------------------------------------------------------

    def probe(self, probes: RestProbes) -> None:
        drawn, others = probes.probe(self.generator)
        self.rest.add(drawn)
        self.rest_of_leaves.add(others)

    @property
    def draws_columns(self) -> bool:
        return not self.exact or bool(self.leaves)

    def errors(self) -> tuple[float, float, float]:
        """The trace, and the standard errors of what Gauss-Newton and the rest give to it."""
        ggn, _, ggn_error = self._gauss_newton()
        rest, _, rest_error = self._rest()
        return sum(ggn.values()) + sum(rest.values()), ggn_error, rest_error

    def _gauss_newton(self) -> tuple[dict[str, float], dict[str, float], float]:
        found = (self.norms.sum(1).tolist(), [0.0] * len(self.norms), 0.0) if self.exact else self.drawn.finish()
        traces, errors = (dict(zip(self.individuals, some, strict=True)) for some in found[:2])
        if not self.leaves:
            return traces, errors, found[2]
        own = self.drawn_of_leaves.finish()
        traces |= dict(zip(self.leaves, own[0], strict=True))
        return traces, errors | dict(zip(self.leaves, own[1], strict=True)), math.hypot(found[2], own[2])

    def _rest(self) -> tuple[dict[str, float], dict[str, float], float]:
        found = self.rest.finish()
        traces, errors = (dict(zip(self.individuals, some, strict=True)) for some in found[:2])
        more, more_errors = self.rest_of_leaves.finish()
        return traces | more, errors | more_errors, math.hypot(found[2], *more_errors.values())

    def finish(self) -> Split:
        ggn, ggn_errors, ggn_error = self._gauss_newton()
        rest, rest_errors, rest_error = self._rest()
        share = 1.0 if self.exact else 1.0 / max(1, self.columns)
        return Split(
            {name: ggn[name] + rest[name] for name in ggn},
            {name: math.hypot(ggn_errors[name], rest_errors[name]) for name in ggn},
            math.hypot(ggn_error, rest_error),
            {name: values * share for name, values in self.squares.items()},
            ggn, self.exact, self.columns, len(self.rest), self.uncovered,
        )  # fmt: skip


def make_individuals(point: Point, sites: Sites, memory_budget: int) -> tuple[dict[str, Individual], dict[str, str]]:
    """By name; and the parameters without rule, with the reason. NoCurvature if those are too many."""
    made: dict[str, Individual] = {}
    uncovered = dict(sites.uncovered)
    keep = memory_budget // 4 // max(1, len(sites.nodes))
    for name, some in sites.by_name.items():
        parameter = point.trainable[name]
        try:
            pieces = [make_piece(site, parameter, keep) for site in some]
            one = Individual(pieces, parameter.shape, point.batch_size)
            refuse_repeated(one)
            made[name] = one
        except NoCurvature as reason:
            uncovered[name] = str(reason)
    total = sum(p.numel() for p in point.trainable.values())
    without = sum(point.trainable[name].numel() for name in uncovered)
    if without > UNCOVERED * total:
        name, reason = next(iter(uncovered.items()))
        raise NoCurvature(f"{name}: {reason}")
    return made, uncovered


def _nodes_of(individuals: dict[str, Individual]) -> list[Node]:
    return list(dict.fromkeys(piece.site.node for one in individuals.values() for piece in one.pieces))


def estimate_split(
    point: Point,
    generator: torch.Generator,
    *,
    elements: bool = False,
    target: float = 0.05,
    max_probes: int = 24,
    memory_budget: int = 2**27,
) -> Split:
    """Traces of the Hessian, with standard errors; NoCurvature with the reason where samples are mixed.

    elements: the diagonal of Gauss-Newton too. Goes on until the standard error is below ``target`` of the trace.
    Misleads where the trace is near zero: then the relative error cannot be reached, and the absolute one is given.
    """
    estimate = _Estimate(point, generator, memory_budget, elements)
    probes = RestProbes(point, estimate.individuals, estimate.leaves)
    try:
        if estimate.exact:
            estimate.add_all_columns()
        _refine(estimate, probes, target, max_probes)
        return estimate.finish()
    finally:
        probes.close()


def _refine(estimate: _Estimate, probes: RestProbes, target: float, max_probes: int) -> None:
    """More draws of whatever has the larger error, until both together are small enough."""
    least = max(LEAST_DRAWS, 1 + math.ceil(LEAST_FREEDOM / estimate.point.batch_size))
    least = max(least, LEAST_FREEDOM) if estimate.leaves else least
    for _ in range(least):
        estimate.probe(probes)
    for _ in range(least if estimate.draws_columns else 0):
        estimate.draw_column()
    while True:
        trace, ggn_error, rest_error = estimate.errors()
        if not math.hypot(ggn_error, rest_error) > target * abs(trace):
            return
        if ggn_error > rest_error and estimate.columns < MOST_DRAWS:
            estimate.draw_column()
        elif len(estimate.rest) < max_probes:
            estimate.probe(probes)
        else:
            return
