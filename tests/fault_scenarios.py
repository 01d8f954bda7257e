"""Scenarios in which one process fails where the others do not."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from cockpit_core.curvature import HessianOperator, make_operator
from cockpit_core.distributed import meeting
from cockpit_core.engine.curving import measuring
from cockpit_core.engine.curving.measuring import Curvature, CurvatureResult
from cockpit_core.engine.curving.points import ModuleLoss
from cockpit_core.engine.engine import Engine
from cockpit_core.layers import registry
from cockpit_core.quantities import NormTest
from tests.distributed_worker import replaced, scenario, train


class Odd(Exception):
    """Nothing that anybody expects."""


def failing(rank: int, where: int, original: Callable[..., Any], after: int = 0) -> Callable[..., Any]:
    """The function itself, which raises on one rank from its ``after``-th call on."""
    calls = 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if rank == where and calls > after:
            raise Odd("only here")
        return original(*args, **kwargs)

    return call


FAULTS: dict[str, Callable[[int], tuple[Any, str, Any]]] = {
    "point": lambda rank: (ModuleLoss, "plain", failing(rank, 1, ModuleLoss.plain)),
    "losses": lambda rank: (Engine, "_take_losses", failing(rank, 1, Engine._take_losses)),
    "operator": lambda rank: (measuring, "make_operator", failing(rank, 1, make_operator)),
    "product of rank 1": lambda rank: (HessianOperator, "matvec", failing(rank, 1, HessianOperator.matvec, 2)),
    "product of rank 0": lambda rank: (HessianOperator, "matvec", failing(rank, 0, HessianOperator.matvec, 2)),
    "quantity": lambda rank: (NormTest, "measure", failing(rank, 1, NormTest.measure)),
    "rule": lambda rank: (
        registry,
        "RULES",
        {**registry.RULES, nn.Linear: failing(rank, 1, registry.RULES[nn.Linear])},
    ),
}


@scenario
def faults(rank: int, processes: int, folder: Path) -> dict[str, dict[str, Any]]:
    results = {}
    for name, make in FAULTS.items():
        start = time.monotonic()
        with replaced(*make(rank)):
            run, *_ = train("mlp", rank, processes, folder / f"fault {name}", config="full", on_error="warn")
        assert run is not None
        results[name] = {"seconds": time.monotonic() - start, "broken": run._tracker.group.broken}
    return results


@scenario
def silence(rank: int, processes: int, folder: Path) -> dict[str, Any]:
    """Rank 1 does not answer, for a reason that nobody has foreseen."""
    measure = Curvature.measure if rank == 0 else lambda *args: CurvatureResult()
    with replaced(meeting, "ANSWER_SECONDS", 2.0), replaced(Curvature, "measure", measure):
        run, *_ = train("mlp", rank, processes, folder / "silence", config="full", on_error="warn")
    assert run is not None
    return {"broken": run._tracker.group.broken, "step": run.step}
