"""An error inside a quantity never reaches the training; an error of the user's own code always reaches the user."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import cockpit_core
from cockpit_core.quantities.base import NoValue, Quantity, Statistics
from tests.training import Training, assert_true, by_step, quantities, start, truth_of


class Broken(Quantity):
    needs = ("norms",)

    def measure(self, statistics: Statistics) -> float:
        raise ZeroDivisionError(f"cannot divide at step {statistics.step}")


class Reluctant(Quantity):
    def measure(self, statistics: Statistics) -> float:
        raise NoValue("it is Monday")


# ---- our errors ----------------------------------------------------------------------------------------------------


def test_quantity_that_raises_warns_once_and_is_recorded_and_the_rest_goes_on(tmp_path: Path) -> None:
    training = start("mlp")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config = [Broken(), *quantities("Loss", "GradNorm", "NormTest")]
        with training.track(tmp_path / "run", config=config, on_error="warn") as run:
            training.run(training.batches(4))
    messages = [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]
    assert len(messages) == 1
    assert "Broken" in messages[0]
    assert "cannot divide" in messages[0]
    errors = [notice for notice in run.data.notices if notice.kind == "error"]
    assert {notice.quantity for notice in errors} == {"Broken"}
    assert "cannot divide at step 0" in errors[0].message
    assert by_step(run.data, "Broken") == {}
    truth = truth_of(start("mlp"), training.batches(4))
    for name in ("Loss", "GradNorm", "NormTest"):
        assert by_step(run.data, name) == pytest.approx(truth.scalars[name])


def test_quantity_that_raises_changes_no_bit_of_the_training(tmp_path: Path) -> None:
    training, plain = start("dropout"), start("dropout")
    config = [Broken(), *quantities("HessTrace")]
    with pytest.warns(UserWarning, match="Broken"), training.track(tmp_path / "run", config=config, on_error="warn"):
        training.run(training.batches(5))
    state = torch.get_rng_state()
    torch.manual_seed(0)
    plain.run(plain.batches(5))
    assert torch.equal(torch.get_rng_state(), state)
    for p, q in zip(training.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(p, q)
        assert torch.equal(p.grad, q.grad)


def test_on_error_raise_shows_the_error_itself(tmp_path: Path) -> None:
    training = start("mlp")
    with pytest.raises(ZeroDivisionError, match="at step 0"), training.track(tmp_path / "run", config=[Broken()]):
        training.run(training.batches(2))


def test_quantity_without_a_value_gives_its_reason_and_no_warning(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config=[Reluctant(), *quantities("Loss")]) as run:
        training.run(training.batches(2))
    assert by_step(run.data, "Reluctant") == {}
    assert "it is Monday" in str(run.data.missing)
    assert list(by_step(run.data, "Loss")) == [0, 1]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"config": "luxury"}, "luxury"),
        ({"config": ["GradNorme"]}, "GradNorme"),
        ({"config": [3.5]}, "3.5"),
        ({"schedule": 0}, "interval"),
        ({"schedule": "often"}, "often"),
        ({"curvature": "fisher"}, "fisher"),
        ({"on_error": "ignore"}, "ignore"),
    ],
)
def test_wrong_option_is_refused_at_once_by_name(options: dict, word: str, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=word):
        start("mlp").track(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


# ---- the user's errors ---------------------------------------------------------------------------------------------


class Explosive(nn.Module):
    """Raises the given error in its forward or its backward pass, once, in its second call."""

    def __init__(self, error: BaseException, where: str) -> None:
        super().__init__()
        self.error, self.where, self.calls = error, where, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls != 2:
            return x
        if self.where == "forward":
            raise self.error
        y = x.clone()
        y.register_hook(self.explode)
        return y

    def explode(self, gradient: Tensor) -> Tensor:
        raise self.error


def explode_in_training(training: Training, where: str, error: BaseException) -> Callable[[], None]:
    """A step that breaks at the given place: in the model, in its backward pass, or between backward and step."""
    if where in ("forward", "backward"):
        training.model.append(Explosive(error, where))

    def step(inputs: Tensor, targets: Tensor, number: int) -> None:
        training.optimizer.zero_grad()
        loss = training.loss_fn(training.model(inputs), targets)
        if where == "before backward" and number == 1:
            raise error
        loss.backward()
        if where == "before step" and number == 1:
            raise error
        training.optimizer.step()

    return step


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["forward", "before backward", "backward", "before step"])
@pytest.mark.parametrize("config", ["economy", "full"])
def test_user_error_is_not_hidden_and_the_next_step_is_right(
    config: str, where: str, error: BaseException, tmp_path: Path
) -> None:
    training, twin = start("mlp"), start("mlp")
    step = explode_in_training(training, where, error)
    batches = list(training.batches(4))
    run = training.track(tmp_path / "run", config=config)
    step(*batches[0], 0)
    with pytest.raises(type(error)) as caught:
        step(*batches[1], 1)
    assert caught.value is error
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    for number in (2, 3):
        step(*batches[number], number)
    run.close()
    assert_true(run.data, truth_of(twin, [batches[0], *batches[2:]]))


def test_error_in_the_optimizer_is_not_hidden(tmp_path: Path) -> None:
    class Stubborn(torch.optim.SGD):
        def step(self, closure=None):
            raise LookupError("no step today")

    training = start("mlp")
    training.optimizer = Stubborn(training.model.parameters(), lr=0.1)
    with pytest.raises(LookupError, match="no step today"), training.track(tmp_path / "run", config="full"):
        training.run(training.batches(1))
    assert cockpit_core.load(tmp_path / "run").status == "failed"


def test_error_in_the_loss_is_not_hidden(tmp_path: Path) -> None:
    training = start("mlp")
    (inputs, targets), *_ = training.batches(1)
    with pytest.raises(IndexError), training.track(tmp_path / "run", config="full"):
        training.run([(inputs, targets + 100)])


def test_run_that_nobody_named_is_tracked_all_the_same(tmp_path: Path) -> None:
    training = start("mlp")
    training.track(tmp_path / "run", config="economy")
    gc.collect()
    training.run(training.batches(3))
    assert len(by_step(cockpit_core.load(tmp_path / "run"), "Loss")) == 3
