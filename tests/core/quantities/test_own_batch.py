"""AlphaOwnBatch, BatchSharpness, DirectionalSharpness: the samples of the step once more, exact, neutral, or refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cockpit_core
from cockpit_core import quantities as q
from tests import slow_truth
from tests import slow_truth_instruments as instruments
from tests.networks import NETWORKS, Decoder
from tests.problems import PROBLEMS
from tests.training import OPTIMIZERS, by_step, train_tracked, with_config

NAMES = ("AlphaOwnBatch", "BatchSharpness", "DirectionalSharpness")
EVERY = {**NETWORKS, **PROBLEMS}
STEPS = 2


def config() -> list[q.Quantity]:
    return [getattr(q, name)() for name in NAMES]


CASES = [(p, "adam") for p in ("mlp", "cnn", "encoder_layer", "lstm")]
CASES += [(p, "momentum") for p in ("dropout", "batchnorm", "sum_reduction", "weighted", "decoder", "tied", "frozen")]


@pytest.mark.parametrize(("problem", "optimizer"), CASES)
def test_own_batch_is_the_truth(problem: str, optimizer: str, tmp_path: Path) -> None:
    data = train_tracked(EVERY[problem], optimizer, STEPS, tmp_path / "run", config=config())
    moments = slow_truth.watch_training(EVERY[problem], OPTIMIZERS[optimizer], STEPS)
    assert not data.missing
    expected = [{"AlphaOwnBatch": instruments.alpha_own_batch(m)} | instruments.curvatures_along(m) for m in moments]
    for name in NAMES:
        values = {t: own[name] for t, own in enumerate(expected)}
        assert by_step(data, name) == pytest.approx(values, rel=1e-6, abs=1e-9), name


class Quadratic(nn.Module):
    """DeepOBS' quadratic_deep: ``(theta - x_n)' Q (theta - x_n) / 2`` with a few steep directions."""

    reduction = "mean"

    def __init__(self, dim: int = 30):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        rotation = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))[0]
        values = torch.cat([torch.rand(dim - 3, generator=generator), 30 + 30 * torch.rand(3, generator=generator)])
        self.register_buffer("Q", rotation @ torch.diag(values.double()) @ rotation.T)

    def forward(self, away: Tensor, target: Tensor | None = None) -> Tensor:
        losses = (away @ self.Q * away).sum(1) / 2
        return losses.mean() if self.reduction == "mean" else losses


class Away(nn.Module):
    def __init__(self, dim: int = 30):
        super().__init__()
        self.theta = nn.Parameter(torch.ones(dim, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.theta - x


@pytest.mark.parametrize("rate", [0.001, 0.02, 0.05])
def test_sgd_on_a_quadratic_is_rate_times_sharpness_minus_one(rate: float, tmp_path: Path) -> None:
    model, loss_fn = Away(), Quadratic()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(0)
    sharpness = []
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", config=config(), on_error="raise") as run:
        for _ in range(6):
            x = 0.6 * torch.randn(16, 30, generator=generator, dtype=torch.float64)
            optimizer.zero_grad()
            loss_fn(model(x)).backward()
            g = model.theta.grad.clone()
            sharpness.append(float(g @ loss_fn.Q @ g / (g @ g)))
            optimizer.step()
    for name in ("BatchSharpness", "DirectionalSharpness"):
        assert by_step(run.data, name) == pytest.approx(dict(enumerate(sharpness)), rel=1e-6)
    expected = {t: rate * kappa - 1 for t, kappa in enumerate(sharpness)}
    assert by_step(run.data, "AlphaOwnBatch") == pytest.approx(expected, abs=1e-6)
    ratios = dict(zip(*(c.tolist() for c in run.data.scalars("BatchSharpness/ratio")), strict=True))
    assert ratios == pytest.approx({t: rate * kappa / 2 for t, kappa in enumerate(sharpness)})


# ---- loops ---------------------------------------------------------------------------------------------------------


class Trained(SimpleNamespace):
    """A model, its optimizer, and the batches of a small problem."""


def prepare(problem: str = "mlp", optimizer: str = "adam") -> Trained:
    model, loss_fn, batches = EVERY[problem].make()
    torch.manual_seed(0)
    return Trained(
        model=model, loss_fn=loss_fn, optimizer=OPTIMIZERS[optimizer](list(model.parameters())), batches=batches
    )


def plain(it: Trained, x: Tensor, y: Tensor, run) -> None:
    it.optimizer.zero_grad()
    it.loss_fn(it.model(x), y).backward()
    it.optimizer.step()


def accumulated(it: Trained, x: Tensor, y: Tensor, run) -> None:
    it.optimizer.zero_grad()
    for part in (slice(0, 3), slice(3, 7)):
        (it.loss_fn(it.model(x[part]), y[part]) * len(x[part]) / len(x)).backward()
    it.optimizer.step()


def clipped(it: Trained, x: Tensor, y: Tensor, run) -> None:
    it.optimizer.zero_grad()
    it.loss_fn(it.model(x), y).backward()
    nn.utils.clip_grad_norm_(it.model.parameters(), 0.1)
    it.optimizer.step()


def reshaped(it: Trained, x: Tensor, y: Tensor, run) -> None:
    """What stands between the model and the loss is done again."""
    it.optimizer.zero_grad()
    it.loss_fn(it.model(x).unsqueeze(1).transpose(1, 2)[:, :, -1].reshape(-1, 4), y).backward()
    it.optimizer.step()


def one_sample_each(it: Trained, x: Tensor, y: Tensor, run) -> None:
    it.optimizer.zero_grad()
    it.loss_fn.reduction = "none"
    it.loss_fn(it.model(x), y).mean().backward()
    it.loss_fn.reduction = "mean"
    it.optimizer.step()


def functional(it: Trained, x: Tensor, y: Tensor, run) -> None:
    it.optimizer.zero_grad()
    F.cross_entropy(it.model(x), y).backward()
    it.optimizer.step()


def functional_and_scaled(it: Trained, x: Tensor, y: Tensor, run) -> None:
    """Accumulated, and with a GradScaler around."""
    it.scaler = getattr(it, "scaler", None) or torch.amp.GradScaler("cpu", init_scale=256.0)
    it.optimizer.zero_grad()
    for part in (slice(0, 3), slice(3, 7)):
        loss = F.cross_entropy(it.model(x[part]), y[part], reduction="sum") / len(x)
        it.scaler.scale(loss).backward()
    it.scaler.step(it.optimizer)
    it.scaler.update()


def functional_and_clipped(it: Trained, x: Tensor, y: Tensor, run) -> None:
    it.optimizer.zero_grad()
    out = it.model(x)
    loss = -F.log_softmax(out, 1).gather(1, y.reshape(len(out), 1, *y.shape[1:])[:, :1]).mean()
    (loss + 0.01 * sum(p.square().sum() for p in it.model.parameters())).backward()
    nn.utils.clip_grad_norm_(it.model.parameters(), 0.1)
    it.optimizer.step()


def train(step: Callable, tmp_path: Path | None, problem: str = "mlp", quantities: Callable = config) -> Trained:
    it = prepare(problem)
    run = None
    if tmp_path is not None:
        run = cockpit_core.track(it.model, it.loss_fn, it.optimizer, tmp_path, config=quantities(), on_error="raise")
    for x, y in it.batches(STEPS):
        step(it, x, y, run)
    it.state = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    if run is not None:
        run.close()
        it.data = run.data
    return it


@pytest.mark.parametrize("step", [accumulated, reshaped, one_sample_each, functional, functional_and_scaled])
def test_other_loops_over_the_same_samples_give_the_same_numbers(step: Callable, tmp_path: Path) -> None:
    one, other = train(plain, tmp_path / "plain"), train(step, tmp_path / "other")
    assert not other.data.missing
    for name in NAMES:
        assert by_step(other.data, name) == pytest.approx(by_step(one.data, name), rel=1e-7), name


def same_bits(one: Trained, other: Trained) -> bool:
    pairs = zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    grads = zip(one.model.parameters(), other.model.parameters(), strict=True)
    states = zip(one.optimizer.state.values(), other.optimizer.state.values(), strict=True)
    return (
        all(torch.equal(a, b) for a, b in pairs)
        and all(torch.equal(p.grad, r.grad) for p, r in grads)
        and all(torch.equal(a[k], b[k]) for a, b in states for k in a)
        and torch.equal(one.state[0], other.state[0])
        and one.state[1:] == other.state[1:]
    )


@pytest.mark.parametrize("step", [plain, accumulated, clipped, functional_and_scaled, functional_and_clipped])
@pytest.mark.parametrize("problem", ["encoder_layer", "lstm", "dropout", "batchnorm"])
def test_training_is_bit_for_bit_the_same(step: Callable, problem: str, tmp_path: Path) -> None:
    assert same_bits(train(step, tmp_path / "run", problem), train(step, None, problem))


class WithLoss(nn.Module):
    """As in Hugging Face's models: the loss is one of the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = Decoder()

    def forward(self, tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.decoder(tokens)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def test_loss_that_comes_out_of_the_model_can_be_repeated(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = WithLoss().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    tokens, labels = torch.randint(7, (4, 4)), torch.randint(7, (4, 4))
    with cockpit_core.track(model, None, optimizer, tmp_path / "run", config=config(), on_error="raise") as run:
        optimizer.zero_grad()
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        loss = model(tokens, labels)["loss"]
        run.backward(loss / 2)
        optimizer.step()
    (end,) = run.data.scalars("AlphaOwnBatch/loss_end")[1]
    assert end == pytest.approx(model(tokens, labels)["loss"].item() / 2, rel=1e-9)
    assert not run.data.missing or {m.name for m in run.data.missing} <= {"Alpha"}
    moved = sum(((p.detach() - before[n]) ** 2).sum() for n, p in model.named_parameters())
    assert moved > 0
    assert -1 <= by_step(run.data, "AlphaOwnBatch")[0] < 5


def penalised(it: Trained, x: Tensor, y: Tensor, run) -> None:
    it.optimizer.zero_grad()
    (it.loss_fn(it.model(x), y) + 0.1 * sum((p**2).sum() for p in it.model.parameters())).backward()
    it.optimizer.step()


def computed(it: Trained, x: Tensor, y: Tensor, run) -> None:
    it.optimizer.zero_grad()
    it.loss_fn(it.model(x) + it.model(x).sin(), y).backward()
    it.optimizer.step()


@pytest.mark.parametrize("step", ["penalised", "computed"])
def test_more_than_the_loss_module_is_read_from_the_graph(step: str, tmp_path: Path) -> None:
    """Against the same loss as one module, which is called again as a whole."""

    class Whole(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model, self.loss_fn = [model], nn.CrossEntropyLoss()

        def forward(self, out: Tensor, y: Tensor) -> Tensor:
            if step == "computed":
                return self.loss_fn(out + out.sin(), y)
            return self.loss_fn(out, y) + 0.1 * sum((p**2).sum() for p in self.model[0].parameters())

    def whole(it: Trained, x: Tensor, y: Tensor, run) -> None:
        it.optimizer.zero_grad()
        it.loss_fn(it.model(x), y).backward()
        it.optimizer.step()

    found = train({"penalised": penalised, "computed": computed}[step], tmp_path / "run").data
    it = prepare()
    it.loss_fn = Whole(it.model)
    options = {"config": config(), "on_error": "raise"}
    with cockpit_core.track(it.model, it.loss_fn, it.optimizer, tmp_path / "whole", **with_config(options)) as run:
        for x, y in it.batches(STEPS):
            whole(it, x, y, run)
    assert not found.missing
    for name in NAMES:
        assert len(by_step(found, name)) == STEPS
        assert by_step(found, name) == pytest.approx(by_step(run.data, name), rel=1e-7), name
