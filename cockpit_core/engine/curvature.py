"""Curvature at the moment the backward pass begins: the user's graph is complete, and nothing has been freed yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cockpit_core.curvature import (
    Diagonal,
    Eigenpair,
    GGNOperator,
    HessianOperator,
    Limits,
    NoCurvature,
    Point,
    diagonal,
    largest_eigenvalue,
)
from cockpit_core.engine.capture import Captured, Pass, make_contributions
from cockpit_core.engine.clock import Clock
from cockpit_core.engine.reduce import Request, reduce_layer
from cockpit_core.layers.contribution import Summed
from cockpit_core.layers.registry import Call

if TYPE_CHECKING:
    from cockpit_core.engine.engine import Engine


class Curvature:
    """Measures what the plan asks for, once per step, on the first backward pass of it.

    ``kind`` is the run's own; ``samples`` restricts curvature to the first samples of the batch (a separate forward).
    """

    def __init__(self, kind: str, *, samples: int | None, memory_budget: int, seed: int = 0):
        self.kind, self.samples, self.memory_budget = kind, samples, memory_budget
        self.generator = torch.Generator().manual_seed(seed)
        self.eigenvectors: dict[str, dict[str, Tensor]] = {}
        self.edges: list[tuple[Call, list[str], int, Any]] = []

    def forget_step(self) -> None:
        self.edges.clear()

    def note(self, call: Call, names: list[str], position: int, output: Tensor) -> None:
        """Remember where this output sits in the graph: the edge stays right when the tensor is overwritten in place."""
        self.edges.append((call, names, position, torch.autograd.graph.get_gradient_edge(output)))

    def measure(self, engine: Engine, found: Pass, args: tuple, kwargs: dict, factor: Tensor) -> None:
        """For a loss module: the loss is evaluated once more on the same outputs, on top of the user's graph."""
        kinds = engine.step.plan.curvature_kinds
        if not kinds or engine.step.passes or engine.step.diagonals or engine.step.eigenpairs:
            return
        with torch.enable_grad(), engine.mute():
            outputs = args[0] if args and isinstance(args[0], Tensor) and args[0].requires_grad else None

            def loss_of(values: Tensor) -> Tensor:
                return engine.loss_fn.forward(values, *args[1:], **kwargs) * factor

            loss = engine.loss_fn.forward(*args, **kwargs) * factor
            point = self._point(engine, found, loss, outputs, loss_of if outputs is not None else None)
            self._fill(engine, kinds, point)

    def measure_function(self, engine: Engine, batch_size: int, loss: Tensor) -> None:
        """For a loss that is not a module: the scalar itself is all we know."""
        kinds = engine.step.plan.curvature_kinds
        if kinds:
            with torch.enable_grad(), engine.mute():
                self._fill(engine, kinds, Point(loss, dict(engine.cover.trainable()), batch_size))

    def _point(self, engine: Engine, found: Pass, loss: Tensor, outputs: Tensor | None, loss_of: Callable | None) -> Point:
        parameters = dict(engine.cover.trainable())
        if self.samples is not None and loss_of is not None and self.samples < found.batch_size:
            return self._partial_point(engine, found, parameters)
        squares = None if outputs is None else lambda seed: self._sum_of_squares(engine, outputs, seed)
        return Point(loss, parameters, found.batch_size, outputs, loss_of, squares)

    def _partial_point(self, engine: Engine, found: Pass, parameters: dict[str, nn.Parameter]) -> Point:
        raise NoCurvature("curvature_samples= needs the model's inputs, which were not seen")

    def _fill(self, engine: Engine, kinds: dict[str, set[str]], point: Point) -> None:
        """Eigenvalue first: a diagonal that needs products too shares its gradient graph."""
        diagonals = {k or self.kind for k in kinds.get("diagonal", ())}
        eigenvalues = {k or self.kind for k in kinds.get("eigenvalue", ())}
        for kind in sorted(diagonals | eigenvalues):
            operator: list[Any] = []
            if kind in eigenvalues:
                self._attempt(engine, f"eigenvalue {kind}", engine.step.eigenpairs, kind, lambda k=kind, o=operator: self._eigenpair(point, k, o))
            if kind in diagonals:
                self._attempt(engine, f"diagonal {kind}", engine.step.diagonals, kind, lambda k=kind, o=operator: self._diagonal(point, k, o))
            for made in operator:
                made.close()

    def _attempt(self, engine: Engine, what: str, into: dict[str, Any], kind: str, compute: Callable[[], Any]) -> None:
        with engine.guard(what):
            try:
                into[kind] = engine.clock.timed(what.split()[0], compute)
            except NoCurvature as reason:
                engine.step.no_value[what] = str(reason)

    def _diagonal(self, point: Point, kind: str, operator: list[Any]) -> Diagonal:
        limits = Limits(memory_budget=self.memory_budget)
        shared = operator[0] if operator and kind != "ggn_mc" else None
        return diagonal(point, kind, self.generator, operator=shared, limits=limits)

    def _eigenpair(self, point: Point, kind: str, made: list[Any]) -> Eigenpair:
        operator = HessianOperator(point) if kind == "hessian" else GGNOperator(point)
        made.append(operator)
        names = list(point.trainable)
        known = self.eigenvectors.get(kind)
        start = [known[name] for name in names] if known and set(known) == set(names) else None
        pair = largest_eigenvalue(operator, start, self.generator)
        self.eigenvectors[kind] = dict(zip(names, pair.vector, strict=True))
        return pair

    def _sum_of_squares(self, engine: Engine, outputs: Tensor, seed: Tensor) -> dict[str, Tensor]:
        """``sum_n (J_n^T seed_n)^2`` per parameter: one backward pass to the layers' outputs, then the layer rules."""
        if not self.edges:
            raise NoCurvature("no layer was seen in the forward pass")
        gradients = torch.autograd.grad(outputs, [e[3] for e in self.edges], seed, retain_graph=True, allow_unused=True)
        held: dict[int, Captured] = {}
        for (call, names, position, _), gradient in zip(self.edges, gradients, strict=True):
            if gradient is not None:
                held.setdefault(id(call), Captured(call, names)).gradients[position] = gradient
        parts: dict[str, list] = {}
        for captured in held.values():
            own = dict(captured.call.module.named_parameters(remove_duplicate=False))
            made = make_contributions(captured, 1.0, engine.cover, self.memory_budget, engine.mute)
            for local, contribution in made.items():
                parts.setdefault(engine.cover.names[id(own[local])], []).append(contribution)
        return {name: squares_of(found[0] if len(found) == 1 else Summed(found), self.memory_budget) for name, found in parts.items()}


def squares_of(contribution: Any, memory_budget: int) -> Tensor:
    squares = reduce_layer(contribution, {}, Request(squares=True, memory_budget=memory_budget), None, Clock()).squares
    assert squares is not None
    return squares
