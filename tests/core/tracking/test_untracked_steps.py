"""Steps of optimizers of one's own that cannot be tracked, or only in part: said, and nothing wrong is written."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

import cockpit_core
from cockpit_core.engine.place import Place, Windows
from tests.core.tracking.own_optimizer_cases import Iteration, in_two_calls, plainly
from tests.own_optimizers import (
    Lookahead,
    SamAlone,
)
from tests.training import Training, by_step, start


def backward_alone(training: Training, optimizer: Any, inputs: Tensor, targets: Tensor, run: cockpit_core.Run) -> None:
    training.loss_fn(training.model(inputs), targets).backward()


def repeat(steps: int, iterate: Iteration, training: Training, optimizer: Any, run: cockpit_core.Run) -> None:
    for inputs, targets in training.batches(steps):
        iterate(training, optimizer, inputs, targets, run)


@pytest.mark.parametrize("schedule", [1, cockpit_core.schedules.linear(10, 500)])
def test_step_that_is_never_called_is_said_once(schedule: Any, tmp_path: Path) -> None:
    training = start("mlp")
    optimizer = SamAlone(list(training.model.parameters()), lr=0.1)
    run = cockpit_core.track(training.model, training.loss_fn, optimizer, tmp_path / "run", schedule=schedule)
    with pytest.warns(UserWarning, match=r"step\(\) of SamAlone.* is not called.*with run\.stepping\(\)") as said:
        repeat(30, in_two_calls, training, optimizer, run)
    run.close()
    assert len(said) == 1
    assert any("is not called" in notice.message for notice in run.data.notices)


@pytest.mark.parametrize("passes", [8, 40])
def test_a_run_that_never_steps_says_so_at_its_end(passes: int, tmp_path: Path) -> None:
    training = start("mlp")
    run = training.track(tmp_path / "run")
    repeat(passes, backward_alone, training, training.optimizer, run)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run.close()
    told = [str(one.message) for one in said if "was never called" in str(one.message)]
    assert len(told) == (passes == 40)
    assert [notice.message for notice in run.data.notices if "was never called" in notice.message] == told
    assert all("40 losses" in message for message in told)
    names = ["nothing_moves"] * (passes == 40)
    assert [finding.name for finding in run.findings] == names
    assert [finding.name for finding in cockpit_core.diagnose(tmp_path / "run")] == names
    assert all("40 losses" in finding.text and finding.severity == "broken" for finding in run.findings)


def descend_by_hand(training: Training, optimizer: Any, inputs: Tensor, targets: Tensor, run: cockpit_core.Run) -> None:
    training.model.zero_grad()
    training.loss_fn(training.model(inputs), targets).backward()
    with torch.no_grad():
        for p in training.model.parameters():
            p.sub_(0.1 * p.grad)


def test_a_run_that_something_else_moves_is_not_said_to_stand_still(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run") as run, pytest.warns(UserWarning, match="is not called"):
        repeat(40, descend_by_hand, training, training.optimizer, run)
    assert run.findings == []


def test_step_that_is_replaced_altogether_is_said(tmp_path: Path) -> None:
    training = start("mlp")

    @torch.no_grad()
    def descend() -> None:
        for p in training.model.parameters():
            p.sub_(0.1 * p.grad)

    training.optimizer.step = descend
    with training.track(tmp_path / "run"), pytest.warns(UserWarning, match=r"step\(\) of SGD.* is not called"):
        training.run(training.batches(20))


@pytest.mark.parametrize("schedule", [1, 100])
def test_places_of_an_earlier_step_are_not_compared_with(schedule: int, tmp_path: Path) -> None:
    """Eight losses of one step and sixteen of a later one: what lies between them is a step that was seen."""
    training = start("mlp")
    with training.track(tmp_path / "run", schedule=schedule) as run:
        training.run(training.batches(3))
        unseen = run._tracker.listener.unseen
        assert not unseen.looks(8)
        training.run(training.batches(2))
        assert not unseen.looks(16)


def test_many_batches_before_a_step_are_nothing_to_say(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run") as run, warnings.catch_warnings():
        warnings.simplefilter("error")
        for inputs, targets in training.batches(40):
            training.loss_fn(training.model(inputs), targets).backward()
        training.optimizer.step()
    assert list(by_step(run.data, "Loss")) == [0]


def test_move_behind_the_step_leaves_no_alpha_and_is_said(tmp_path: Path) -> None:
    """A wrapper that is no Optimizer: the step inside it is measured, and what comes after it is noticed."""
    training = start("mlp")
    optimizer = Lookahead(SGD(training.model.parameters(), lr=0.1), every=2)
    run = cockpit_core.track(
        training.model, training.loss_fn, optimizer, tmp_path / "run", on_error="raise", config="economy"
    )
    with pytest.warns(UserWarning, match=r"moved after optimizer\.step\(\).*with run\.stepping") as said:
        repeat(7, plainly, training, optimizer, run)
    run.close()
    assert len(said) == 1
    assert [fit.step for fit in run.data.alphas] == [0, 2, 4]
    assert {missing.step for missing in run.data.missing if missing.name == "Alpha"} == {2, 4, 6}


def test_parameters_that_do_not_come_back_before_the_step_are_not_recorded(tmp_path: Path) -> None:
    """Extrapolation from the past: which gradient belongs to which move is not known."""

    def extrapolate(training: Training, optimizer: Any, inputs: Tensor, targets: Tensor, run: cockpit_core.Run) -> None:
        training.loss_fn(training.model(inputs), targets).backward()
        with torch.no_grad():
            for p in training.model.parameters():
                p.add_(0.3)
        plainly(training, optimizer, inputs, targets, run)

    training = start("mlp")
    run = training.track(tmp_path / "run")
    with pytest.warns(UserWarning, match="moved between two backward passes, and not back"):
        repeat(2, extrapolate, training, training.optimizer, run)
    run.close()
    assert by_step(run.data, "Loss") == {}
    assert run.step == 2


def test_step_that_is_skipped_counts_its_next_batch(tmp_path: Path) -> None:
    """Zeroed gradients alone, without a move, are a batch that was thrown away: as before."""
    training = start("mlp")
    (x, y), (x2, y2) = training.batches(2)
    with training.track(tmp_path / "run") as run:
        training.loss_fn(training.model(x), y).backward()
        plainly(training, training.optimizer, x2, y2, run)
    loss = start("mlp").loss_fn(start("mlp").model(x2), y2).item()
    assert by_step(run.data, "Loss") == {0: pytest.approx(loss)}


@pytest.mark.parametrize("first", [True, False], ids=["their hooks first", "ours first"])
def test_optimizers_that_step_inside_the_backward_pass_are_said(first: bool, tmp_path: Path) -> None:
    training = start("mlp")
    optimizers = {p: SGD([p], lr=0.1) for p in training.model.parameters()}

    def step(p: Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in optimizers if first else ():
        p.register_post_accumulate_grad_hook(step)
    options: dict[str, Any] = {"config": "economy", "on_error": "raise"}
    with cockpit_core.track(
        training.model, training.loss_fn, list(optimizers.values()), tmp_path / "run", **options
    ) as run:
        for p in () if first else optimizers:
            p.register_post_accumulate_grad_hook(step)
        with pytest.warns(UserWarning, match="runs inside the backward pass"):
            repeat(3, backward_alone, training, None, run)
    assert run.step == 3
    assert by_step(run.data, "Loss") == {}


def test_other_optimizer_that_moves_its_own_parameters_in_between_is_no_two_step_one(tmp_path: Path) -> None:
    """Two networks that train against each other, with the optimizer of one tracked: its loss is the one on record."""
    torch.manual_seed(0)
    both = nn.ModuleDict({"maker": nn.Linear(3, 4), "critic": nn.Linear(4, 1)})
    loss_fn, noise = nn.BCEWithLogitsLoss(), torch.randn(6, 3)
    makes, judges = SGD(both["maker"].parameters(), lr=0.1), SGD(both["critic"].parameters(), lr=0.1)
    losses = []
    with cockpit_core.track(both, loss_fn, makes, tmp_path / "run", config=["Loss", "UpdateSize"]) as run:
        for _ in range(3):
            judges.zero_grad()
            loss_fn(both["critic"](both["maker"](noise).detach()), torch.zeros(6, 1)).backward()
            judges.step()
            makes.zero_grad()
            losses.append(loss_fn(both["critic"](both["maker"](noise)), torch.ones(6, 1)))
            losses[-1].backward()
            makes.step()
    assert by_step(run.data, "Loss") == {k: pytest.approx(loss.item()) for k, loss in enumerate(losses)}
    assert list(by_step(run.data, "UpdateSize")) == [0, 1, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64])
def test_place_of_parameters(dtype: torch.dtype) -> None:
    parameters = [torch.randn(3, 5).to(dtype), torch.randn(2, 3, 4, 4).to(dtype).to(memory_format=torch.channels_last)]
    parameters += [torch.randn(7, 4).to(dtype).T, torch.zeros(0, 3, dtype=dtype), torch.tensor(1.0, dtype=dtype)]
    place = Place(parameters)
    assert not place.has_moved()
    for p in parameters[:3]:
        before = p.clone()
        p.add_(1)
        other = Place(parameters)
        assert place.has_moved()
        assert not place.is_back(other)
        p.copy_(before)
        assert place.is_back(other)
        assert not place.has_moved()


def test_place_is_seen_wherever_the_parameter_lies_by_now() -> None:
    """What was looked at last time is not looked at again once the parameter lies elsewhere, in whatever way."""
    windows, p = Windows(), nn.Parameter(torch.randn(6, 6))
    place = Place([p], windows)
    assert not place.has_moved()
    p.data.view(-1)[0] += 1  # in place: the same window shows it
    assert place.has_moved()
    for moved in (p.data + 1, p.data.t(), p.data.double(), p.data[:3], torch.empty(0), p.data.half(), p.data.clone()):
        p.data = moved
        assert np.array_equal(Place([p], windows).values, Place([p]).values)


def test_place_with_numbers_that_are_none() -> None:
    p = torch.tensor([1.0, float("nan"), float("inf")])
    place = Place([p])
    assert not place.has_moved()
    p[0] = float("nan")
    assert place.has_moved()
    assert Place([]).has_moved() is False


@pytest.mark.parametrize("schedule", [1, lambda step: step == 2])
def test_many_losses_of_one_closure_are_one_step(schedule: Any, tmp_path: Path) -> None:
    """LBFGS evaluates its closure twenty times and moves in between: that is its step, and no reason for a warning."""
    torch.manual_seed(0)
    model, loss_fn = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), nn.CrossEntropyLoss()
    inputs, labels = torch.randn(16, 5), torch.randint(3, (16,))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), labels)
        loss.backward()
        return loss

    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", config="economy", schedule=schedule) as run:
        for _ in range(4):
            optimizer.step(closure)
    assert len(run.data.scalars("Loss")[0]) == (4 if schedule == 1 else 1)
