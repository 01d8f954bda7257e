"""A loss that is a function, comes out of the model, or has more parts than the loss module: every number against plain
autograd, one sample at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import cockpit_core
from tests.loops import LOOPS
from tests.more_loops import MORE
from tests.objectives import truth_of_objective
from tests.training import assert_alphas_close, by_step, with_config


def adam(parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


OWN = ("AlphaOwnBatch", "BatchSharpness", "DirectionalSharpness")


def everything(*, full: bool) -> list[Any]:
    """The samples of the step once more; with all of the configuration "full" beside it."""
    own = [getattr(cockpit_core.quantities, name)() for name in OWN]
    return [*(cockpit_core.quantities.configuration("full") if full else ()), *own]


@pytest.mark.parametrize("config", ["economy", "business", "full", "own batch"])
@pytest.mark.parametrize("name", LOOPS)
def test_loop_is_exact_and_unchanged(name: str, config: str, tmp_path: Path) -> None:
    loop = LOOPS[name]
    truth = truth_of_objective(loop.make(), loop.objective, adam, loop.batches(3))
    model = loop.make()
    optimizer = adam(model.parameters())
    chosen = everything(full=False) if config == "own batch" else config
    with cockpit_core.track(
        model, optimizer=optimizer, logdir=tmp_path / "run", config=chosen, on_error="raise"
    ) as run:
        for batch in loop.batches(3):
            optimizer.zero_grad()
            loop.scalar(model, batch).backward()
            optimizer.step()
    for key, expected in (truth["scalars"] | truth["own"]).items():
        if key in {quantity.name for quantity in run.data.header.quantities}:
            tolerance = 1e-3 if key == "HessMaxEV" else 1e-6
            assert by_step(run.data, key) == pytest.approx(expected, rel=tolerance, abs=1e-9), key
    if config != "own batch":
        assert_alphas_close(run.data, truth["alphas"])
    for key, p in model.named_parameters():
        assert torch.equal(p, truth["parameters"][key])


@pytest.mark.filterwarnings("ignore:Cockpit. individual gradients of log_scale")
@pytest.mark.parametrize("name", MORE)
def test_another_loop_is_exact_or_says_why_not(name: str, tmp_path: Path) -> None:
    """All of "full", and the samples once more: a value that is the truth, or the reason."""
    loop, steps = MORE[name], 2
    truth = truth_of_objective(loop.make(), loop.objective, adam, loop.batches(steps))
    models = []
    for tracked in (True, False):
        model = loop.make()
        optimizer = adam(model.parameters())
        options = {"logdir": tmp_path / "run", "config": everything(full=True), "on_error": "raise"}
        run = cockpit_core.track(model, optimizer=optimizer, **with_config(options)) if tracked else None
        for batch in loop.batches(steps):
            optimizer.zero_grad()
            loop.drive(loop, model, batch)
            optimizer.step()
        models.append(model)
        if run is not None:
            run.close()
            data = run.data
    assert all(torch.equal(p, r) for p, r in zip(*(m.parameters() for m in models), strict=True))
    for key, expected in (truth["scalars"] | truth["own"]).items():
        if key in {quantity.name for quantity in data.header.quantities} and key not in loop.missing:
            tolerance = 1e-3 if key == "HessMaxEV" else 1e-6
            assert by_step(data, key) == pytest.approx(expected, rel=tolerance, abs=1e-9), key
    if "Alpha" not in loop.missing:
        assert_alphas_close(data, truth["alphas"])
    for key, part in loop.missing.items():
        assert any(part in missing.reason for missing in data.missing if missing.name == key), key
        assert key not in data.names or not len(data.scalars(key)[0])


def outputs_of(loop, model, batch) -> list[torch.Tensor]:
    found = model(batch[0])
    return [found] if isinstance(found, torch.Tensor) else [out for out in found if out is not None]


def gauss_newton(loop, model, batch, loss_of) -> torch.Tensor:
    """``J^T (d^2 L / df^2) J`` with f all outputs of the model in one vector, row by row."""
    parameters = list(model.parameters())
    with sdpa_kernel(SDPBackend.MATH):
        outs = outputs_of(loop, model, batch)
    f = torch.cat([out.reshape(-1) for out in outs])
    rows = [torch.autograd.grad(f_i, parameters, retain_graph=True, materialize_grads=True) for f_i in f]
    J = torch.stack([torch.cat([g.reshape(-1) for g in row]) for row in rows])
    sizes, shapes = [out.numel() for out in outs], [out.shape for out in outs]

    def loss(flat: torch.Tensor) -> torch.Tensor:
        return loss_of([p.reshape(s) for p, s in zip(flat.split(sizes), shapes, strict=True)], batch)

    return J.T @ torch.autograd.functional.hessian(loss, f.detach()) @ J


OF_OUTPUTS = {
    "function": lambda f, b: F.cross_entropy(f[0], b[1]),
    "two heads": lambda f, b: F.cross_entropy(f[0], b[1]) + 0.5 * F.mse_loss(f[1], b[2]),
    "loss of the model": lambda f, b: F.cross_entropy(f[0].view(-1, 4), b[1].view(-1), ignore_index=-1),
    "flattened tokens": lambda f, b: F.cross_entropy(f[0].view(-1, 4), b[1].view(-1), ignore_index=-1),
}


@pytest.mark.parametrize("kind", ["ggn", "ggn_mc"])
@pytest.mark.parametrize("name", OF_OUTPUTS)
def test_gauss_newton_of_several_or_reshaped_outputs(name: str, kind: str, tmp_path: Path) -> None:
    loop = LOOPS[name]
    if name == "two heads":  # one call of the model, whose outputs both count
        scalar = lambda m, b: OF_OUTPUTS[name](list(m(b[0])), b)  # noqa: E731
    else:
        scalar = loop.scalar
    (batch,) = loop.batches(1)
    G = gauss_newton(loop, loop.make(), batch, OF_OUTPUTS[name]).detach()
    model = loop.make()
    optimizer = adam(model.parameters())
    options = {"config": "full", "curvature": kind, "on_error": "raise", "logdir": tmp_path / "run"}
    with cockpit_core.track(model, optimizer=optimizer, **with_config(options)) as run:
        optimizer.zero_grad()
        scalar(model, batch).backward()
        optimizer.step()
    trace, error = by_step(run.data, "HessTrace")[0], 1e-6 * float(G.trace())
    if kind == "ggn_mc":  # an estimate, within five of its standard errors
        error = 5 * float(run.data.estimates["HessTrace"][1][0])
        assert 0 < error < 10 * float(G.trace())
    assert trace == pytest.approx(float(G.trace()), abs=error)
    assert by_step(run.data, "HessMaxEV")[0] == pytest.approx(float(torch.linalg.eigvalsh(G)[-1]), rel=1e-3)


class Weighed(nn.Module):
    """Two heads whose losses have learned weights, as parameters of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.classes, self.numbers = nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.logs = nn.Parameter(torch.tensor([0.3, -0.2]))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.tanh(self.body(x))
        return self.classes(hidden), self.numbers(hidden)


