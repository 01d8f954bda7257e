"""Gauss-Newton of networks of any wiring: columns sent back to all uses of the parameters, sample by sample.

Exact, from one backward pass per column of the loss's curvature; or (many classes, many positions) from columns with random
signs, with a standard error.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node

from .apart import tell_apart
from .autograd_graph import output_shape
from .columns import SMALL, Sender
from .individual import Individual
from .loss_hessian import LossHessian, Seeds
from .point import NoCurvature, Point, explained
from .sites import refuse_beside
from .spread import Draws

EXACT_COLUMNS = 6
"""Up to so many columns Gauss-Newton is exact. With more, a few random mixtures have an error well below that of the
rest."""
LEAST_DRAWS, MOST_DRAWS = 2, 32
LEAST_FREEDOM = 12
"""How many numbers (samples times draws) a variance needs. With fewer, a small spread may be chance."""


class Traces(NamedTuple):
    """By parameter, with standard errors, and the standard error of their sum."""

    traces: dict[str, float]
    errors: dict[str, float]
    error: float

    @property
    def total(self) -> float:
        return sum(self.traces.values())


class GaussNewton:
    """What is accumulated of Gauss-Newton at one point."""

    def __init__(
        self,
        point: Point,
        generator: torch.Generator,
        memory_budget: int,
        elements: bool,
        loss: LossHessian | None = None,
    ):
        """loss: that of this point, if columns are only to be drawn. Without it, all columns are taken as they are if
        they are few."""
        assert point.outputs is not None
        self.point, self.generator, self.elements, self.memory_budget = point, generator, elements, memory_budget
        refuse_beside(point)
        self.loss = loss or LossHessian(point)
        self.exact = loss is None and self.loss.count <= EXACT_COLUMNS
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
                gradients = torch.autograd.grad(
                    outputs, list(self.leaves.values()), column, retain_graph=True, allow_unused=True
                )
            for total, f in zip(self._squares.values(), gradients, strict=False):
                total += 0.0 if f is None else f.detach().square()
            sums = [0.0 if f is None else float(f.double().square().sum()) for f in gradients]
            self._drawn_of_leaves.add(torch.tensor(sums, dtype=torch.float64).unsqueeze(1))

    @property
    def draws_columns(self) -> bool:
        return not self.exact or bool(self.leaves)

    @property
    def least_draws(self) -> int:
        """Columns over the whole batch show only their sums: with fewer than this their spread is not known."""
        if self.leaves and not self.individuals:
            return LEAST_FREEDOM
        return least_draws(self.point) if self.draws_columns else 0

    def is_far(self, target: float) -> bool:
        total, error = self.sum_up()
        return error > target * abs(total)

    @property
    def gain(self) -> float:
        """By how much one more draw lowers the variance, for what it costs."""
        return self.sum_up()[1] ** 2 / (self.draws + 1)

    def sum_up(self) -> tuple[float, float]:
        """The whole trace and its standard error."""
        drawn, error = (0.0, 0.0) if self.exact else self._drawn.sum_up()
        more, error_of_leaves = self._drawn_of_leaves.sum_up() if self.leaves else (0.0, 0.0)
        return float(self._norms.sum()) + drawn + more, math.hypot(error, error_of_leaves)

    def traces(self) -> Traces:
        names, norms = list(self.individuals), self._norms.sum(1)
        traces, errors, error = Traces(dict(zip(names, norms.tolist(), strict=True)), dict.fromkeys(names, 0.0), 0.0)
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


def _nodes_of(individuals: dict[str, Individual]) -> list[Node]:
    return list(dict.fromkeys(piece.site.node for one in individuals.values() for piece in one.pieces))


def least_draws(point: Point) -> int:
    return max(LEAST_DRAWS, 1 + math.ceil(LEAST_FREEDOM / point.batch_size))


def draw_gauss_newton(
    point: Point, loss: LossHessian, generator: torch.Generator, target: float, memory_budget: int
) -> GaussNewton:
    """From drawn columns alone, as many as the error demands; NoCurvature where some samples cannot be told apart."""
    ggn = GaussNewton(point, generator, memory_budget, elements=True, loss=loss)
    if ggn.leaves:
        raise NoCurvature(next(iter(ggn.uncovered.values())))
    ggn.add_fixed_columns()
    while ggn.draws < ggn.least_draws or (ggn.draws < MOST_DRAWS and ggn.is_far(target)):
        ggn.draw_column()
    return ggn
