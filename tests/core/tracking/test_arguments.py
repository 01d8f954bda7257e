"""Arguments of track that cannot be: an error that names them and the remedy, and nothing left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cockpit_core
from cockpit_core.tracking import opening, tracker
from tests.own_optimizers import ByHand
from tests.training import Training, by_step, start, with_config

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "negative step": ({"step": -1}, "step must be at least 0, got -1"),
    "negative step of a resumed run": ({"step": -1, "resume": True}, "step must be at least 0, got -1"),
    "step that is no integer": ({"step": 5.0}, "step must be a whole number, got 5.0; write step=5"),
    "step beyond the log": ({"step": 2**32}, "step must be at most 4294967295, got 4294967296"),
    "step that is a flag": ({"step": True}, "step must be a whole number, got True"),
    "resume": ({"resume": "yes"}, "resume must be True or False, got 'yes'"),
    "seed": ({"seed": 0.5}, "seed must be a whole number, got 0.5"),
    "batch_dim": ({"batch_dim": -1}, "batch_dim must be at least 0, got -1"),
    "curvature": ({"curvature": "fisher"}, "curvature must be one of hessian, ggn, ggn_mc, got 'fisher'"),
    "curvature_samples": ({"curvature_samples": 0}, "curvature_samples must be at least 1, got 0"),
    "memory_budget": ({"memory_budget": "1 GB"}, "memory_budget must be a whole number, got '1 GB'"),
    "keep_start": ({"keep_start": None}, "keep_start must be a whole number, got None"),
    "steps_per_epoch": ({"steps_per_epoch": 0}, "steps_per_epoch must be a positive number, got 0; it is len(loader)"),
    "epochs that are not a number": ({"steps_per_epoch": float("nan")}, "steps_per_epoch must be a positive number"),
    "layers": ({"layers": 5}, "layers must be glob patterns over parameter names such as 'conv*', got 5"),
    "layers that match nothing": ({"layers": "conv*"}, "layers='conv*' matches no parameter; the names are: 0.weight"),
    "no layers": ({"layers": []}, "layers must be glob patterns"),
    "budget": ({"budget": "5 %"}, "budget is a share of the training time between 0 and 1, got '5 %'"),
    "on_error": ({"on_error": "ignore"}, "on_error must be 'warn' or 'raise', got 'ignore'"),
    "schedule": ({"schedule": "often"}, "schedule must be an interval in steps or a function of the step, got 'often'"),
    "logdir": ({"logdir": ""}, "logdir must name a directory, got ''; None makes one in runs/"),
    "logdir of bytes": ({"logdir": b"run"}, "logdir must be a path, got bytes"),
    "class of a loss": ({"loss_fn": nn.MSELoss}, "loss_fn is the class MSELoss; pass the object that the loop calls"),
    "class of a model": ({"model": nn.Linear}, "model must be an nn.Module, got type; make one first"),
    "class of an optimizer": ({"optimizer": torch.optim.SGD}, "optimizer is the class SGD; pass the object"),
    "no optimizer": ({"optimizer": []}, "optimizer is an empty list"),
    "schedule of a quantity": (
        {"config": [cockpit_core.quantities.Loss(schedule="often")]},
        "schedule must be an interval in steps or a function of the step, got 'often'",
    ),
}


def is_untouched(training: Training) -> bool:
    optimizer, model = training.optimizer, training.model
    hooks = [optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks, training.loss_fn._forward_hooks]
    hooks += [module._forward_hooks for module in model.modules()]
    hooks += [module._forward_pre_hooks for module in model.modules()]
    return not any(hooks) and all(not p._post_accumulate_grad_hooks for p in model.parameters())


@pytest.mark.parametrize("case", BAD)
def test_bad_argument_is_named_and_leaves_nothing(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options, words = BAD[case]
    training = start("mlp")
    given = {"model": training.model, "loss_fn": training.loss_fn, "optimizer": training.optimizer, "logdir": "run"}
    with pytest.raises((TypeError, ValueError)) as caught:
        cockpit_core.track(**with_config({**given, **options}))
    assert str(caught.value).startswith(words)
    assert is_untouched(training)
    assert list(tmp_path.iterdir()) == []


def test_log_after_a_failed_attempt_is_right(tmp_path: Path) -> None:
    """Hooks that stayed would write the steps of the next run too."""
    training = start("mlp")
    with training.track(tmp_path / "run"):
        training.run(training.batches(2))
    for step in (-1, 5.0):
        with pytest.raises((TypeError, ValueError)):
            training.track(tmp_path / "run", resume=True, step=step)
    with training.track(tmp_path / "run", resume=True) as run:
        training.run(training.batches(2))
    assert list(by_step(run.data, "Loss")) == [0, 1, 2, 3]
    assert len(list((tmp_path / "run").glob("events*"))) == 2


@pytest.mark.parametrize("where", ["make_header", "describe_quantity", "Ending", "Engine"])
def test_error_at_any_place_of_the_beginning_is_undone(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("nobody expected this")

    training = start("mlp")
    with monkeypatch.context() as patch:
        patch.setattr(tracker if where == "Ending" else opening, where, fail)
        with pytest.raises(ZeroDivisionError):
            training.track(tmp_path / "run")
    assert is_untouched(training)
    assert list(tmp_path.iterdir()) == []
    with training.track(tmp_path / "run") as run:
        training.run(training.batches(1))
    assert list(by_step(run.data, "Loss")) == [0]


def test_error_after_the_first_record_is_undone(tmp_path: Path) -> None:
    """The schedule is asked when the hooks are on and the header is written."""

    def schedule(step: int) -> bool:
        raise ZeroDivisionError("in the user's own schedule")

    training = start("mlp")
    with pytest.raises(ZeroDivisionError):
        training.track(tmp_path / "run", schedule=schedule)
    assert is_untouched(training)
    assert list(tmp_path.iterdir()) == []


def test_numbers_of_other_libraries_are_numbers(tmp_path: Path) -> None:
    training = start("mlp")
    options = {"step": np.int64(3), "seed": np.int32(1), "memory_budget": 1e8, "steps_per_epoch": np.float64(2)}
    with training.track(tmp_path / "run", batch_dim=np.int64(0), **options) as run:
        training.run(training.batches(2))
    assert list(by_step(run.data, "Loss")) == [3, 4]


def test_object_that_is_no_optimizer_is_told_what_to_do(tmp_path: Path) -> None:
    training = start("mlp")
    with pytest.raises(TypeError, match=r"got ByHand; a wrapper is looked into.*subclass of torch\.optim\.Optimizer"):
        cockpit_core.track(
            training.model,
            training.loss_fn,
            ByHand(training.model.parameters(), 0.1),
            tmp_path / "run",
            config="economy",
        )


def test_optimizer_without_its_init_is_told_what_to_do(tmp_path: Path) -> None:
    class Bare(torch.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            self.param_groups = [{"params": list(params)}]

    training = start("mlp")
    with pytest.raises(TypeError, match=r"Bare has no step hooks: its __init__ must call super"):
        cockpit_core.track(
            training.model, training.loss_fn, Bare(training.model.parameters()), tmp_path / "run", config="economy"
        )


def test_same_optimizer_twice_is_refused(tmp_path: Path) -> None:
    training = start("mlp")
    with pytest.raises(ValueError, match="the same optimizer twice"):
        cockpit_core.track(
            training.model, training.loss_fn, [training.optimizer] * 2, tmp_path / "run", config="economy"
        )
