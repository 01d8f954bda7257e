"""The diagonal of a curvature matrix as a result, and what computing it may cost."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from cockpit_core.foundation.accelerator import read_numbers

from .point import Point


@dataclass(frozen=True)
class Diagonal:
    """``values``: per parameter, scale of ``point.loss``. With ``exact`` False, the errors are standard errors.

    ``trace_errors`` per parameter and ``trace_error`` of the whole; ``errors`` per element where the method has them
    (the single elements of an estimate are mostly noise: sums over many are meant to be used).
    ``note`` says why an exact way was not taken.
    ``rest``: where the diagonal of the Hessian cannot be had, ``values`` are those of Gauss-Newton (or none, if only traces
    were asked for), ``elements`` says how they were found, and ``rest`` is what the trace has besides, per parameter.
    """

    values: dict[str, Tensor]
    exact: bool
    method: str
    kind: str
    trace_error: float | None = None
    trace_errors: dict[str, float] = field(default_factory=dict)
    errors: dict[str, Tensor] | None = None
    products: int = 0
    columns: int = 0
    note: str = ""
    rest: dict[str, Tensor] = field(default_factory=dict)
    elements: str = ""

    @cached_property
    def traces(self) -> dict[str, float]:
        return self.read_traces(read_numbers(self.ask_traces()))

    def ask_traces(self) -> list[Tensor]:
        """Numbers that lie on the device."""
        return [*(v.sum(dtype=torch.float64) for v in self.values.values()), *self.rest.values()]

    def read_traces(self, numbers: Iterable[float]) -> dict[str, float]:
        each = iter(numbers)
        traces = {name: next(each) for name in self.values}
        return traces | {name: traces.get(name, 0.0) + next(each) for name in self.rest}

    @property
    def trace(self) -> float:
        return sum(self.traces.values())

    def knowing(self, traces: Iterable[float]) -> Diagonal:
        """The same, with traces that were read together with other numbers."""
        self.__dict__["traces"] = self.read_traces(traces)  # where the cached property keeps them
        return self

    @property
    def names(self) -> list[str]:
        return sorted({*self.values, *self.rest})

    def scaled(self, factor: float) -> Diagonal:
        if factor == 1:
            return self
        return replace(
            self,
            values={name: v * factor for name, v in self.values.items()},
            rest={name: v * factor for name, v in self.rest.items()},
            trace_error=None if self.trace_error is None else self.trace_error * abs(factor),
            trace_errors={name: e * abs(factor) for name, e in self.trace_errors.items()},
            errors=None if self.errors is None else {name: e * abs(factor) for name, e in self.errors.items()},
        )

    def plus(self, other: Diagonal) -> Diagonal:
        """Micro-batches: curvatures of a sum of losses add up, and so do the variances of their estimates."""
        if not self.names or not other.names:
            return self if self.names else other
        same = self.elements == other.elements and set(self.values) == set(other.values)
        values = {name: v + other.values[name] for name, v in self.values.items()} if same else {}
        traces = {name: trace + other.traces.get(name, 0.0) for name, trace in self.traces.items()}
        left = {name: t - float(values[name].sum(dtype=torch.float64)) if values else t for name, t in traces.items()}
        errors = [e for e in (self.trace_error, other.trace_error) if e is not None]
        like = next(iter([*self.rest.values(), *self.values.values()]))
        return replace(
            self if not self.exact else other,
            values=values,
            rest={n: like.new_tensor(t) for n, t in left.items()} if self.rest or not same else {},
            exact=self.exact and other.exact,
            trace_error=math.sqrt(sum(e * e for e in errors)) if errors else None,
            errors=None,
            trace_errors={},
        )


@dataclass(frozen=True)
class Limits:
    """What the diagonal may cost: bytes beyond the user's own graph, columns, parameters, products, relative error.

    elements: is the diagonal itself looked at, or only its sums?
    """

    memory_budget: int = 128 * 2**20
    max_columns: int = 512
    max_dimension: int = 2000
    max_products: int = 60
    max_probes: int = 6
    target: float = 0.05
    elements: bool = True


def in_order(point: Point, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every trainable parameter, zeros for those that the outputs do not depend on."""
    return {n: values[n] if n in values else torch.zeros_like(p.detach()) for n, p in point.trainable.items()}
