"""What a diagnosis lacks is something to track or to log, not what the run cannot have."""

from __future__ import annotations

from cockpit_core.diagnosis.history import History, Observation
from cockpit_core.diagnosis.unexamined import describe, lacking


def history(**scalars: float) -> History:
    seen = History()
    seen.add(Observation(0, {"Loss": 1.0, **{name.replace("__", "/"): value for name, value in scalars.items()}}))
    return seen


def test_a_quantity_that_was_not_tracked_is_named() -> None:
    assert lacking(("Alpha", "HessMaxEV", "probe/line"), history(), {"Loss"}) == ["Alpha", "HessMaxEV"]
    assert lacking(("Alpha", "Loss"), history(), {"Loss"}) == []


def test_a_signal_that_does_not_apply_is_not_lacking() -> None:
    assert lacking(("loss_scale",), history(signal__loss_std=0.1), set()) == []
    assert lacking(("loss_scale",), history(), set()) == ["signal/loss_scale"]


def test_a_network_without_attention_lacks_no_entropy() -> None:
    assert lacking(("AttentionEntropy",), history(), {"AttentionEntropy"}) == []
    assert lacking(("AttentionEntropy",), history(), {"Loss"}) == ["AttentionEntropy"]


def test_a_validation_loss_that_was_logged_is_there() -> None:
    seen = history()
    assert "run.log" in describe(lacking(("valid_loss",), seen, set()))[0]
    seen.note(0, {"val_loss": 2.0})
    assert lacking(("valid_loss",), seen, set()) == []


def test_signals_are_said_once() -> None:
    assert len(describe(["signal/a", "signal/b", "Alpha"])) == 2
