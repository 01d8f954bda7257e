"""PreconditionedSharpness: the largest eigenvalue as Adam sees it, and the limit where its steps begin to grow."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import cockpit_core
from cockpit_core import quantities as q
from tests import slow_truth
from tests import slow_truth_instruments as instruments
from tests.networks import NETWORKS
from tests.problems import PROBLEMS
from tests.training import by_step, loop, train_tracked, with_config

STEPS = 2
EVERY = {**NETWORKS, **PROBLEMS}


def make_adam(model: nn.Module, decay: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-3, weight_decay=decay)


@pytest.mark.parametrize(("problem", "decay"), [("mlp", 0.1), ("cnn", 0.0), ("lstm", 0.0), ("encoder_layer", 0.0)])
def test_largest_eigenvalue_is_the_truth_also_over_micro_batches(problem: str, decay: float, tmp_path: Path) -> None:
    found = []
    for parts in (1, 2):
        model, loss_fn, batches = EVERY[problem].make()
        optimizer, logdir = make_adam(model, decay), tmp_path / f"{parts}"
        options = {"config": [q.PreconditionedSharpness()], "on_error": "raise"}
        with cockpit_core.track(model, loss_fn, optimizer, logdir, **with_config(options)) as run:
            for x, y in batches(STEPS):
                optimizer.zero_grad()
                for own, target in zip(x.tensor_split(parts), y.tensor_split(parts), strict=True):
                    (loss_fn(model(own), target) * len(own) / len(x)).backward()
                optimizer.step()
        assert not run.data.missing
        found.append(by_step(run.data, "PreconditionedSharpness"))
    model, loss_fn, batches = EVERY[problem].make()
    moments = slow_truth.watch_loop(model, loss_fn, make_adam(model, decay), batches(STEPS))
    theta = [slow_truth.flatten(m.parameters().values()).detach().numpy() for m in moments]
    g = [instruments.loss_and_gradient(m, m.parameters())[1] + decay * theta[t] for t, m in enumerate(moments)]
    roots = instruments.adam_denominators(g)
    truth = {t: instruments.preconditioned_sharpness(m, roots[t] + 1e-3, decay) for t, m in enumerate(moments)}
    assert found[0] == pytest.approx(truth, rel=1e-3)
    assert found[1] == pytest.approx(truth, rel=1e-3)


class Bowl(nn.Module):
    """``sum_j h_j theta_j^2 / 2``, the same for every sample."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.full((3,), 1e-100, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (torch.tensor([1.0, 0.1, 0.01], dtype=torch.float64) * self.theta**2 / 2).sum() + 0 * x


class Mean(nn.Module):
    reduction = "mean"

    def forward(self, output: Tensor) -> Tensor:
        return output.mean() if self.reduction == "mean" else output


OPTIMIZERS = {
    "adam": lambda p, rate: torch.optim.Adam(p, lr=rate, betas=(0.9, 0.999), eps=1.0),
    "adamw": lambda p, rate: torch.optim.AdamW(p, lr=rate, betas=(0.8, 0.999), eps=1.0, weight_decay=0.02),
    "rmsprop": lambda p, rate: torch.optim.RMSprop(p, lr=rate, momentum=0.5, eps=1.0),
    "adagrad": lambda p, rate: torch.optim.Adagrad(p, lr=rate, eps=1.0),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_limit_is_where_steps_begin_to_grow(name: str, tmp_path: Path) -> None:
    """With an eps of 1 the denominators stay at 1: an iteration with constant coefficients, which runs away just above."""
    for factor, grows in ((0.9, False), (1.1, True)):
        model, loss_fn = Bowl(), Mean()
        probe = OPTIMIZERS[name](list(model.parameters()), 1.0)
        beta = probe.param_groups[0].get("betas", (0.0,))[0]
        momentum = probe.param_groups[0].get("momentum", 0.0)
        decay = probe.param_groups[0].get("weight_decay", 0.0)
        rate = 2 * (1 + beta) * (1 + momentum) / (1 - beta + decay * (1 + beta))  # solves rate = limit for h = 1
        optimizer = OPTIMIZERS[name](list(model.parameters()), factor * rate)
        options = {"config": [q.PreconditionedSharpness(schedule=lambda step: step == 100)], "on_error": "raise"}
        sizes = []
        with cockpit_core.track(model, loss_fn, optimizer, tmp_path / f"{name}{factor}", **with_config(options)) as run:
            for _ in range(120):
                optimizer.zero_grad()
                loss_fn(model(torch.zeros(2, dtype=torch.float64))).backward()
                optimizer.step()
                sizes.append(abs(model.theta[0].item()))
        steps, values = run.data.scalars("PreconditionedSharpness/ratio")  # and where the loss grew out of line
        ratio = dict(zip(steps.tolist(), values.tolist(), strict=True))[100]
        assert ratio == pytest.approx(factor if decay == 0 else ratio)
        assert (ratio > 1) == grows
        assert (max(sizes[110:]) > max(sizes[50:60])) == grows


def test_sgd_has_none_and_training_is_neutral(tmp_path: Path) -> None:
    data = train_tracked(PROBLEMS["mlp"], "sgd", 1, tmp_path / "a", config=[q.PreconditionedSharpness()])
    assert "SGD has no second moments" in data.missing[0].reason
    ends = []
    for tracked in (False, True):
        model, loss_fn, batches = PROBLEMS["dropout"].make()
        optimizer = make_adam(model, 0.1)
        torch.manual_seed(1)
        config = [q.PreconditionedSharpness()]
        run = tracked and cockpit_core.track(model, loss_fn, optimizer, tmp_path / "b", config=config)
        loop(model, loss_fn, optimizer, batches(3))
        state = [value for entry in optimizer.state.values() for value in entry.values()]
        ends.append(
            [*model.state_dict().values(), *(p.grad for p in model.parameters()), *state, torch.get_rng_state()]
        )
        if run:
            run.close()
            assert len(by_step(run.data, "PreconditionedSharpness")) == 3
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
