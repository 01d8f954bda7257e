"""The diagonal of the curvature matrix, by the cheapest exact way that applies, else by an estimate that says so.

In this order:
1. ``columns``: sums of squares of columns (see columns.py), if the rules know every node of the network and at most
   ``max_columns`` columns are needed. Gauss-Newton of other networks: the same with ``point.sum_of_squares``.
2. ``products``: one product per parameter, for networks of at most ``max_dimension`` parameters.
3. ``Gauss-Newton and probes per sample`` (split.py), an estimate of the traces with its standard error, and the diagonal of
   Gauss-Newton: for the Hessian of networks that keep samples apart.
4. ``XTrace`` or ``Hutchinson``: an estimate with its standard error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from cockpit_core.foundation.accelerator import read_numbers

from .autograd_graph import read_network
from .columns import Squares, add_activation_columns, add_loss_columns, column_count
from .loss_hessian import LossHessian, Seeds
from .operators import Operator, flatten, make_operator, unflatten
from .point import NoCurvature, Point, explained
from .split import estimate_in_parts, refuse_fused_attention
from .symmetry import refuse_asymmetry
from .trace import estimate_diagonal

KINDS = ("hessian", "ggn", "ggn_mc")


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

    @property
    def traces(self) -> dict[str, float]:
        sums = [v.sum(dtype=torch.float64) for v in self.values.values()]
        numbers = iter(read_numbers([*sums, *self.rest.values()]))
        found = {name: next(numbers) for name in self.values}
        return found | {name: found.get(name, 0.0) + next(numbers) for name in self.rest}

    @property
    def trace(self) -> float:
        return sum(self.traces.values())

    @property
    def names(self) -> list[str]:
        return sorted({*self.values, *self.rest})

    def scaled(self, factor: float) -> Diagonal:
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
    max_probes: int = 5
    target: float = 0.05
    elements: bool = True


def diagonal(
    point: Point,
    kind: str = "hessian",
    generator: torch.Generator | None = None,
    *,
    operator: Operator | None = None,
    limits: Limits | None = None,
) -> Diagonal:
    """Diagonal of the Hessian ("hessian"), of Gauss-Newton ("ggn") or of its Monte-Carlo version ("ggn_mc").

    operator: a HessianOperator or GGNOperator of this point that exists already, to share its graph; it stays open.
    generator: the only source of randomness; torch's global state is never touched.
    """
    if kind not in KINDS:
        raise ValueError(f"curvature {kind!r} is not one of {', '.join(KINDS)}")
    if not point.trainable:
        raise NoCurvature("no parameter requires a gradient")
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    limits = limits or Limits()
    if kind == "ggn_mc":
        return _monte_carlo(point, generator, limits)
    try:
        return _by_columns(point, kind, limits)
    except NoCurvature as obstacle:
        note = str(obstacle)
    if kind == "hessian":
        refuse_fused_attention(point)
    dimension = sum(p.numel() for p in point.trainable.values())
    splits = point.outputs is not None and limits.max_probes  # a penalty is no function of the outputs
    if kind == "hessian" and dimension > limits.max_dimension and splits:
        try:
            return _by_split(point, generator, limits, note)
        except NoCurvature as obstacle:
            note = str(obstacle)
    own = operator is None
    matrix = operator or make_operator(point, kind, limits.memory_budget)
    note += f"; its products take {matrix.note}" if matrix.note else ""
    try:
        if dimension <= limits.max_dimension:
            return _by_products(point, kind, matrix, limits, note)
        return _by_estimate(point, kind, matrix, generator, limits, note)
    finally:
        if own:
            matrix.close()


def _by_columns(point: Point, kind: str, limits: Limits) -> Diagonal:
    if not point.samples_first:
        raise NoCurvature("samples do not lie along the first dimension")
    try:
        network = read_network(point)
    except NoCurvature:
        if kind != "ggn" or point.sum_of_squares is None:
            raise
        return _by_given_squares(point, LossHessian(point), limits)
    if kind == "hessian" and network.obstacle:
        raise NoCurvature(network.obstacle)
    loss = LossHessian(point)  # last: for many outputs it takes as long as a step
    count = column_count(network, loss, point, kind == "hessian")
    _check_count(count, limits)
    squares = Squares(point, network, limits.memory_budget)
    chunk = squares.columns_at_once
    add_loss_columns(squares, loss, chunk)
    if kind == "hessian":
        add_activation_columns(squares, chunk)
    found = {name: sums.squares for name, sums in squares.sums.items()}
    return Diagonal(_in_order(point, found), True, "columns", kind, columns=count)


def _check_count(count: int, limits: Limits) -> None:
    if count > limits.max_columns:
        raise NoCurvature(f"the exact diagonal would take {count} columns, more than {limits.max_columns}")


def _in_order(point: Point, found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every trainable parameter, zeros for those that the outputs do not depend on."""
    return {n: found[n] if n in found else torch.zeros_like(p.detach()) for n, p in point.trainable.items()}


