"""A loss that is a function, comes out of the model, or has more parts than the loss module: every number against plain
autograd, one sample at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import cockpit_core
from tests.loops import LOOPS
from tests.objectives import truth_of_objective
from tests.training import assert_alphas_close, by_step, with_config


def adam(parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


@pytest.mark.parametrize("config", ["economy", "business", "full"])
@pytest.mark.parametrize("name", LOOPS)
def test_loop_is_exact_and_unchanged(name: str, config: str, tmp_path: Path) -> None:
    loop = LOOPS[name]
    truth = truth_of_objective(loop.make(), loop.objective, adam, loop.batches(3))
    model = loop.make()
    optimizer = adam(model.parameters())
    with cockpit_core.track(
        model, optimizer=optimizer, logdir=tmp_path / "run", config=config, on_error="raise"
    ) as run:
        for batch in loop.batches(3):
            optimizer.zero_grad()
            loop.scalar(model, batch).backward()
            optimizer.step()
    for key, expected in truth["scalars"].items():
        if key in {quantity.name for quantity in run.data.header.quantities}:
            tolerance = 1e-3 if key == "HessMaxEV" else 1e-6
            assert by_step(run.data, key) == pytest.approx(expected, rel=tolerance, abs=1e-9), key
    assert_alphas_close(run.data, truth["alphas"])
    for key, p in model.named_parameters():
        assert torch.equal(p, truth["parameters"][key])


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


def test_penalty_leaves_gauss_newton_without_a_value_and_says_why(tmp_path: Path) -> None:
    loop = LOOPS["penalty"]
    model = loop.make()
    optimizer = adam(model.parameters())
    with cockpit_core.track(model, optimizer=optimizer, logdir=tmp_path / "run", config="full", curvature="ggn") as run:
        loop.scalar(model, loop.batches(1)[0]).backward()
        optimizer.step()
    assert "outputs alone" in {missing.name: missing.reason for missing in run.data.missing}["HessTrace"]


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
