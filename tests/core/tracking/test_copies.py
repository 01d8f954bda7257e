"""Several runs at once, one after the other, and copies of what is tracked."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import cockpit_core
from tests import slow_truth
from tests.training import assert_true, by_step, loop, start, truth_of


def test_two_runs_at_once_do_not_see_each_other(tmp_path: Path) -> None:
    first, second = start("mlp", "sgd"), start("cnn", "adam")
    with first.track(tmp_path / "a", config="full") as a, second.track(tmp_path / "b", config="full") as b:
        for one, two in zip(first.batches(3), second.batches(3), strict=True):
            first.optimizer.zero_grad()
            second.optimizer.zero_grad()
            loss_one = first.loss_fn(first.model(one[0]), one[1])
            loss_two = second.loss_fn(second.model(two[0]), two[1])
            loss_two.backward()
            loss_one.backward()
            first.optimizer.step()
            second.optimizer.step()
    names = ("Loss", "GradNorm", "NormTest", "UpdateSize", "HessTrace", "HessMaxEV")
    assert_true(a.data, truth_of(start("mlp", "sgd"), first.batches(3), slow_truth.hessian), names)
    assert_true(b.data, truth_of(start("cnn", "adam"), second.batches(3), slow_truth.hessian), names)


class Positions(nn.Module):
    """All samples share the rows of ``positions``, before they meet the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions, self.head = nn.Embedding(7, 6), nn.Embedding(5, 6), nn.Linear(30, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head((self.tokens(x) + self.positions(torch.arange(5))).flatten(1))


def train_positions(logdirs: list[Path]) -> list[cockpit_core.RunData]:
    """Models that take their steps in turn, each tracked, with losses that are handed over."""
    torch.manual_seed(0)
    models = [Positions().double() for _ in range(2)][: len(logdirs)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    runs = [
        cockpit_core.track(model, None, optimizer, logdir, config="economy", on_error="raise")
        for model, optimizer, logdir in zip(models, optimizers, logdirs, strict=True)
    ]
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        inputs, labels = (torch.randint(high, size, generator=generator) for high, size in ((7, (4, 5)), (3, (4,))))
        for model, optimizer, run in zip(models, optimizers, runs, strict=True):
            optimizer.zero_grad()
            losses = nn.functional.cross_entropy(model(inputs), labels, reduction="none")
            run.backward(losses.mean(), losses)
            optimizer.step()
    for run in runs:
        run.close()
    return [run.data for run in runs]


def test_losses_handed_over_to_one_run_are_not_taken_for_another_s(tmp_path: Path) -> None:
    """``run.backward`` of one run counted as one of every other run that was measuring: a KeyError inside, and a layer lost."""
    together = train_positions([tmp_path / "a", tmp_path / "b"])[0]
    (alone,) = train_positions([tmp_path / "alone"])
    assert together.header.covered == 1.0
    for name in ("Loss", "NormTest", "InnerTest", "Alpha"):
        assert by_step(together, name) == by_step(alone, name), name


def test_model_can_be_tracked_again_after_close(tmp_path: Path) -> None:
    training, twin = start("cnn", "adam"), start("cnn", "adam")
    batches = list(training.batches(5))
    for name, part in (("first", batches[:2]), ("second", batches[2:])):
        with training.track(tmp_path / name, config="economy") as run:
            training.run(part)
        assert_true(run.data, truth_of(twin, part))


def test_nothing_is_recorded_after_close(tmp_path: Path) -> None:
    training = start()
    run = training.track(tmp_path / "run", config="economy")
    training.run(training.batches(2))
    run.close()
    run.close()  # closing twice is no error
    training.run(training.batches(2))
    assert list(by_step(cockpit_core.load(tmp_path / "run"), "Loss")) == [0, 1]


def copy_by_pickle(model: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(model))


def copy_by_torch_save(model: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, copy_by_pickle, copy_by_torch_save])
def test_copy_of_a_tracked_model_works_and_is_not_recorded(duplicate: Callable, tmp_path: Path) -> None:
    training = start("cnn")
    with training.track(tmp_path / "run", config="full") as run:
        for inputs, targets in training.batches(3):
            training.optimizer.zero_grad()
            loss = training.loss_fn(training.model(inputs), targets)
            twin = duplicate(training.model)  # also in the middle of a step
            loss.backward()
            training.optimizer.step()
            twin_optimizer = torch.optim.SGD(twin.parameters(), lr=0.5)
            loop(twin, nn.CrossEntropyLoss(), twin_optimizer, [(inputs, targets)] * 2)
    names = ("Loss", "GradNorm", "NormTest", "UpdateSize", "HessTrace")
    assert_true(run.data, truth_of(start("cnn"), training.batches(3), slow_truth.hessian), names)


def test_state_dict_of_a_tracked_model_and_optimizer_is_as_ever(tmp_path: Path) -> None:
    training, plain = start("batchnorm", "adam"), start("batchnorm", "adam")
    plain.run(plain.batches(2))
    with training.track(tmp_path / "run", config="full"):
        training.run(training.batches(2))
        state, optimizer_state = training.model.state_dict(), training.optimizer.state_dict()
        restored = pickle.loads(pickle.dumps(training.optimizer))
        training.model.load_state_dict(state)
        training.optimizer.load_state_dict(copy.deepcopy(optimizer_state))
    expected = plain.model.state_dict()
    assert list(state) == list(expected)
    assert all(torch.equal(state[key], expected[key]) for key in expected)
    assert optimizer_state.keys() == plain.optimizer.state_dict().keys() == restored.state_dict().keys()
    assert list(optimizer_state["state"]) == list(plain.optimizer.state_dict()["state"])
