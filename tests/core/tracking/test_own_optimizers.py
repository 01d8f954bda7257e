"""Optimizers that people write themselves: a step is the move of the parameters from where its gradient was taken to where
the next one is. Each is tracked right, or it is said that it is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import LBFGS, SGD

import cockpit_core
from tests import slow_truth
from tests.core.tracking.own_optimizer_cases import Iteration, in_two_calls, plainly
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
