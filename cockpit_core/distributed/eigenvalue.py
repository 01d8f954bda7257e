"""The largest eigenvalue of the matrix that all processes have together: rank 0 iterates, the others multiply."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cockpit_core.curvature import Eigenpair, NoCurvature, largest_eigenvalue
from cockpit_core.curvature.operators import flatten, unflatten
from cockpit_core.distributed.group import Group, OutOfStep, Processes, attempt, first_problem


class SharedOperator:
    """The mean of all ranks' matrices: rank 0 asks for a product, the others ``serve``."""

    def __init__(self, local: Any, group: Processes):
        self.local, self.group, self.parameters = local, group, local.parameters
        self.column_bytes, self.note = local.column_bytes, local.note
        self.problem = ""

    def matvec(self, vector: Any) -> list[Tensor]:
        flat = flatten(vector).detach().cpu().contiguous()
        self.group.send_from_first(torch.ones(1))
        self.group.send_from_first(flat)
        return unflatten(self._product(flat).to(self.parameters[0].device), self.parameters)

    def matmat(self, vectors: Any) -> list[Tensor]:
        columns = [self.matvec([v[k] for v in vectors]) for k in range(len(vectors[0]))]
        return [torch.stack(parts) for parts in zip(*columns, strict=True)]

    def close(self) -> None:
        self.local.close()

    def serve(self) -> None:
        """Until rank 0 has converged."""
        go_on = torch.ones(1)
        flat = torch.zeros_like(flatten([p.detach() for p in self.parameters])).cpu()
        while True:
            self.group.send_from_first(go_on)
            if not bool(go_on):
                return
            self.group.send_from_first(flat)
            self._product(flat)

    def _product(self, flat: Tensor) -> Tensor:
        product, self.problem = attempt(
            lambda: flatten(self.local.matvec(unflatten(flat.to(self.parameters[0].device), self.parameters)))
        )
        image = torch.full_like(flat, math.nan) if self.problem else product.to(flat).cpu().contiguous()
        self.group.add([image])  # a rank that failed makes all of it NaN, which rank 0 notices
        return image / self.group.size


def find_largest(
    group: Group, make: Callable[[], Any], start: Any, generator: torch.Generator, **effort: Any
) -> tuple[Eigenpair, Any]:
    """The largest eigenvalue of the global batch's matrix, on every rank, and this rank's own matrix; only rank 0 knows
    the vector."""
    if not isinstance(group, Processes):
        local = make()
        return largest_eigenvalue(local, start, generator, **effort), local
    local, problem = attempt(make)
    problem = first_problem(group.gather("eigenvalue", problem))
    if problem:
        raise NoCurvature(problem)
    operator, pair, failure = SharedOperator(local, group), None, ""
    try:
        if group.rank == 0:
            pair, failure = attempt(lambda: largest_eigenvalue(operator, start, generator, **effort))
            group.send_from_first(torch.zeros(1))
        else:
            operator.serve()
    except Exception as error:
        group.broken = group.broken or f"another process cannot be reached: {error}"
        raise OutOfStep(group.broken) from error
    answers = group.gather(
        "eigenpair", (None if pair is None else replace(pair, vector=[], start=[]), operator.problem, failure)
    )
    shared, _, failure = answers[0]
    if failure:
        raise NoCurvature(first_problem([answer[1] for answer in answers]) or failure)
    return pair or shared, local
