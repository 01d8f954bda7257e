"""The look at the graph itself: when it is taken, what it refuses, what it costs in words."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import cockpit_core
from cockpit_core.engine.samples import following
from tests import slow_truth
from tests.core.engine.sample_cases import B, Shuffled, batches, layers_of, make_mlp
from tests.core.engine.test_kinds import train, watch
from tests.kinds import squares


class Counting(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        Counting.calls += 1
        return gradients[0]


class Watched(nn.Module):
    """Code of the user at every place where a second backward pass would run it."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.middle, self.high = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 2)
        self.count = {"hook": 0, "checkpoint": 0}

    def inner(self, h: Tensor) -> Tensor:
        self.count["checkpoint"] += 1
        return torch.sin(self.middle(h)) * h

    def listen(self, gradient: Tensor) -> None:
        self.count["hook"] += 1

    def forward(self, x: Tensor) -> Tensor:
        h = Counting.apply(torch.tanh(self.low(x)))
        h.register_hook(self.listen)
        return self.high(checkpoint(self.inner, h, use_reentrant=False))


def test_looking_runs_no_code_of_the_user(tmp_path: Path) -> None:
    counts = []
    for tracked in (True, False):
        torch.manual_seed(0)
        model, Counting.calls = Watched().double(), 0
        (train(model, batches(3), squares, tmp_path / "run") if tracked else watch_only(model))
        counts.append({**model.count, "function": Counting.calls})
    assert counts[0] == counts[1]


def watch_only(model: nn.Module) -> None:
    for (x,) in batches(3):
        squares(model(x)).mean().backward()


def count_looks(model: nn.Module, steps: int, shape: tuple[int, ...], folder: Path, monkeypatch: Any) -> int:
    looks = []
    original = following.look
    monkeypatch.setattr(following, "look", lambda *args: looks.append(1) or original(*args))
    train(model, batches(*shape, count=steps), squares, folder)
    return len(looks)


def test_looks_are_rare_where_nothing_moves_and_constant_where_rows_are_routed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert count_looks(make_mlp(), 70, (3,), tmp_path / "still", monkeypatch) == 3
    assert count_looks(Shuffled().double(), 5, (2, 3), tmp_path / "routed", monkeypatch) == 5


def test_alpha_has_no_value_where_a_part_of_the_step_is_not_measured(tmp_path: Path) -> None:
    data = train(make_mlp(), batches(3), squares, tmp_path / "run", layers=["0.*"])
    assert data.alphas == []
    assert any("2.weight" in missing.reason for missing in data.missing if missing.name == "Alpha")


def play(optimizers: tuple[str, ...], folder: Path) -> tuple[cockpit_core.RunData, list[list[Tensor]]]:
    """A generator and a discriminator in a ModuleDict, which is never called; the individual gradients of D at each step."""
    torch.manual_seed(0)
    sizes = {"G": (2, 3), "D": (3, 1)}
    made_of = {name: nn.Sequential(nn.Linear(n, 6), nn.ReLU(), nn.Linear(6, m)) for name, (n, m) in sizes.items()}
    nets = nn.ModuleDict(made_of)
    nets.double()
    steppers = {name: torch.optim.SGD(net.parameters(), lr=0.1) for name, net in nets.items()}
    loss_fn, G = nn.BCEWithLogitsLoss(), list[list[Tensor]]()
    chosen = [steppers[name] for name in optimizers]
    with cockpit_core.track(nets, loss_fn, chosen, folder, config="economy", on_error="raise") as run:
        for _ in range(3):
            real, noise = torch.randn(5, 3).double(), torch.randn(5, 2).double()
            steppers["D"].zero_grad()
            good, bad = nets["D"](real), nets["D"](nets["G"](noise).detach())
            singles = F.softplus(-good[:, 0]) + F.softplus(bad[:, 0])
            rows = [torch.autograd.grad(l_n, list(nets["D"].parameters()), retain_graph=True) for l_n in singles]
            G.append([torch.stack([row[k].flatten() for row in rows]) for k in range(4)])
            (loss_fn(good, torch.ones_like(good)) + loss_fn(bad, torch.zeros_like(bad))).backward()
            steppers["D"].step()
            steppers["G"].zero_grad()
            made = nets["D"](nets["G"](noise))
            loss_fn(made, torch.ones_like(made)).backward()
            steppers["G"].step()
    return run.data, G


def test_gan_in_a_module_dict(tmp_path: Path) -> None:
    data, G = play(("D",), tmp_path / "run")
    for k, layer in enumerate(name for name in layers_of(data) if name.startswith("D")):
        steps, values = data.scalars("NormTest", layer)
        assert steps.tolist() == [0, 1, 2], "the generator's pass through D is zeroed, and counts at no step"
        assert values == pytest.approx([slow_truth.norm_test(own[k].numpy()) for own in G], rel=1e-5)