def _by_given_squares(point: Point, loss: LossHessian, limits: Limits) -> Diagonal:
    """The caller's rules, one column at a time; negative parts of a sample's Hessian are subtracted apart."""
    assert point.sum_of_squares is not None and point.outputs is not None
    _check_count(loss.count, limits)
    total = {n: torch.zeros_like(p.detach()) for n, p in point.trainable.items()}
    for seeds in loss.seeds(1):
        column = seeds.columns[0].to(point.outputs.dtype)
        if seeds.signs is None:
            _add_given(point, column, 1.0, total)
            continue
        rows = seeds.signs[0].repeat_interleave(column.shape[0] // point.batch_size)
        rows = rows.reshape((-1,) + (1,) * (column.dim() - 1)).to(column)
        _add_given(point, column * (rows > 0), 1.0, total)
        _add_given(point, column * (rows < 0), -1.0, total)
    return Diagonal(total, True, "columns", "ggn", columns=loss.count)


def _add_given(point: Point, seed: Tensor, sign: float, total: dict[str, Tensor]) -> None:
    assert point.sum_of_squares is not None
    for name, squares in point.sum_of_squares(seed).items():
        if name in total:
            total[name] += sign * squares


def _by_products(point: Point, kind: str, matrix: Operator, limits: Limits, note: str) -> Diagonal:
    """One unit vector per parameter, many at once."""
    like = flatten([p.detach() for p in matrix.parameters])
    found = torch.empty_like(like)
    probe = torch.cos(torch.arange(like.numel(), device=like.device, dtype=like.dtype))
    image, image_of_transpose = torch.empty_like(like), torch.zeros_like(like)
    at_once = max(1, min(64, limits.memory_budget // max(1, matrix.column_bytes)))
    for numbers in torch.arange(like.numel(), device=like.device).split(at_once):
        units = like.new_zeros(len(numbers), like.numel())
        units[torch.arange(len(numbers)), numbers] = 1.0
        parts = [r.reshape(len(numbers), -1) for r in matrix.matmat(unflatten(units, matrix.parameters))]
        rows = torch.cat(parts, 1)
        found[numbers] = rows[torch.arange(len(numbers)), numbers]
        image[numbers] = rows @ probe
        image_of_transpose += probe[numbers] @ rows
    if not bool(torch.isfinite(found).all()):
        raise NoCurvature("the curvature is not finite at this step")
    refuse_asymmetry(float((image - image_of_transpose).norm()), float(image.norm()), like.dtype)
    values = dict(zip(point.trainable, unflatten(found, matrix.parameters), strict=True))
    return Diagonal(values, True, "products", kind, products=like.numel(), note=note)


def _by_split(point: Point, generator: torch.Generator, limits: Limits, note: str) -> Diagonal:
    found = estimate_in_parts(
        point,
        generator,
        elements=limits.elements,
        target=limits.target,
        max_probes=limits.max_probes,
        memory_budget=limits.memory_budget,
    )
    rest = {
        name: point.loss.detach().new_tensor(trace - _sum(found.ggn.get(name))) for name, trace in found.traces.items()
    }
    how = "Gauss-Newton diagonal" if found.ggn_exact else f"Gauss-Newton diagonal from {found.columns} random columns"
    return Diagonal(
        found.ggn, False, "Gauss-Newton and probes per sample", "hessian", found.trace_error, found.errors,
        products=found.probes, columns=found.columns, note=note, rest=rest, elements=how if found.ggn else "",
    )  # fmt: skip


def _sum(values: Tensor | None) -> float:
    return 0.0 if values is None else float(values.sum(dtype=torch.float64))


def _by_estimate(
    point: Point, kind: str, matrix: Operator, generator: torch.Generator, limits: Limits, note: str
) -> Diagonal:
    made = estimate_diagonal(
        matrix,
        generator,
        target=limits.target,
        max_products=limits.max_products,
        memory_budget=limits.memory_budget,
    )
    names = list(point.trainable)
    values = dict(zip(names, unflatten(made.diagonal, matrix.parameters), strict=True))
    errors = dict(zip(names, unflatten(made.diagonal_error, matrix.parameters), strict=True))
    layers = dict(zip(names, made.trace_errors, strict=True))
    return Diagonal(
        values, False, made.method, kind, made.trace_error, layers, errors, products=made.products, note=note
    )


def _monte_carlo(point: Point, generator: torch.Generator, limits: Limits) -> Diagonal:
    """One random column S eps per sample, squared: unbiased for Gauss-Newton.

    Its error: the contribution of a sample, ``eps^T A_n eps`` with A_n positive semi-definite, has a variance of at
    most 2/3 of its mean square, so ``sqrt(2/3 sum_n x_n^2)`` bounds the standard error from one drawn column.
    """
    loss = LossHessian(point)
    assert point.outputs is not None
    try:
        network = read_network(point)
    except NoCurvature as obstacle:
        return _mixed_signs(point, loss, generator, str(obstacle))
    squares = Squares(point, network, limits.memory_budget, norms=True)
    drawn = loss.draw(1, generator)
    squares.add(point.outputs, Seeds(drawn.columns.to(point.outputs.dtype)))
    values = _in_order(point, {name: s.squares for name, s in squares.sums.items()})
    norms = {name: s.norms for name, s in squares.sums.items() if s.norms is not None}
    bounds = [_error_bound(n) for n in norms.values()]
    whole = [_error_bound(torch.stack([n.double() for n in norms.values()]).sum(0))] if norms else []
    *found, error = read_numbers([*bounds, *whole]) or [0.0]
    layers = {**dict.fromkeys(values, 0.0), **dict(zip(norms, found, strict=True))}
    return Diagonal(values, False, "Monte-Carlo column", "ggn_mc", error, layers, columns=1)


def _error_bound(contributions: Tensor) -> Tensor:
    return (2 / 3 * contributions.double().square().sum()).sqrt()


def _mixed_signs(point: Point, loss: LossHessian, generator: torch.Generator, note: str, count: int = 8) -> Diagonal:
    """Networks that mix samples or have no rules: ``(J^T S eps)^2`` with signs over the whole batch, several times."""
    assert point.outputs is not None
    parameters = point.trainable
    drawn = loss.draw(count, generator).columns.to(point.outputs.dtype)
    made: list[dict[str, Tensor]] = []
    for column in drawn:
        if point.sum_of_squares is not None:
            made.append(point.sum_of_squares(column))
            continue
        with explained():
            found = torch.autograd.grad(
                point.outputs, list(parameters.values()), column, retain_graph=True, allow_unused=True
            )
        pairs = zip(parameters.items(), found, strict=True)
        made.append({n: torch.zeros_like(p) if f is None else f.detach().square() for (n, p), f in pairs})
    return _mean_of(made, point, note)


def _mean_of(made: list[dict[str, Tensor]], point: Point, note: str) -> Diagonal:
    count = len(made)
    values, errors, layers = {}, {}, {}
    totals = torch.zeros(count, dtype=torch.float64)
    for name, p in point.trainable.items():
        parts = torch.stack([m[name] if name in m else torch.zeros_like(p.detach()) for m in made])
        values[name] = parts.mean(0)
        errors[name] = parts.std(0) / count**0.5
        sums = parts.flatten(1).sum(1, dtype=torch.float64).cpu()
        layers[name] = float(sums.std()) / count**0.5
        totals += sums
    error = float(totals.std()) / count**0.5
    return Diagonal(values, False, "Monte-Carlo columns", "ggn_mc", error, layers, errors, columns=count, note=note)
