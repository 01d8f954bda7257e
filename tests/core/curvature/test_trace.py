"""Estimates lie where their standard errors say."""

from __future__ import annotations

import pytest
import torch

from cockpit_core.curvature.trace import estimate_diagonal
from tests.core.curvature.test_lanczos import Matrix, rotated

SPECTRA = {
    "few outliers": torch.cat([torch.tensor([10.0, 5, 3, 2, 1.5, 1, 0.8, -0.5]), torch.linspace(-0.05, 0.05, 192)]),
    "flat": torch.linspace(0.9, 1.1, 200),
    "slow decay": 1 / torch.arange(1, 201),
    "indefinite": torch.linspace(-1.0, 1.5, 200),
    "rank three": torch.cat([torch.tensor([3.0, 2, 1]), torch.zeros(197)]),
}


@pytest.mark.parametrize("memory_budget", [2**28, 1])
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_the_trace_lies_within_four_standard_errors(spectrum: str, memory_budget: int) -> None:
    eigenvalues = SPECTRA[spectrum].double()
    matrix, _ = rotated(eigenvalues)
    scores, deviations = [], []
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        made = estimate_diagonal(Matrix(matrix), generator, memory_budget=memory_budget)
        assert made.method == ("Hutchinson" if memory_budget == 1 else "XTrace")
        scores.append(abs(made.trace - float(eigenvalues.sum())) / max(made.trace_error, 1e-9))
        deviations.append((made.diagonal - matrix.diagonal()).abs() / made.diagonal_error.clamp_min(1e-9))
    assert max(scores) <= 4
    assert float((torch.stack(deviations) > 4).double().mean()) < 0.01


def test_outliers_are_found_and_not_guessed() -> None:
    """Where few eigenvalues carry the trace, XTrace is far better than the same number of independent probes."""
    matrix, _ = rotated(SPECTRA["few outliers"].double())
    made = estimate_diagonal(Matrix(matrix), torch.Generator().manual_seed(0))
    plain = estimate_diagonal(
        Matrix(matrix), torch.Generator().manual_seed(0), memory_budget=1, max_products=made.products, target=0.0
    )
    assert plain.products == made.products
    assert made.trace_error < 0.3 * plain.trace_error


def test_probes_are_added_until_the_stated_error_is_reached() -> None:
    matrix, _ = rotated(SPECTRA["slow decay"].double())
    loose = estimate_diagonal(Matrix(matrix), torch.Generator().manual_seed(0), target=0.2)
    tight = estimate_diagonal(Matrix(matrix), torch.Generator().manual_seed(0), target=0.02, max_products=400)
    assert tight.trace_error <= 0.02 * abs(tight.trace)
    assert loose.products < tight.products
    stopped = estimate_diagonal(Matrix(matrix), torch.Generator().manual_seed(0), target=1e-9, max_products=60)
    assert stopped.products == 60


def test_layers_add_up_to_the_network() -> None:
    matrix, _ = rotated(SPECTRA["slow decay"].double())
    operator = Matrix(matrix)
    made = estimate_diagonal(operator, torch.Generator().manual_seed(0))
    assert sum(made.traces) == pytest.approx(made.trace)
    assert float(made.diagonal.sum()) == pytest.approx(made.trace)
