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

import torch
from torch import Tensor

from .autograd_graph import read_network
from .columns import Squares, add_activation_columns, add_loss_columns, column_count
from .loss_hessian import LossHessian
from .monte_carlo import monte_carlo
from .operators import Operator, flatten, make_operator, unflatten
from .point import NoCurvature, Point
from .results import Diagonal, Limits, in_order
from .split import estimate_in_parts, refuse_fused_attention
from .symmetry import refuse_asymmetry
from .trace import estimate_diagonal

KINDS = ("hessian", "ggn", "ggn_mc")


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
        return monte_carlo(point, generator, limits)
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
    loss = LossHessian(point)  # this comes last: with many outputs it takes as long as a step
    count = column_count(network, loss, point, kind == "hessian")
    _check_count(count, limits)
    squares = Squares(point, network, limits.memory_budget)
    chunk = squares.columns_at_once
    add_loss_columns(squares, loss, chunk)
    if kind == "hessian":
        add_activation_columns(squares, chunk)
    diagonals = {name: sums.squares for name, sums in squares.sums.items()}
    return Diagonal(in_order(point, diagonals), True, "columns", kind, columns=count)


def _check_count(count: int, limits: Limits) -> None:
    if count > limits.max_columns:
        raise NoCurvature(f"the exact diagonal would take {count} columns, more than {limits.max_columns}")


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
    diagonal = torch.empty_like(like)
    probe = torch.cos(torch.arange(like.numel(), device=like.device, dtype=like.dtype))
    image, image_of_transpose = torch.empty_like(like), torch.zeros_like(like)
    at_once = max(1, min(64, limits.memory_budget // max(1, matrix.column_bytes)))
    for numbers in torch.arange(like.numel(), device=like.device).split(at_once):
        units = like.new_zeros(len(numbers), like.numel())
        units[torch.arange(len(numbers)), numbers] = 1.0
        parts = [r.reshape(len(numbers), -1) for r in matrix.matmat(unflatten(units, matrix.parameters))]
        rows = torch.cat(parts, 1)
        diagonal[numbers] = rows[torch.arange(len(numbers)), numbers]
        image[numbers] = rows @ probe
        image_of_transpose += probe[numbers] @ rows
    if not bool(torch.isfinite(diagonal).all()):
        raise NoCurvature("the curvature is not finite at this step")
    refuse_asymmetry(float((image - image_of_transpose).norm()), float(image.norm()), like.dtype)
    values = dict(zip(point.trainable, unflatten(diagonal, matrix.parameters), strict=True))
    return Diagonal(values, True, "products", kind, products=like.numel(), note=note)


def _by_split(point: Point, generator: torch.Generator, limits: Limits, note: str) -> Diagonal:
    estimate = estimate_in_parts(
        point,
        generator,
        elements=limits.elements,
        target=limits.target,
        max_probes=limits.max_probes,
        memory_budget=limits.memory_budget,
    )
    rest = {
        name: point.loss.detach().new_tensor(trace - _sum(estimate.ggn.get(name)))
        for name, trace in estimate.traces.items()
    }
    how = (
        "Gauss-Newton diagonal"
        if estimate.ggn_exact
        else f"Gauss-Newton diagonal from {estimate.columns} random columns"
    )
    return Diagonal(
        estimate.ggn, False, "Gauss-Newton and probes per sample", "hessian", estimate.trace_error, estimate.errors,
        products=estimate.probes, columns=estimate.columns, note=note, rest=rest, elements=how if estimate.ggn else "",
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
