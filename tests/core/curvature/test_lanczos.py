"""The largest eigenvalue against dense eigenvalues, where iterations are tempted to stop too early or too late."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cockpit_core.curvature import GGNOperator, HessianOperator, NoCurvature, largest_eigenvalue
from tests.core.curvature.points import HARD_NETWORKS, NETWORKS, full_ggn, full_hessian, make_point


class Matrix:
    """A dense symmetric matrix behind the interface of an operator."""

    column_bytes, note = 0, ""

    def __init__(self, matrix: Tensor):
        self.matrix, self.products = matrix, 0
        self.parameters = [torch.zeros(len(matrix), dtype=matrix.dtype)]

    def matvec(self, vector) -> list[Tensor]:
        self.products += 1
        return [self.matrix @ vector[0]]

    def matmat(self, vectors) -> list[Tensor]:
        return [vectors[0] @ self.matrix]

    def close(self) -> None:
        pass


def rotated(eigenvalues: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    noise = torch.randn(len(eigenvalues), len(eigenvalues), generator=torch.Generator().manual_seed(seed))
    basis = torch.linalg.qr(noise.to(eigenvalues.dtype))[0]
    return basis @ torch.diag(eigenvalues) @ basis.T, basis


def bulk(*top: float, size: int = 400, dtype=torch.float32) -> Tensor:
    rest = 0.05 * torch.randn(size - len(top), generator=torch.Generator().manual_seed(7))
    return torch.cat([torch.tensor(top), rest]).to(dtype)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("network", NETWORKS | HARD_NETWORKS)
def test_the_eigenvalue_of_every_network_is_right(network: str) -> None:
    point = make_point(network)
    for operator, matrix in ((HessianOperator(point), full_hessian(point)), (GGNOperator(point), full_ggn(point))):
        found = largest_eigenvalue(operator, None, generator())
        assert found.converged
        assert found.value == pytest.approx(float(torch.linalg.eigvalsh(matrix)[-1]), rel=1e-4)
        vector = torch.cat([v.reshape(-1) for v in found.vector])
        assert float((matrix @ vector - found.value * vector).norm()) == pytest.approx(
            found.residual, rel=0.1, abs=1e-8
        )
        operator.close()


def test_the_most_negative_eigenvalue_is_not_mistaken_for_the_largest() -> None:
    matrix, _ = rotated(bulk(-30.0, 4.0, 2.0))
    assert largest_eigenvalue(Matrix(matrix), None, generator()).value == pytest.approx(4.0, rel=1e-3)


def test_a_matrix_without_positive_eigenvalues_has_its_largest_one() -> None:
    eigenvalues = -torch.linspace(1.0, 5.0, 30, dtype=torch.float64)
    matrix, _ = rotated(eigenvalues)
    assert largest_eigenvalue(Matrix(matrix), None, generator()).value == pytest.approx(-1.0, rel=1e-3)


@pytest.mark.parametrize("larger", [1.02, 1.1, 1.5, 4.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_warm_start_does_not_stick_to_a_smaller_eigenvalue(larger: float, seed: int) -> None:
    """The start is exactly an eigenvector of another eigenvalue: its residual is zero from the first product on."""
    matrix, basis = rotated(bulk(larger, 1.0, 0.6, 0.4, size=1000), seed)
    found = largest_eigenvalue(Matrix(matrix), [basis[:, 1].contiguous()], generator(seed))
    assert found.value == pytest.approx(larger, rel=1e-3)


def test_a_start_without_noise_would_stick_so_the_test_above_can_fail() -> None:
    matrix, basis = rotated(bulk(1.5, 1.0, dtype=torch.float64))
    found = largest_eigenvalue(Matrix(matrix), [basis[:, 1].contiguous()], generator(), noise=0.0)
    assert found.value == pytest.approx(1.0, rel=1e-3)


def test_a_warm_start_saves_products() -> None:
    eigenvalues = torch.cat([torch.tensor([3.0]), torch.linspace(-1.0, 2.8, 599)])
    matrix, _ = rotated(eigenvalues)
    cold, warm = Matrix(matrix), Matrix(matrix)
    first = largest_eigenvalue(cold, None, generator())
    again = largest_eigenvalue(warm, first.start, generator(1), noise=0.1)
    assert again.value == pytest.approx(3.0, rel=1e-3)
    assert warm.products < cold.products


def test_close_eigenvalues_and_restarts_keep_the_accuracy() -> None:
    eigenvalues = torch.cat([torch.tensor([1.0, 0.99, 0.98]), torch.linspace(-1, 0.97, 497)])
    matrix, _ = rotated(eigenvalues)
    found = largest_eigenvalue(Matrix(matrix), None, generator(), max_products=300, max_vectors=12)
    assert found.converged
    assert found.value == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_tiny_matrices_are_solved_exactly(size: int) -> None:
    matrix, _ = rotated(torch.arange(size, dtype=torch.float64) - 1.5)
    found = largest_eigenvalue(Matrix(matrix), None, generator())
    assert found.value == pytest.approx(size - 2.5, rel=1e-9)
    assert found.products <= size


@pytest.mark.parametrize("matrix", [torch.zeros(50, 50), torch.eye(50) * 2.0])
def test_a_space_that_is_exhausted_at_once_is_no_breakdown(matrix: Tensor) -> None:
    found = largest_eigenvalue(Matrix(matrix), None, generator())
    assert found.converged
    assert found.value == pytest.approx(float(matrix[0, 0]), rel=1e-5)
    again = largest_eigenvalue(Matrix(matrix), found.start, generator())
    assert again.value == pytest.approx(found.value)


def test_products_that_run_out_are_told() -> None:
    matrix, _ = rotated(torch.linspace(0, 1, 400))
    found = largest_eigenvalue(Matrix(matrix), None, generator(), max_products=9)
    assert not found.converged
    assert found.products == 9
    assert found.residual > 0


def test_a_tolerance_below_rounding_still_ends() -> None:
    matrix, _ = rotated(bulk(3.0, 1.0))
    found = largest_eigenvalue(Matrix(matrix), None, generator(), tolerance=1e-12, max_products=100)
    assert found.converged
    assert found.value == pytest.approx(3.0, rel=1e-5)


def test_a_start_that_is_not_finite_is_replaced() -> None:
    matrix, _ = rotated(bulk(3.0))
    found = largest_eigenvalue(Matrix(matrix), [torch.full((400,), torch.nan)], generator())
    assert found.value == pytest.approx(3.0, rel=1e-3)


def test_a_matrix_that_is_not_finite_has_no_value() -> None:
    with pytest.raises(NoCurvature, match="not finite"):
        largest_eigenvalue(Matrix(torch.full((4, 4), torch.nan)), None, generator())
