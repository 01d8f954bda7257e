"""Optimizers that people write themselves: a step is the move of the parameters from where its gradient was taken to where
the next one is. Each is tracked right, or it is said that it is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD

import cockpit_core
from cockpit_core.engine.place import Place
from tests import slow_truth
from tests.own_optimizers import (
    Lars,
    Longer,
    Lookahead,
    LookaheadOptimizer,
    Sam,
    SamAlone,
    SamByData,
    SamInOneCall,
    ScheduleFree,
)
from tests.training import ECONOMY, Training, assert_close, by_step, start, with_config

Iteration = Callable[[Training, Any, Tensor, Tensor, cockpit_core.Run], None]


def in_two_calls(training: Training, optimizer: Any, inputs: Tensor, targets: Tensor, run: cockpit_core.Run) -> None:
    training.loss_fn(training.model(inputs), targets).backward()
    optimizer.first_step()
    training.loss_fn(training.model(inputs), targets).backward()
    optimizer.second_step()


def with_accumulation(
    training: Training, optimizer: Any, inputs: Tensor, targets: Tensor, run: cockpit_core.Run
) -> None:
    """Two micro-batches at each of the two places."""
    parts = [(inputs[:4], targets[:4], 4 / 7), (inputs[4:], targets[4:], 3 / 7)]
    for then in (optimizer.first_step, optimizer.second_step):
        for x, y, share in parts:
            (training.loss_fn(training.model(x), y) * share).backward()
        then()


def with_closure(training: Training, optimizer: Any, inputs: Tensor, targets: Tensor, run: cockpit_core.Run) -> None:
    training.loss_fn(training.model(inputs), targets).backward()
    optimizer.step(lambda: training.loss_fn(training.model(inputs), targets).backward())


def in_one_call(training: Training, optimizer: Any, inputs: Tensor, targets: Tensor, run: cockpit_core.Run) -> None:
    optimizer.evaluate = lambda: training.loss_fn(training.model(inputs), targets)
    optimizer.step()


def in_a_block(training: Training, optimizer: Any, inputs: Tensor, targets: Tensor, run: cockpit_core.Run) -> None:
    training.loss_fn(training.model(inputs), targets).backward()
    with run.stepping():
        optimizer.first_step()
        training.loss_fn(training.model(inputs), targets).backward()
        optimizer.second_step()


def plainly(training: Training, optimizer: Any, inputs: Tensor, targets: Tensor, run: cockpit_core.Run) -> None:
    optimizer.zero_grad()
    training.loss_fn(training.model(inputs), targets).backward()
    optimizer.step()


def plainly_in_a_block(
    training: Training, optimizer: Any, inputs: Tensor, targets: Tensor, run: cockpit_core.Run
) -> None:
    optimizer.zero_grad()
    training.loss_fn(training.model(inputs), targets).backward()
    with run.stepping():
        optimizer.step()


def with_evaluation(training: Training, optimizer: Any, inputs: Tensor, targets: Tensor, run: cockpit_core.Run) -> None:
    plainly(training, optimizer, inputs, targets, run)
    optimizer.eval()
    with torch.no_grad():
        training.loss_fn(training.model(inputs), targets)
    optimizer.train()


def calling_again(training: Training, optimizer: Any, inputs: Tensor, targets: Tensor, run: cockpit_core.Run) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = training.loss_fn(training.model(inputs), targets)
        loss.backward()
        return loss

    optimizer.step(closure)


def backward_alone(training: Training, optimizer: Any, inputs: Tensor, targets: Tensor, run: cockpit_core.Run) -> None:
    training.loss_fn(training.model(inputs), targets).backward()


def repeat(steps: int, iterate: Iteration, training: Training, optimizer: Any, run: cockpit_core.Run) -> None:
    for inputs, targets in training.batches(steps):
        iterate(training, optimizer, inputs, targets, run)


def replace_step(optimizer: Any) -> Any:
    """As a scheduler or a profiler does it: on the object, with the original inside."""
    original = optimizer.step
    optimizer.step = lambda *args: original(*args)
    return optimizer


CASES: dict[str, tuple[Callable[[Any], Any], Iteration]] = {
    "sam": (lambda p: Sam(p, lr=0.1), in_two_calls),
    "sam through data": (lambda p: SamByData(p, lr=0.1), in_two_calls),
    "sam with momentum": (lambda p: Sam(p, lr=0.1, momentum=0.9), in_two_calls),
    "sam with accumulation": (lambda p: Sam(p, lr=0.1), with_accumulation),
    "sam with a closure": (lambda p: Sam(p, lr=0.1), with_closure),
    "sam in one call": (lambda p: SamInOneCall(p, lr=0.1), in_one_call),
    "sam without any step": (lambda p: SamAlone(p, lr=0.1), in_a_block),
    "sam in a block": (lambda p: Sam(p, lr=0.1), in_a_block),
    "step of the base class": (lambda p: Longer(p, lr=0.1), plainly),
    "step that was replaced": (lambda p: replace_step(SGD(p, lr=0.1)), plainly),
    "lookahead as an optimizer": (lambda p: LookaheadOptimizer(SGD(p, lr=0.1)), plainly),
    "lookahead in a block": (lambda p: Lookahead(SGD(p, lr=0.1)), plainly_in_a_block),
    "lars": (lambda p: Lars(SGD(p, lr=0.1)), plainly),
    "schedule-free": (lambda p: ScheduleFree(p, lr=0.1), with_evaluation),
    "lbfgs": (lambda p: LBFGS(p, lr=0.1, max_iter=4), calling_again),
}


def train(case: str, logdir: Path, steps: int = 5, **options: Any) -> tuple[cockpit_core.RunData, slow_truth.RunTruth]:
    make, iterate = CASES[case]
    training, moments = start("mlp"), []
    optimizer = make(list(training.model.parameters()))
    run = cockpit_core.track(
        training.model, training.loss_fn, optimizer, logdir, on_error="raise", **with_config(options)
    )
    for inputs, targets in training.batches(steps):
        moments.append(slow_truth.freeze(training.model, training.loss_fn, inputs, targets, [0.1]))
        iterate(training, optimizer, inputs, targets, run)
        moments[-1].after.update({n: p.detach().clone() for n, p in training.model.named_parameters()})
    run.close()
    return run.data, slow_truth.truth_of_moments(moments, None)


@pytest.mark.parametrize("case", CASES)
def test_gradient_is_where_the_step_begins_and_the_step_is_the_whole_move(case: str, tmp_path: Path) -> None:
    data, truth = train(case, tmp_path / "run")
    for name in ECONOMY:
        assert_close(by_step(data, name), truth.scalars[name], name)
        for layer in truth.names if name in slow_truth.LAYERWISE else ():
            assert_close(by_step(data, name, layer), truth.layers[name][layer], name)
    assert data.alphas or case in ("lookahead as an optimizer", "lookahead in a block")
    for fit in data.alphas:
        expected = truth.alphas[fit.step]
        assert {key: asdict(fit)[key] for key in expected} == pytest.approx(expected, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("case", ["sam", "step of the base class", "lookahead as an optimizer", "sam in a block"])
def test_steps_that_nobody_scheduled_count_once_too(case: str, tmp_path: Path) -> None:
    data, truth = train(case, tmp_path / "run", 9, schedule=4)
    for name in ("Loss", "UpdateSize"):
        assert_close(by_step(data, name), {step: truth.scalars[name][step] for step in (0, 4, 8)}, name)


def test_step_that_raises_leaves_the_next_ones_alone(tmp_path: Path) -> None:
    """Inside and outside are told apart by the stack: a counter would stay where the exception left it."""

    class Moody(Longer):
        angry = False

        def step(self, closure: Any = None) -> Any:
            if self.angry:
                raise ArithmeticError("not today")
            return super().step(closure)

    training = start("mlp")
    optimizer = training.optimizer = Moody(training.model.parameters(), lr=0.1)
    batches = list(training.batches(5))
    with training.track(tmp_path / "run") as run:
        training.run(batches[:2])
        optimizer.angry = True
        with pytest.raises(ArithmeticError):
            training.run(batches[2:3])
        optimizer.angry = False
        training.run(batches[3:])
    assert list(by_step(run.data, "Loss")) == [0, 1, 2, 3]


def test_optimizer_given_with_the_one_inside_it_is_one(tmp_path: Path) -> None:
    training = start("mlp")
    optimizer = Sam(list(training.model.parameters()), lr=0.1)
    both = [optimizer, optimizer.base_optimizer]
    with cockpit_core.track(
        training.model, training.loss_fn, both, tmp_path / "run", on_error="raise", config="economy"
    ) as run:
        for inputs, targets in training.batches(3):
            in_two_calls(training, optimizer, inputs, targets, run)
    assert list(by_step(run.data, "UpdateSize")) == [0, 1, 2]


# ---- what cannot be tracked is said ----------------------------------------------------------------------------------


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


def test_step_that_is_replaced_altogether_is_said(tmp_path: Path) -> None:
    training = start("mlp")

    @torch.no_grad()
    def descend() -> None:
        for p in training.model.parameters():
            p.sub_(0.1 * p.grad)

    training.optimizer.step = descend
    with training.track(tmp_path / "run"), pytest.warns(UserWarning, match=r"step\(\) of SGD.* is not called"):
        training.run(training.batches(20))


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


def test_optimizers_that_step_inside_the_backward_pass_are_said(tmp_path: Path) -> None:
    training = start("mlp")
    optimizers = {p: SGD([p], lr=0.1) for p in training.model.parameters()}

    def step(p: Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    with cockpit_core.track(
        training.model, training.loss_fn, list(optimizers.values()), tmp_path / "run", config="economy"
    ) as run:
        for p in optimizers:
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


# ---- where the parameters are ----------------------------------------------------------------------------------------


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


def test_place_with_numbers_that_are_none() -> None:
    p = torch.tensor([1.0, float("nan"), float("inf")])
    place = Place([p])
    assert not place.has_moved()
    p[0] = float("nan")
    assert place.has_moved()
    assert Place([]).has_moved() is False