def test_layer_that_no_pass_goes_through_is_not_covered(tmp_path: Path) -> None:
    data, _ = play(("D", "G"), tmp_path / "run")
    shares = {info.name: info.size for info in data.header.layers if info.method not in ("not covered", "")}
    assert data.header.covered == pytest.approx(sum(shares.values()) / sum(i.size for i in data.header.layers))
    for name in shares:
        assert len(data.scalars("NormTest", name)[0]), name


def test_generator_has_no_part_in_a_pass_that_does_not_go_through_it(tmp_path: Path) -> None:
    """Two passes before one step: the samples of the first one count for the generator too, with nothing."""
    torch.manual_seed(0)
    nets, loss_fn = nn.ModuleDict({"G": nn.Linear(2, 3), "D": nn.Linear(3, 1)}).double(), nn.BCEWithLogitsLoss()
    optimizer, parameters = torch.optim.SGD(nets.parameters(), lr=0.1), dict(nets.named_parameters())
    truth = list[dict[str, Any]]()
    with cockpit_core.track(nets, loss_fn, optimizer, tmp_path / "run", config="economy", on_error="raise") as run:
        for _ in range(2):
            real, noise = torch.randn(5, 3).double(), torch.randn(5, 2).double()
            singles = [*F.softplus(-nets["D"](real)), *F.softplus(-nets["D"](nets["G"](noise)))]
            rows = [
                torch.autograd.grad(2 * l_n, parameters.values(), retain_graph=True, materialize_grads=True)
                for l_n in singles
            ]
            truth.append({name: torch.stack([row[k].flatten() for row in rows]) for k, name in enumerate(parameters)})
            optimizer.zero_grad()
            for scores in (nets["D"](real), nets["D"](nets["G"](noise))):
                loss_fn(scores, torch.ones_like(scores)).backward()
            optimizer.step()
    for name in parameters:
        values = run.data.scalars("NormTest", name)[1]
        assert values == pytest.approx([slow_truth.norm_test(G[name].numpy()) for G in truth], rel=1e-5), name


class Tied(nn.Module):
    """The same matrix reads words and scores them."""

    def __init__(self, words: int, features: int) -> None:
        super().__init__()
        self.words, self.scores = nn.Embedding(words, features), nn.Linear(features, words, bias=False)
        self.scores.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(torch.tanh(self.words(x)))


def test_tied_embedding_of_a_million_elements_in_single_precision(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Tied(20_000, 64), torch.randint(20_000, (3, 5))
    single = copy.deepcopy(model).double()

    def losses_of(scores: Tensor) -> Tensor:
        return F.cross_entropy(scores.transpose(1, 2), x.flip(1), reduction="none").mean(1)

    data = train(model, [(x,)], losses_of, tmp_path / "run")
    (truth,) = watch(single, [(x,)], losses_of)
    assert layers_of(data) == {"words.weight": ("rule", "")}
    values = {name: float(data.scalars(name, "words.weight")[1][0]) for name in ("NormTest", "InnerTest", "GradNorm")}
    assert values["NormTest"] == pytest.approx(slow_truth.norm_test(truth["words.weight"]), rel=1e-4)
    assert values["InnerTest"] == pytest.approx(slow_truth.inner_test(truth["words.weight"]), rel=1e-3)
    assert values["GradNorm"] == pytest.approx(slow_truth.grad_norm(truth["words.weight"]), rel=1e-5)


def test_batch_of_twice_the_size_keeps_its_own_samples(tmp_path: Path) -> None:
    """Consistency with unlabelled data: the second batch is no second look at the samples of the first."""
    torch.manual_seed(0)
    model, loss_fn = make_mlp(), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    small, large = torch.randn(B, 3).double(), torch.randn(2 * B, 3).double()
    losses = torch.cat([model(x).square().mean(1) / len(x) for x in (small, large)]) * 3 * B
    rows = [torch.autograd.grad(l_n, list(model.parameters()), retain_graph=True) for l_n in losses]
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", config="economy", on_error="raise") as run:
        for _ in range(2):
            optimizer.zero_grad()
            sum(loss_fn(model(x), torch.zeros(len(x), 4).double()) for x in (small, large)).backward()
            optimizer.step()
    for k, (name, _) in enumerate(model.named_parameters()):
        G = torch.stack([row[k].flatten() for row in rows]).numpy()
        steps, values = run.data.scalars("NormTest", name)
        found = dict(zip(steps.tolist(), values.tolist(), strict=True))
        assert 0 not in found or found[0] == pytest.approx(slow_truth.norm_test(G), rel=1e-5)
        assert found
