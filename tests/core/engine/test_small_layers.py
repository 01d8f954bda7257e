"""Biases and scales are reduced together, with the numbers that each has alone."""

from __future__ import annotations

import pytest
import torch

from cockpit_core.engine import small_layers
from cockpit_core.engine.clock import Clock
from cockpit_core.engine.layer_result import Job, LayerResult, reduce_parts
from cockpit_core.engine.statistics import Request
from cockpit_core.kernels import Bins, LogBins, Spec
from cockpit_core.kernels.native import find_library
from cockpit_core.layers.contribution import Rows

SIZES = ((3, (5,)), (4, (1,)), (2, (33,)), (6, (4, 7)))


def make_job(spec: Spec | None, gram: int = 0) -> Job:
    request = Request(norms=True, spec=spec)
    return Job([], 3, 1.0, request, lambda name: torch.zeros(0), lambda name, gradient: {}, gram=gram)


def make_results(dtype: torch.dtype) -> list[tuple[LayerResult, dict[str, torch.Tensor]]]:
    torch.manual_seed(0)
    found = []
    for k, (samples, shape) in enumerate(SIZES):
        rows = 0.1 * torch.randn(2 * samples, *shape, dtype=dtype)[::2]  # rows lie apart
        part = Rows(rows, torch.Size(shape), 0.5 * (k + 1))
        along = {"gradient": torch.randn(shape, dtype=dtype), "step": torch.randn(*shape, 2, dtype=dtype)[..., 0]}
        found.append((LayerResult(f"layer {k}", [part]), along))
    return found


def spoil(results: list) -> None:
    for value, (result, _) in zip((float("nan"), float("inf"), 0.0, 1e-42), results, strict=True):
        result.parts[0].rows[0].view(-1)[0] = value


@pytest.mark.skipif(find_library() is None, reason="nothing waits without native kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("bins", [None, Bins(-2, 2, 100), LogBins(2)], ids=["none", "linear", "log"])
@pytest.mark.parametrize("spoiled", [False, True])
def test_together_they_have_the_numbers_that_each_has_alone(
    bins: Bins | LogBins, dtype: torch.dtype, spoiled: bool
) -> None:
    job = make_job(None if bins is None else Spec(bins))
    together, alone = make_results(dtype), make_results(dtype)
    if spoiled:
        spoil(together)
        spoil(alone)
    assert all(small_layers.may_wait(result, along, job) for result, along in together)
    for result, along in together:
        result.along = along
    small_layers.reduce_waiting([result for result, _ in together], job, Clock())
    for (one, _), (other, along) in zip(together, alone, strict=True):
        reduce_parts(other, along, job, torch.zeros(()), Clock())
        G = other.parts[0].form(0, other.parts[0].samples).flatten(1).double()
        assert one.statistics is not None
        assert other.statistics is not None
        torch.testing.assert_close(one.statistics.norms, G.square().sum(1), rtol=1e-5, atol=0, equal_nan=True)
        for name, direction in along.items():
            truth = G @ direction.flatten().double()
            torch.testing.assert_close(one.statistics.projections[name], truth, rtol=1e-4, atol=1e-6, equal_nan=True)
        assert one.kept == one.parts
        if bins is not None:
            assert one.statistics.counts is not None
            assert other.statistics.counts is not None
            assert torch.equal(one.statistics.counts.table1d, other.statistics.counts.table1d)


def test_gram_matrices_of_those_that_wait() -> None:
    job = make_job(None, gram=2)
    for result, along in make_results(torch.float32):
        assert small_layers.may_wait(result, along, job)
        result.along = along
        small_layers.reduce_waiting([result], job, Clock())
        G = result.parts[0].form(0, 2).flatten(1).double()
        assert result.gram is not None
        torch.testing.assert_close(result.gram, G @ G.T, rtol=1e-5, atol=1e-9)


def test_what_asks_for_more_does_not_wait() -> None:
    result, along = make_results(torch.float32)[0]
    assert not small_layers.may_wait(result, along, make_job(Spec(None, (Bins(-1, 1, 4), Bins(-1, 1, 4)))))
    assert not small_layers.may_wait(result, along | {"third": along["gradient"]}, make_job(None))
    assert not small_layers.may_wait(LayerResult("two passes", result.parts * 2), along, make_job(None))
    empty = LayerResult("empty", [Rows(torch.zeros(3, 0), torch.Size((0,)), 1.0)])
    assert not small_layers.may_wait(empty, {}, make_job(None))
    result.parts[0].rows = result.parts[0].rows.half()  # type: ignore[attr-defined]
    assert not small_layers.may_wait(result, along, make_job(None))
