"""Networks whose loss or shape is unusual: a variational autoencoder, a part under ``no_grad``; and every configuration."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cockpit_core
from tests import slow_truth
from tests.core.engine import test_broadcast
from tests.core.layers.test_modules import CASES, Case, SquaredSum, make
from tests.networks import NETWORKS, Teacher
from tests.problems import PROBLEMS
from tests.training import OPTIMIZERS, by_step, loop, with_config

CONFIGURATIONS = ("economy", "business", "full")


# ---- a variational autoencoder --------------------------------------------------------------------------------------


class Autoencoder(nn.Module):
    """Draws its code: the forward pass takes numbers from the random state, and the loss has two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 8), nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encode(x).chunk(2, -1)
        code = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        return self.decode(code), mean, log_variance


def losses_of(x: Tensor, output: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Reconstruction and divergence, one number per sample."""
    reconstruction, mean, log_variance = output
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1)
    return F.mse_loss(reconstruction, x, reduction="none").sum(1) + 0.3 * divergence


def make_autoencoder() -> tuple[nn.Module, torch.optim.Optimizer, list[Tensor]]:
    torch.manual_seed(0)
    model = Autoencoder().double()
    batches = [torch.randn(7, 6, dtype=torch.float64) for _ in range(3)]
    torch.manual_seed(1)
    return model, torch.optim.Adam(model.parameters(), lr=0.01), batches


def truth_of_step(model: nn.Module, losses: Tensor) -> dict[str, float]:
    parameters = list(model.parameters())
    rows = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses]
    G = torch.stack([slow_truth.flatten(row) for row in rows]).numpy()
    gradient = slow_truth.flatten(torch.autograd.grad(losses.mean(), parameters, create_graph=True))
    H = torch.stack([slow_truth.flatten(torch.autograd.grad(g, parameters, retain_graph=True)) for g in gradient])
    truth = {
        "NormTest": slow_truth.norm_test(G),
        "InnerTest": slow_truth.inner_test(G),
        "GradNorm": slow_truth.grad_norm(G),
    }
    return truth | {
        "Loss": losses.mean().item(),
        "HessTrace": H.trace().item(),
        "HessMaxEV": torch.linalg.eigvalsh(H)[-1].item(),
    }


@pytest.mark.parametrize("config", CONFIGURATIONS)
def test_variational_autoencoder_with_a_functional_loss_is_exact_and_neutral(config: str, tmp_path: Path) -> None:
    twin, other, batches = make_autoencoder()
    truth = []
    for x in batches:
        losses = losses_of(x, twin(x))
        truth.append(truth_of_step(twin, losses))
        other.zero_grad()
        losses.mean().backward()
        other.step()
    state = torch.get_rng_state()
    model, optimizer, _ = make_autoencoder()
    with cockpit_core.track(model, None, optimizer, tmp_path / "run", config=config, on_error="raise") as run:
        for x in batches:
            optimizer.zero_grad()
            losses = losses_of(x, model(x))
            run.backward(losses.mean(), losses)
            optimizer.step()
    data = run.data
    assert data.header.covered == 1.0
    assert ("HessTrace" in data.names, "HessMaxEV" in data.names) == (config != "economy", config == "full")
    for name in [name for name in truth[0] if name in data.names]:
        expected = {step: values[name] for step, values in enumerate(truth)}
        error = 4 * float(np.nan_to_num(data.estimates[name].errors).max()) if name in data.estimates else 0
        tolerance = 1e-3 if name == "HessMaxEV" else 1e-5
        assert by_step(data, name) == pytest.approx(expected, rel=tolerance, abs=error), name
    assert len(data.alphas) == 2
    assert torch.equal(torch.get_rng_state(), state)
    assert same_bits([*model.parameters()], [*twin.parameters()])
    assert same_bits([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()])


# ---- a part that nobody trains --------------------------------------------------------------------------------------


def test_part_under_no_grad_has_no_gradient_and_the_rest_is_exact(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, loss_fn = Teacher().double(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(6, 4).double(), torch.randint(3, (6,))
    trained = {name: p for name, p in model.named_parameters() if not name.startswith("teacher")}
    losses = F.cross_entropy(model(x), y, reduction="none")
    rows = [torch.autograd.grad(loss, list(trained.values()), retain_graph=True) for loss in losses]
    G = torch.stack([slow_truth.flatten(row) for row in rows]).numpy()
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", config="full", on_error="raise") as run:
        loop(model, loss_fn, optimizer, [(x, y)])
    methods = {info.name: info.method for info in run.data.header.layers}
    assert {methods["teacher.weight"], methods["teacher.bias"]} == {"no gradient"}
    assert run.data.header.covered == 1.0
    assert by_step(run.data, "NormTest")[0] == pytest.approx(slow_truth.norm_test(G), rel=1e-5)
    assert by_step(run.data, "HessMaxEV").keys() == {0}


# ---- a gradient that is rounding alone -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("norm", [nn.BatchNorm1d, lambda n: nn.GroupNorm(1, n), nn.LayerNorm])
def test_bias_that_a_normalisation_undoes_is_no_reason_to_look_elsewhere(norm, dtype, tmp_path: Path) -> None:
    """Its individual gradients are rounding too, and add up to another rounding: nothing is left out, nothing warned of."""
    torch.manual_seed(0)
    shift = nn.Linear(1, 1)  # the same for all features, so that each of the norms takes it out again
    model = nn.Sequential(
        nn.Linear(4, 6), nn.Unflatten(1, (6, 1)), shift, nn.Flatten(), norm(6), nn.Tanh(), nn.Linear(6, 3)
    )
    model.to(dtype)
    loss_fn, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [(torch.randn(8, 4, dtype=dtype), torch.randint(3, (8,))) for _ in range(4)]
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", on_error="raise", config="economy") as run:
        loop(model, loss_fn, optimizer, batches)
    assert by_step(run.data, "GradNorm", "2.bias")[0] < 1e-4 * by_step(run.data, "GradNorm")[0]
    assert {info.method for info in run.data.header.layers} <= {"rule", "contribution"}
    assert not [notice for notice in run.data.notices if notice.kind == "coverage"]


# ---- everything with every configuration ----------------------------------------------------------------------------


def same_bits(one: list[Tensor | None], other: list[Tensor | None]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a is b if a is None or b is None else torch.equal(a, b) for a, b in pairs)


def assert_complete(data: cockpit_core.RunData, config: str) -> None:
    """Every quantity of the configuration has a value or a reason, and no error was noted."""
    reasons = {missing.name for missing in data.missing}
    for info in data.header.quantities:
        known = info.name in data.names or info.name in reasons or info.name in data.histogram_names
        assert known or info.name == "Alpha", info.name
    assert data.header.config == config
    assert not [notice for notice in data.notices if notice.kind == "error"]


@pytest.mark.parametrize("config", CONFIGURATIONS)
@pytest.mark.parametrize("name", CASES)
def test_module_runs_with_every_configuration_bit_for_bit(name: str, config: str, tmp_path: Path) -> None:
    results = []
    for tracked in (False, True):
        model, inputs = make(CASES[name])
        results.append(train_module(CASES[name], model, inputs, tmp_path / "run" if tracked else None, config))
    assert same_bits(*results)
    assert_complete(cockpit_core.load(tmp_path / "run"), config)


def train_module(case: Case, model: nn.Module, inputs: tuple, logdir: Path | None, config: str) -> list[Tensor | None]:
    loss_fn, optimizer = SquaredSum(), torch.optim.Adam(model.parameters(), lr=0.01)
    torch.manual_seed(3)
    options = {"config": config, "on_error": "raise"}
    with cockpit_core.track(model, loss_fn, optimizer, logdir, **with_config(options)) if logdir else nullcontext():
        for _ in range(2):
            optimizer.zero_grad()
            loss_fn(model(*inputs)).backward()
            optimizer.step()
    buffers = [buffer for _, buffer in model.named_buffers()]
    return [*model.parameters(), *(p.grad for p in model.parameters()), *buffers, torch.get_rng_state()]


EVERY = {**PROBLEMS, **NETWORKS, **test_broadcast.PROBLEMS}


@pytest.mark.parametrize("config", ["economy", "business"])  # full: test_networks, test_neutrality
@pytest.mark.parametrize("name", [name for name in EVERY if name not in PROBLEMS])
def test_network_runs_with_every_configuration_bit_for_bit(name: str, config: str, tmp_path: Path) -> None:
    results = []
    for tracked in (False, True):
        model, loss_fn, batches = EVERY[name].make()
        optimizer = OPTIMIZERS["adam"](list(model.parameters()))
        torch.manual_seed(1)
        options = {"config": config, "on_error": "raise"}
        run = (
            cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", **with_config(options))
            if tracked
            else nullcontext()
        )
        with run:
            loop(model, loss_fn, optimizer, batches(2))
        buffers = [buffer for _, buffer in model.named_buffers()]
        grads = [p.grad for p in model.parameters()]
        results.append([*model.parameters(), *grads, *buffers, torch.get_rng_state()])
    assert same_bits(*results)
    assert_complete(cockpit_core.load(tmp_path / "run"), config)
