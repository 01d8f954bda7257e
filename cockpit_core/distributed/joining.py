"""One step measured by several processes: each measures its own samples, then they are one batch. The definitions are
in ``group``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cockpit_core.curvature import Diagonal
from cockpit_core.distributed.group import Group, attempt, first_problem


@dataclass
class Batch:
    """One process's part of the step, or the whole of it: ``L``, its samples and their losses, or why there are none."""

    passes: int
    size: int
    loss: float
    losses: Tensor | None
    no_losses: str


def join_batches(group: Group, find_mine: Callable[[], Batch]) -> Batch | str | None:
    """``L`` is the mean of the ranks' losses; a rank's individual losses have its mean, so each counts B / (R B_r).
    None if there is nothing to join, because one process has it all.

    A reason where a rank has no part: the losses of some ranks are not those of the batch.
    """
    if not group.is_joint:
        return None
    mine = find_mine()
    answers: list[Batch] = group.gather("batch", (mine.passes, mine.size, mine.loss, mine.losses, mine.no_losses))
    answers = [Batch(*answer) for answer in answers]  # type: ignore[misc]
    group.note_passes([answer.passes for answer in answers])
    silent = [str(rank) for rank, answer in enumerate(answers) if not answer.passes]
    if silent:
        return f"rank {', '.join(silent)} saw no backward pass of its loss"
    total, ranks = sum(answer.size for answer in answers), len(answers)
    missing = next((answer.no_losses for answer in answers if answer.losses is None), "")
    parts = [(answer.losses, total / (ranks * answer.size)) for answer in answers]
    losses = None if missing else torch.cat([own * weight for own, weight in parts if own is not None])
    return Batch(group.most_passes(0), total, sum(answer.loss for answer in answers) / ranks, losses, missing)


def join_slopes(
    group: Group, samples: int, compute: Callable[[], tuple[dict[str, Tensor], bool]]
) -> tuple[dict[str, Tensor], bool]:
    """``g_n . s`` of the global batch per layer; a layer that one rank lacks has none.

    Where a layer moved along its gradient, its slopes come from projections that are joined already.
    """
    if not group.is_joint:
        return compute()
    computed, problem = attempt(compute)
    slopes, parallel = computed if not problem else ({}, False)
    answers = group.gather("slopes", {n: None if len(slope) == samples else slope for n, slope in slopes.items()})
    joined = {}
    for name, slope in slopes.items():
        parts = [answer.get(name, "missing") for answer in answers]
        if all(part is None for part in parts):
            joined[name] = slope
        elif all(isinstance(part, Tensor) for part in parts):
            joined[name] = torch.cat(parts)
    return joined, parallel


def join_diagonals(
    group: Group, kinds: list[str], diagonals: Mapping[str, Diagonal], reasons: Mapping[str, str]
) -> dict[str, Diagonal | str]:
    """For each kind its diagonal, or why there is none. The Hessian of a mean of losses is the mean of their
    Hessians. Probes are independent, so the variances add up."""
    if not group.is_joint:
        return dict(diagonals)
    answers = group.gather("diagonals", {kind: describe_diagonal(kind, diagonals, reasons) for kind in kinds})
    return {kind: join_diagonal(group, diagonals.get(kind), [answer[kind] for answer in answers]) for kind in kinds}


def join_diagonal(group: Group, mine: Diagonal | None, answers: list[Any]) -> Diagonal | str:
    problem = first_problem([answer[0] for answer in answers])
    if not problem and len({tuple(answer[1]) for answer in answers}) > 1:
        problem = "the ranks used different parameters"
    if problem or mine is None:
        return problem
    values = {name: group.own(mine.values[name]) for name in sorted(mine.values)}
    rest = {name: group.own(mine.rest[name]) for name in sorted(mine.rest)}
    group.add([*values.values(), *rest.values()])
    errors = [answer[2] for answer in answers]
    estimated = any(error is not None for error in errors)
    error = math.sqrt(sum(e * e for e in errors if e is not None)) / group.size if estimated else None
    exact = all(answer[3] for answer in answers)
    shared, left = ({name: value / group.size for name, value in some.items()} for some in (values, rest))
    return replace(mine, values=shared, rest=left, exact=exact, trace_error=error, trace_errors={}, errors=None)


def describe_diagonal(
    kind: str, diagonals: Mapping[str, Diagonal], reasons: Mapping[str, str]
) -> tuple[str, list[str], float | None, bool]:
    diagonal = diagonals.get(kind)
    if diagonal is None or not diagonal.names:
        return reasons.get(f"diagonal {kind}", "no diagonal was measured"), [], None, False
    measured = [
        diagonal.elements.split(" from ")[0],
        *sorted(diagonal.values),
        *(f"rest {name}" for name in sorted(diagonal.rest)),
    ]
    return "", measured, diagonal.trace_error, diagonal.exact
