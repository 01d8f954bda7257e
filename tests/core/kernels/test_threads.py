"""Shares of work: nothing is left out or done twice, and the order of results is that of the parts."""

from __future__ import annotations

import time

import pytest
import torch

from cockpit_core.kernels.threads import cut, deal, share


@pytest.fixture(params=[1, 2, 5])
def threads(request: pytest.FixtureRequest):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("length", [1, 7, 24, 25, 100])
@pytest.mark.parametrize("grain", [1, 12])
def test_parts_are_the_whole(threads: int, length: int, grain: int) -> None:
    bounds = deal(length, 10**9, 1, grain)
    assert bounds[0][0] == 0 and bounds[-1][1] == length
    assert all(low < high for low, high in bounds)
    assert [high for _, high in bounds[:-1]] == [low for low, _ in bounds[1:]]
    assert all(low % grain == 0 for low, _ in bounds)
    assert len(bounds) <= max(1, 2 * threads - 1)


def test_little_work_is_not_dealt(threads: int) -> None:
    assert deal(100, 10, 100) == cut(100, 10, 100) == [(0, 100)]


def test_results_come_in_the_order_of_the_parts(threads: int) -> None:
    def run(low: int, high: int) -> tuple[int, int]:
        time.sleep(0.002 * (low % 3))
        return low, high

    bounds = [(k, k + 1) for k in range(9)]
    assert share(run, bounds) == bounds


@pytest.mark.parametrize("bad", [0, 3])
def test_what_one_raises_is_raised_after_all_have_ended(threads: int, bad: int) -> None:
    running: set[int] = set()

    def run(low: int, high: int) -> None:
        running.add(low)
        time.sleep(0.005)
        running.discard(low)
        if low == bad:
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        share(run, [(k, k + 1) for k in range(4)])
    assert not running
