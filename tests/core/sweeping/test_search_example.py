"""The example for optuna: a trial that Cockpit finds broken is pruned within a few steps."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "search_with_optuna.py"


@pytest.mark.filterwarnings("ignore:Cockpit")
def test_a_rate_that_is_too_high_is_pruned_with_its_finding(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna", reason="optuna is not installed")
    spec = importlib.util.spec_from_file_location("search_with_optuna", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    trial = optuna.trial.FixedTrial({"optimizer": "SGD", "lr": 10.0})
    with pytest.raises(optuna.TrialPruned):
        example.objective(trial, logdir=str(tmp_path))
    assert "learning rate" in trial.user_attrs["findings"][0]
