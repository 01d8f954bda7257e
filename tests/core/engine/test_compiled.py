"""Compiled models: tracked steps run eagerly, untracked ones keep their compiled code."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import cockpit_core
from tests.training import Training, assert_true, by_step, start, truth_of, with_config

BACKEND = "aot_eager"  # traces and cuts the graph like the real compiler, without its minute of compiling


def compile_outside(training: Training) -> nn.Module:
    training.model = torch.compile(training.model, backend=BACKEND)
    return training.model


def compile_beside(training: Training) -> nn.Module:
    """The loop calls the compiled wrapper, but ``track`` is given the model itself."""
    inner = training.model
    training.model = torch.compile(inner, backend=BACKEND)
    return inner


def compile_in_place(training: Training) -> nn.Module:
    training.model.compile(backend=BACKEND)
    return training.model


def compile_a_part(training: Training) -> nn.Module:
    training.model[0].compile(backend=BACKEND)
    return training.model


# Under "warnings are errors" the tracer stumbles over a warning of its own.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
WAYS = [compile_outside, compile_beside, compile_in_place, compile_a_part]


@pytest.fixture(autouse=True)
def forget_compiled_code():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("compile_model", WAYS)
def test_numbers_of_a_compiled_model_are_the_truth(compile_model: Callable, tmp_path: Path) -> None:
    training = start("mlp", "momentum")
    tracked = compile_model(training)
    run = cockpit_core.track(
        tracked, training.loss_fn, training.optimizer, tmp_path / "run", on_error="raise", config="economy"
    )
    with run:
        training.run(training.batches(3))
    assert run.data.layers == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert run.data.header.covered == 1.0
    assert_true(run.data, truth_of(start("mlp", "momentum"), training.batches(3)))


@pytest.mark.parametrize("compile_model", WAYS)
def test_untracked_steps_run_compiled_code(compile_model: Callable, tmp_path: Path) -> None:
    """Steps 0 and 4 are tracked, 1 and 5 end their Alpha; the others must not call Python code of the model."""
    training = start("mlp")
    eager: list[int] = []
    step = 0

    class Counting(nn.ReLU):
        def forward(self, x):
            if not torch.compiler.is_compiling():
                eager.append(step)
            return super().forward(x)

    inner = copy.copy(training.model)
    inner[1] = Counting()
    if compile_model is compile_a_part:
        inner[1].compile(backend=BACKEND)
    training.model = inner
    tracked = compile_model(training)
    with cockpit_core.track(tracked, training.loss_fn, training.optimizer, tmp_path / "run", schedule=4) as run:
        for step, (inputs, targets) in enumerate(training.batches(7)):  # noqa: B007
            training.optimizer.zero_grad()
            training.loss_fn(training.model(inputs), targets).backward()
            training.optimizer.step()
    assert sorted(set(eager)) == [0, 1, 4, 5]
    assert list(by_step(run.data, "NormTest")) == [0, 4]


def test_training_is_that_of_the_mixed_run(tmp_path: Path) -> None:
    """Bit for bit: the same loop without tracking, in which steps 0, 1, 3 and 4 run eagerly."""
    mixed, training = start("cnn", "adam"), start("cnn", "adam")
    compiled = torch.compile(mixed.model, backend=BACKEND)
    for step, batch in enumerate(mixed.batches(6)):
        mixed_model = mixed.model if step in (0, 1, 3, 4) else compiled
        Training(mixed_model, mixed.loss_fn, mixed.optimizer, mixed.batches).run([batch])
    tracked = compile_outside(training)
    options = {"config": "full", "schedule": 3, "on_error": "raise"}
    with cockpit_core.track(tracked, training.loss_fn, training.optimizer, tmp_path / "run", **with_config(options)):
        training.run(training.batches(6))
    for one, other in zip(mixed.model.parameters(), training.model.parameters(), strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one.grad, other.grad)


def test_closed_run_leaves_the_compiled_model_as_it_was(tmp_path: Path) -> None:
    training = start("mlp")
    model = compile_outside(training)
    forward = model.forward
    training.track(tmp_path / "run").close()
    assert model.forward is forward
    training.model._orig_mod.compile(backend=BACKEND)
    call = training.model._orig_mod._compiled_call_impl
    training.track(tmp_path / "again").close()
    assert training.model._orig_mod._compiled_call_impl is call
