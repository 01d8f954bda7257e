"""``budget=``: spend at most a share of the training time, by leaving tracked steps out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training import by_step, start


def test_budget_that_is_used_up_leaves_steps_out(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config="full", budget=0.05) as run:
        training.run(training.batches(60))
        tracked = by_step(run.data, "Loss")
        assert 0 in tracked
        assert len(tracked) < 60


def test_budget_is_compared_with_what_tracking_has_cost(tmp_path: Path) -> None:
    training = start("mlp")
    batches = list(training.batches(4))
    with training.track(tmp_path / "run", config="economy", budget=0.5) as run:
        training.run(batches[:1])
        run._tracker.pace.seconds = 1e9
        run._tracker.begin(run._tracker.make_plan())
        training.run(batches[1:3])  # the first of them ends step 0's Alpha, and no more
        run._tracker.pace.seconds = 0.0
        run._tracker.begin(run._tracker.make_plan())
        training.run(batches[3:])
        assert list(by_step(run.data, "Loss")) == [0, 3]


@pytest.mark.parametrize("budget", [0, -0.1, 1.5])
def test_budget_that_is_no_share_is_refused(budget: float, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="share of the training time"):
        start("mlp").track(tmp_path / "run", budget=budget)
