"""What stands around ``torch.autograd.backward`` while a run is alive: seen by nobody, gone with the last run."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cockpit_core
import cockpit_core.tracking.alive
from tests import slow_truth
from tests.bytecodes import assert_next_to_nothing
from tests.objectives import Objective, observe, truth_of_objective
from tests.training import assert_alphas_close, assert_true, by_step, start, truth_of, with_config

OWN = torch.autograd.backward


@pytest.fixture(autouse=True)
def nobody_else() -> None:
    """Runs that other tests of this process left open listen too."""
    for run in list(cockpit_core.tracking.alive.ALIVE):
        run.close()
    gc.collect()
    assert torch.autograd.backward is OWN


def track(model: nn.Module, optimizer: torch.optim.Optimizer, logdir: Path, **options) -> cockpit_core.Run:
    return cockpit_core.track(model, optimizer=optimizer, logdir=logdir, on_error="raise", **with_config(options))


def make(seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(4, 6, generator=generator, dtype=torch.float64), torch.tensor([0, 2, 1, 1])


def test_close_puts_back_what_was_there(tmp_path: Path) -> None:
    first, second = (track(*make(k), tmp_path / str(k)) for k in range(2))
    assert torch.autograd.backward is not OWN
    first.close()
    assert torch.autograd.backward is not OWN
    second.close()
    assert torch.autograd.backward is OWN


def test_run_that_nobody_closes_leaves_nothing_behind(tmp_path: Path) -> None:
    model, optimizer = make()
    track(model, optimizer, tmp_path / "run")
    F.cross_entropy(model(batch()[0]), batch()[1]).backward()
    optimizer.step()
    del model, optimizer
    gc.collect()
    assert torch.autograd.backward is OWN


def test_what_somebody_puts_around_ours_stays(tmp_path: Path) -> None:
    model, optimizer = make()
    run, calls = track(model, optimizer, tmp_path / "run"), []
    inner = torch.autograd.backward

    def around(*args, **kwargs):
        calls.append(1)
        return inner(*args, **kwargs)

    torch.autograd.backward = around
    try:
        run.close()
        F.cross_entropy(model(batch()[0]), batch()[1]).backward()
        assert torch.autograd.backward is around and calls == [1] and model[0].weight.grad is not None
    finally:
        torch.autograd.backward = OWN
        cockpit_core.engine.loss.roots.WATCH.__init__()


def test_two_runs_do_not_hear_each_other(tmp_path: Path) -> None:
    x, y = batch()
    (one, its), (other, theirs) = make(), make(1)
    with track(one, its, tmp_path / "one") as first, track(other, theirs, tmp_path / "other", schedule=2) as second:
        for _ in range(4):
            its.zero_grad()
            theirs.zero_grad()
            F.cross_entropy(one(x), y).backward()
            F.cross_entropy(other(x), y).backward()
            its.step()
            theirs.step()
    for run, twin, steps in ((first, make(), [0, 1, 2, 3]), (second, make(1), [0, 2])):
        losses = []
        for _ in range(4):
            twin[1].zero_grad()
            loss = F.cross_entropy(twin[0](x), y)
            loss.backward()
            twin[1].step()
            losses.append(loss.item())
        assert by_step(run.data, "Loss") == pytest.approx({step: losses[step] for step in steps})


def test_two_runs_in_one_graph_both_measure_it(tmp_path: Path) -> None:
    x, y = batch()
    (one, its), (other, theirs) = make(), make(1)
    with track(one, its, tmp_path / "one", config="full") as first, track(other, theirs, tmp_path / "other") as second:
        for _ in range(3):
            its.zero_grad()
            theirs.zero_grad()
            (F.cross_entropy(one(x), y) + F.cross_entropy(other(x), y)).backward()
            its.step()
            theirs.step()
    assert len(first.data.alphas) == len(second.data.alphas) == 2
    assert by_step(first.data, "Loss") == pytest.approx(by_step(second.data, "Loss"))


def test_backward_that_raises_is_the_users_own_affair(tmp_path: Path) -> None:
    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            raise ValueError("the user's own")

    x, y = batch()
    model, optimizer = make()
    with track(model, optimizer, tmp_path / "run", config="full") as run:
        with pytest.raises(ValueError, match="the user's own"):
            F.cross_entropy(Breaks.apply(model(x)), y).backward()
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert len(by_step(run.data, "HessTrace")) == len(by_step(run.data, "Loss")) == 2
    expected = observe(make()[0], Objective(lambda m, b: F.cross_entropy(m(b[0]), b[1]), None), (x, y))[3]
    assert by_step(run.data, "HessTrace")[0] == pytest.approx(expected.trace())


def test_loss_of_a_module_and_more_is_measured_as_a_whole(tmp_path: Path) -> None:
    """The tracked loss module gives one part, a function the other, and a penalty: 14.1 is not 2.7."""
    x, y = batch()
    loss_fn, target = nn.CrossEntropyLoss(), torch.ones(4, 3, dtype=torch.float64)

    def scalar(model: nn.Module, _) -> Tensor:
        out = model(x)
        return loss_fn(out, y) + 0.5 * F.mse_loss(out, target) + 0.1 * sum(p.square().sum() for p in model.parameters())

    def samples(model: nn.Module, _) -> list[Tensor]:
        penalty = 0.1 * sum(p.square().sum() for p in model.parameters())
        outs = [model(x[n : n + 1]) for n in range(4)]
        parts = [F.cross_entropy(out, y[n : n + 1]) + 0.5 * (out - 1).square().mean() for n, out in enumerate(outs)]
        return [part + penalty for part in parts]

    truth = truth_of_objective(make()[0], Objective(scalar, samples), lambda p: torch.optim.SGD(p, lr=0.1), [None] * 3)
    model, optimizer = make()
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", config="full", on_error="raise") as run:
        for _ in range(3):
            optimizer.zero_grad()
            scalar(model, None).backward()
            optimizer.step()
    for name, expected in truth["scalars"].items():
        assert by_step(run.data, name) == pytest.approx(expected, rel=1e-3 if name == "HessMaxEV" else 1e-6), name
    assert_alphas_close(run.data, truth["alphas"])


def test_constant_that_is_added_to_the_loss_is_part_of_its_value(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run") as run:
        for inputs, targets in training.batches(2):
            training.optimizer.zero_grad()
            (training.loss_fn(training.model(inputs), targets) + 1.0).backward()
            training.optimizer.step()
    truth = truth_of(start("mlp"), training.batches(2))
    assert by_step(run.data, "Loss") == pytest.approx({k: v + 1 for k, v in truth.scalars["Loss"].items()})
    assert "constant" in {missing.name: missing.reason for missing in run.data.missing}["Alpha"]


def test_sum_over_an_accumulator_is_exact(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config="full") as run:
        for inputs, targets in training.batches(3):
            training.optimizer.zero_grad()
            total = 0
            for part, labels in zip(inputs.split(1), targets.split(1), strict=True):
                total = total + F.cross_entropy(training.model(part), labels) / len(inputs)
            total.backward()
            training.optimizer.step()
    truth = truth_of(start("mlp"), training.batches(3), slow_truth.hessian)
    for name in ("Loss", "GradNorm", "HessTrace"):
        assert by_step(run.data, name) == pytest.approx(truth.scalars[name], rel=1e-5)


def test_vector_and_several_roots_are_one_scalar(tmp_path: Path) -> None:
    for name in ("vector", "several"):
        training = start("mlp")
        with training.track(tmp_path / name, config="full") as run:
            for inputs, targets in training.batches(3):
                training.optimizer.zero_grad()
                losses = F.cross_entropy(training.model(inputs), targets, reduction="none")
                if name == "vector":
                    losses.backward(torch.full_like(losses, 1 / len(losses)))
                else:
                    torch.autograd.backward([losses[:3].sum() / len(losses), losses[3:].sum() / len(losses)])
                training.optimizer.step()
        assert_true(
            run.data, truth_of(start("mlp"), training.batches(3), slow_truth.hessian), ("Loss", "NormTest", "HessTrace")
        )


def test_idle_step_of_a_function_costs_next_to_nothing(tmp_path: Path) -> None:
    x, y = batch()

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    assert_next_to_nothing(
        lambda pair: step(*pair), make, lambda pair: track(*pair, tmp_path / "run", config="full", schedule=10**9)
    )
