"""A second derivative that is not symmetric is no Hessian: torch's own of weight_norm is not, and nothing else shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import cockpit_core
from cockpit_core.curvature.lanczos import largest_eigenvalue
from cockpit_core.curvature.point import NoCurvature
from cockpit_core.curvature.trace import estimate_diagonal
from tests.training import quantities

SIZE = 60


class Matrix:
    """An operator that is a matrix."""

    column_bytes, note = 1, ""

    def __init__(self, matrix: Tensor):
        self.matrix, self.parameters = matrix, [torch.zeros(len(matrix), dtype=matrix.dtype)]

    def matvec(self, vector: list[Tensor]) -> list[Tensor]:
        return [self.matrix @ vector[0]]

    def matmat(self, vectors: list[Tensor]) -> list[Tensor]:
        return [vectors[0] @ self.matrix.T]

    def close(self) -> None:
        pass


def make_matrix(lean: float, dtype: torch.dtype) -> Matrix:
    torch.manual_seed(0)
    A = torch.randn(SIZE, SIZE, dtype=dtype) / SIZE**0.5
    return Matrix(A + A.T + 3 * torch.eye(SIZE, dtype=dtype) + lean * (A - A.T))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_matrix_that_leans_is_refused_and_a_symmetric_one_is_not(dtype: torch.dtype) -> None:
    straight, leaning = make_matrix(0.0, dtype), make_matrix(0.1, dtype)
    pair = largest_eigenvalue(straight, generator=generator(), max_products=100)
    assert pair.value == pytest.approx(float(torch.linalg.eigvalsh(straight.matrix)[-1]), rel=1e-3)
    estimate_diagonal(straight, generator())
    estimate_diagonal(straight, generator(), memory_budget=1)
    with pytest.raises(NoCurvature, match="not symmetric"):
        largest_eigenvalue(leaning, generator=generator(), max_products=100)
    for budget in (2**28, 1):
        with pytest.raises(NoCurvature, match="not symmetric"):
            estimate_diagonal(leaning, generator(), memory_budget=budget)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_curvature_under_weight_norm_has_no_value_and_says_why(dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(weight_norm(nn.Linear(6, 5)), nn.Tanh(), nn.Linear(5, 3)).to(dtype)
    loss_fn, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(4, 6, dtype=dtype), torch.randint(3, (4,))
    config = quantities("Loss", "HessTrace", "HessMaxEV")
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", config=config, on_error="raise") as run:
        loss_fn(model(x), y).backward()
        optimizer.step()
    reasons = {missing.name: missing.reason for missing in run.data.missing}
    assert "not symmetric" in reasons["HessTrace"]
    assert "not symmetric" in reasons["HessMaxEV"]
