"""Trace and largest eigenvalue of a few random networks; ``python -m tests.fuzz_curvature`` tries more."""

from __future__ import annotations

from tests import fuzz_curvature


def test_none_is_wrong() -> None:
    kinds, wrong = fuzz_curvature.run(range(7_000_044, 7_000_056))
    assert not wrong, f"python -m tests.fuzz_curvature --seed {wrong[0]}"
    assert kinds["no truth"] + kinds["refused"] < 5
