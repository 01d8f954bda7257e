"""Monte-Carlo Gauss-Newton: the squares of random columns, which are its diagonal in the mean."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from cockpit_core.foundation.accelerator import read_numbers

from .autograd_graph import read_network
from .columns import Squares
from .gauss_newton import draw_gauss_newton
from .loss_hessian import LossHessian, Seeds
from .point import NoCurvature, Point, explained
from .results import Diagonal, Limits, in_order
from .spread import widening

_LEAST, _MOST = 4, 8
"""Columns over the whole batch: from fewer sums than this no error can be estimated."""


def monte_carlo(point: Point, generator: torch.Generator, limits: Limits) -> Diagonal:
    """One random column S eps per sample, squared: unbiased for Gauss-Newton.

    Its error: the contribution of a sample, ``eps^T A_n eps`` with A_n positive semi-definite, has a variance of at
    most 2/3 of its mean square, so ``sqrt(2/3 sum_n x_n^2)`` bounds the standard error from one drawn column.
    """
    loss = LossHessian(point)
    assert point.outputs is not None
    try:
        network = read_network(point)
    except NoCurvature as obstacle:
        note = str(obstacle)
        try:
            return _by_sample(point, loss, generator, limits, note)
        except NoCurvature:
            return _mixed_signs(point, loss, generator, limits, note)
    squares = Squares(point, network, limits.memory_budget, norms=True)
    drawn = loss.draw(1, generator)
    squares.add(point.outputs, Seeds(drawn.columns.to(point.outputs.dtype)))
    values = in_order(point, {name: s.squares for name, s in squares.sums.items()})
    norms = {name: s.norms for name, s in squares.sums.items() if s.norms is not None}
    bounds = [_error_bound(n) for n in norms.values()]
    whole = [_error_bound(torch.stack([n.double() for n in norms.values()]).sum(0))] if norms else []
    made = Diagonal(values, False, "Monte-Carlo column", "ggn_mc", columns=1)
    numbers = read_numbers([*bounds, *whole, *made.ask_traces()])  # waited for once
    count = len(bounds) + len(whole)
    *errors, error = numbers[:count] or [0.0]
    layers = {**dict.fromkeys(values, 0.0), **dict(zip(norms, errors, strict=True))}
    return replace(made, trace_error=error, trace_errors=layers).knowing(numbers[count:])


def _error_bound(contributions: Tensor) -> Tensor:
    return (2 / 3 * contributions.double().square().sum()).sqrt()


def _by_sample(point: Point, loss: LossHessian, generator: torch.Generator, limits: Limits, note: str) -> Diagonal:
    """Networks without rules whose samples can be told apart: a few columns, whose error is known from the samples."""
    made = draw_gauss_newton(point, loss, generator, limits.target, limits.memory_budget)
    values, traces = in_order(point, made.diagonal()), made.traces()
    layers = {name: traces.errors.get(name, 0.0) for name in values}
    return Diagonal(
        values, False, "Monte-Carlo columns", "ggn_mc", traces.error, layers, columns=made.columns, note=note
    )


def _mixed_signs(point: Point, loss: LossHessian, generator: torch.Generator, limits: Limits, note: str) -> Diagonal:
    """Networks that mix samples, or that the graph does not show: ``(J^T S eps)^2`` with signs over the whole batch, several
    times: a few, and more while the error is large."""
    made: list[dict[str, Tensor]] = []
    while len(made) < _MOST:
        made.append(_squares_of_one(point, loss, generator))
        if len(made) >= _LEAST:
            diagonal = _mean_of(made, point, note)
            if diagonal.trace_error is not None and diagonal.trace_error <= limits.target * abs(diagonal.trace):
                return diagonal
    return _mean_of(made, point, note)


def _squares_of_one(point: Point, loss: LossHessian, generator: torch.Generator) -> dict[str, Tensor]:
    """One column at a time: those of a large vocabulary are as large as the logits."""
    assert point.outputs is not None
    parameters, column = point.trainable, loss.draw(1, generator).columns[0].to(point.outputs.dtype)
    if point.sum_of_squares is not None:
        return point.sum_of_squares(column)
    with explained():
        gradients = torch.autograd.grad(
            point.outputs, list(parameters.values()), column, retain_graph=True, allow_unused=True
        )
    pairs = zip(parameters.items(), gradients, strict=True)
    return {n: torch.zeros_like(p) if f is None else f.detach().square() for (n, p), f in pairs}


def _mean_of(made: list[dict[str, Tensor]], point: Point, note: str) -> Diagonal:
    count = len(made)
    values, errors, layers = {}, {}, {}
    totals = torch.zeros(count, dtype=torch.float64)
    for name, p in point.trainable.items():
        parts = torch.stack([m[name] if name in m else torch.zeros_like(p.detach()) for m in made])
        values[name] = parts.mean(0)
        errors[name] = parts.std(0) / count**0.5
        sums = parts.flatten(1).sum(1, dtype=torch.float64).cpu()
        layers[name] = widening(count - 1) * float(sums.std()) / count**0.5
        totals += sums
    error = widening(count - 1) * float(totals.std()) / count**0.5
    return Diagonal(values, False, "Monte-Carlo columns", "ggn_mc", error, layers, errors, columns=count, note=note)
