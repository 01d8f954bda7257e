"""Free when off: what a step costs that is not scheduled."""

from __future__ import annotations

from pathlib import Path

from tests.bytecodes import assert_next_to_nothing
from tests.training import start


def test_step_that_is_not_scheduled_costs_next_to_nothing(tmp_path: Path) -> None:
    """Promised: 1 % or 20 microseconds; `python -m benchmarks.idle` times it. Here the work is counted."""
    batch = next(iter(start("cnn").batches(1)))
    assert_next_to_nothing(
        lambda training: training.run([batch]),
        lambda: start("cnn"),
        lambda training: training.track(tmp_path / "run", config="full", schedule=10**9),
    )


def test_no_hook_sits_on_a_layer_while_nothing_is_scheduled(tmp_path: Path) -> None:
    training = start("cnn")
    with training.track(tmp_path / "run", config="full", schedule=10**9):
        training.run(training.batches(3))
        layers = list(training.model.children())
        assert not any(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks for layer in layers)