def plain_penalty(m: nn.Module) -> torch.Tensor:
    return 0.3 * sum((p.square().sum() for p in m.parameters()), start=torch.zeros(()))


def coupling_penalty(m: nn.Module) -> torch.Tensor:
    return 0.1 * m[0].weight.norm() + 0.2 * (m[2].weight @ m[2].weight.T - torch.eye(3).double()).square().sum()  # type: ignore[index,operator,union-attr]


def weighed(outputs: tuple[torch.Tensor, ...], logs: torch.Tensor, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    both = torch.stack([F.cross_entropy(outputs[0], batch[1]), F.mse_loss(outputs[1], batch[2])])
    return (torch.exp(-logs) * both + logs).sum()


def gauss_newton_beside(model: nn.Module, batch: tuple[torch.Tensor, ...], loss_of: Any) -> torch.Tensor:
    """The slow truth: parameters are outputs too; ``loss_of(outputs, parameters)``."""
    names = [n for n, _ in model.named_parameters()]
    shapes = [p.shape for p in model.parameters()]
    sizes = [p.numel() for p in model.parameters()]

    def named(flat: torch.Tensor) -> dict[str, torch.Tensor]:
        return {n: p.reshape(s) for n, p, s in zip(names, flat.split(sizes), shapes, strict=True)}

    def outputs(flat: torch.Tensor) -> torch.Tensor:
        found = torch.func.functional_call(model, named(flat), (batch[0],))
        found = found if isinstance(found, tuple) else (found,)
        return torch.cat([y.flatten() for y in found])

    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    y = outputs(flat)
    J = torch.autograd.functional.jacobian(lambda t: torch.cat([outputs(t), t]), flat)

    def loss(both: torch.Tensor) -> torch.Tensor:
        return loss_of(both[: len(y)], named(both[len(y) :]))

    return J.T @ torch.autograd.functional.hessian(loss, torch.cat([y, flat])) @ J


def beside_cases(name: str) -> tuple[nn.Module, Any, Any]:
    torch.manual_seed(0)
    if name == "learned weights":
        split = lambda y: (y[:18].reshape(6, 3), y[18:].reshape(6, 2))  # noqa: E731
        model: nn.Module = Weighed()
        return (
            model.double(),
            lambda m, b: weighed(m(b[0]), m.logs, b),
            lambda b: lambda y, t: weighed(split(y), t["logs"], b),
        )
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    penalty = plain_penalty if name == "plain penalty" else coupling_penalty

    def of_parameters(t: dict[str, torch.Tensor]) -> torch.Tensor:
        if name == "plain penalty":
            return 0.3 * torch.stack([p.square().sum() for p in t.values()]).sum()
        last = t["2.weight"]
        return 0.1 * t["0.weight"].norm() + 0.2 * (last @ last.T - torch.eye(3).double()).square().sum()

    return (
        model,
        lambda m, b: F.cross_entropy(m(b[0]), b[1]) + penalty(m),
        lambda b: lambda y, t: F.cross_entropy(y.reshape(6, 3), b[1]) + of_parameters(t),
    )


@pytest.mark.parametrize("kind", ["ggn", "ggn_mc"])
@pytest.mark.parametrize("name", ["plain penalty", "coupling penalty", "learned weights"])
def test_gauss_newton_counts_parameters_that_the_loss_uses_as_outputs(name: str, kind: str, tmp_path: Path) -> None:
    model, scalar, of_both = beside_cases(name)
    batch = (torch.randn(6, 4).double(), torch.arange(6) % 3, torch.randn(6, 2).double())
    G = gauss_newton_beside(model, batch, of_both(batch)).detach()
    optimizer = adam(model.parameters())
    options = {"config": "full", "curvature": kind, "on_error": "raise", "logdir": tmp_path / "run"}
    with cockpit_core.track(model, optimizer=optimizer, **with_config(options)) as run:
        scalar(model, batch).backward()
        optimizer.step()
    trace, error = by_step(run.data, "HessTrace")[0], 1e-6 * abs(float(G.trace()))
    if kind == "ggn_mc":
        error = 5 * float(run.data.estimates["HessTrace"][1][0])
    assert trace == pytest.approx(float(G.trace()), abs=error)
    assert by_step(run.data, "HessMaxEV")[0] == pytest.approx(float(torch.linalg.eigvalsh(G)[-1]), rel=1e-3)


def test_weights_of_the_network_in_the_loss_of_a_sample_are_a_reason(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    optimizer = adam(model.parameters())
    with cockpit_core.track(model, optimizer=optimizer, logdir=tmp_path / "run", config="full", curvature="ggn") as run:
        (F.cross_entropy(model(x), y, reduction="none") * model[0].weight.norm()).mean().backward()
        optimizer.step()
    assert (
        "multiplies weights of the network"
        in {missing.name: missing.reason for missing in run.data.missing}["HessTrace"]
    )


@pytest.mark.parametrize("name", ["function", "flattened tokens", "two heads"])
def test_curvature_on_parts_of_the_batch_adds_up(name: str, tmp_path: Path) -> None:
    """Beyond the memory budget the forward pass is repeated for some samples at a time."""
    loop = LOOPS[name]
    batch = loop.batches(1)[0]
    values = []
    for budget in (2**28, 2**10):
        model = loop.make()
        optimizer = adam(model.parameters())
        config = [cockpit_core.quantities.HessMaxEV()]
        options = {"config": config, "memory_budget": budget, "on_error": "raise", "logdir": tmp_path / str(budget)}
        with cockpit_core.track(model, optimizer=optimizer, **with_config(options)) as run:
            OF_OUTPUTS[name](outputs_of(loop, model, batch), batch).backward()
            optimizer.step()
        values.append(by_step(run.data, "HessMaxEV")[0])
    assert "parts of the batch" in " ".join(run.data.header.notes)
    assert values[1] == pytest.approx(values[0], rel=1e-5)
