"""The native steps of an LSTM against the same in plain torch, in float64."""

from __future__ import annotations

import pytest
import torch

from cockpit_core.kernels import native
from cockpit_core.kernels.native import recurrent
from cockpit_core.layers import recurrent_slopes
from tests.core.kernels.test_native import LEVELS, TOLERANCE, WIDE


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize(("rows", "steps", "size"), [(1, 1, 1), (3, 5, 7), (4, 6, 16), (2, 3, 37)])
@pytest.mark.parametrize("ends", [False, True])
def test_steps_back_are_those_of_plain_torch(
    level: str, dtype: torch.dtype, rows: int, steps: int, size: int, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recurrent, "find_library", lambda: native.open_level(level))
    torch.manual_seed(0)
    gates = torch.rand(rows, steps, 4, size, dtype=dtype)
    gates[:, :, 2] = gates[:, :, 2] * 2 - 1
    start, weight = torch.randn(rows, size, dtype=dtype), torch.randn(4 * size, size, dtype=dtype) / size
    b, end = torch.randn(rows, 2 * steps, size, dtype=dtype)[:, ::2], torch.randn(rows, size, dtype=dtype)
    given, before = (end if ends else None), end.clone()
    own = recurrent.go_back(gates, recurrent.fill_cells(gates, start), b, given, weight)
    doubles = [t.double() for t in (gates, start, b)]
    truth = recurrent_slopes.go_back(*doubles, end.double() if ends else None, weight.double())
    allowed = 10 * TOLERANCE[dtype]
    torch.testing.assert_close(own.double(), truth, rtol=allowed, atol=allowed)
    assert torch.equal(end, before)


def test_what_does_not_fit_is_refused_before_a_kernel_reads_it() -> None:
    gates, start, weight = torch.rand(2, 3, 4, 5), torch.rand(2, 5), torch.rand(20, 5)
    with pytest.raises(ValueError, match="do not fit"):
        recurrent.fill_cells(gates, torch.rand(2, 4))
    cells = recurrent.fill_cells(gates, start)
    good = {"gates": gates, "cells": cells, "b": torch.rand(2, 3, 5), "end": None, "weight": weight}
    bad = {"b": torch.rand(2, 2, 5), "cells": cells.double(), "weight": weight.T, "end": torch.rand(2, 4)}
    for name, value in bad.items():
        with pytest.raises(ValueError, match="do not fit"):
            recurrent.go_back(**(good | {name: value}))
