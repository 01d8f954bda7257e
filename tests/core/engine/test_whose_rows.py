"""Whose rows are whose where no shape tells: parts of a model that is never called as a whole, lists of samples, single ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cockpit_core
from tests.objectives import Objective, truth_of_objective
from tests.training import assert_alphas_close, by_step

B = 4
NAMES = ("Loss", "NormTest", "InnerTest", "OrthoTest")


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05)


def make_parts() -> nn.Module:
    """As people hold an encoder and a decoder; nothing calls it as a whole."""
    torch.manual_seed(0)
    return nn.ModuleDict({"encode": nn.Linear(4, 5), "decode": nn.Linear(5, 3)}).double()


def apply_parts(model: Any, x: Tensor) -> Tensor:
    return model["decode"](torch.tanh(model["encode"](x)))


def make_batches(*shape: int, classes: tuple[int, ...] = (B,)) -> list[tuple]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(*shape, generator=generator).double(), torch.randint(3, classes, generator=generator))
        for _ in range(3)
    ]


def train(
    model: nn.Module, scalar: Callable[[Any, tuple], Tensor], batches: list[tuple], folder: Path
) -> cockpit_core.RunData:
    optimizer = sgd(model.parameters())
    with cockpit_core.track(model, None, optimizer, folder, config="economy", on_error="raise") as run:
        for batch in batches:
            optimizer.zero_grad()
            scalar(model, batch).backward()
            optimizer.step()
    return run.data


def assert_exact(data: cockpit_core.RunData, truth: dict) -> None:
    assert {info.method for info in data.header.layers} <= {"rule", "fallback"}
    for name in NAMES:
        assert by_step(data, name) == pytest.approx(truth["scalars"][name], rel=1e-5, abs=1e-7), name
    assert_alphas_close(data, truth["alphas"])


@pytest.mark.parametrize("kept", [4, 7, 8], ids=["as many as samples", "a number of their own", "twice as many"])
def test_chosen_positions_of_a_model_that_is_called_in_parts(kept: int, tmp_path: Path) -> None:
    """A dimension of the loss that has a multiple of B entries was taken for the samples."""
    batches = make_batches(B, B, 4, classes=(B, B))
    mask = torch.zeros(B, B, dtype=torch.bool)
    mask.view(-1)[torch.tensor([0, 1, 2, 15, 7, 8, 9, 10])[:kept]] = True

    def scalar(model: nn.Module, batch: tuple) -> Tensor:
        return F.cross_entropy(apply_parts(model, batch[0])[mask], batch[1][mask])

    def samples(model: nn.Module, batch: tuple) -> list[Tensor]:
        each = [(apply_parts(model, x)[m], y[m]) for x, y, m in zip(*batch, mask, strict=True)]
        return [F.cross_entropy(y, t, reduction="sum") * B / kept for y, t in each]

    truth = truth_of_objective(make_parts(), Objective(scalar, samples), sgd, batches)
    assert_exact(train(make_parts(), scalar, batches, tmp_path / "run"), truth)


def pairs(model: nn.Module, batch: tuple) -> Tensor:
    """Chosen and rejected answers side by side, a loss for each pair (preferences)."""
    good, bad = apply_parts(model, batch[0]).square().sum(1).chunk(2)
    return -F.logsigmoid(good - bad).mean()


def curved(model: nn.Module, batch: tuple) -> Tensor:
    return (apply_parts(model, batch[0]) - 1).square().mean().sqrt()


def correlated(model: nn.Module, batch: tuple) -> Tensor:
    z = apply_parts(model, batch[0])
    z = z - z.mean(0)
    return (z.T @ z / len(z) - torch.eye(3)).square().sum()


@pytest.mark.parametrize("scalar", [pairs, curved, correlated])
def test_samples_that_meet_behind_parts_of_a_model_are_marked(scalar: Callable, tmp_path: Path) -> None:
    data = train(make_parts(), scalar, make_batches(B, 4), tmp_path / "run")
    assert {info.method for info in data.header.layers} == {"contribution"}


def test_weight_that_a_function_uses_has_no_module_dict_around_it_that_could_measure_it(tmp_path: Path) -> None:
    def scalar(model: Any, batch: tuple) -> Tensor:
        hidden = torch.tanh(model["encode"](batch[0]))
        return F.cross_entropy(model["decode"](hidden) + F.linear(hidden, model["decode"].weight), batch[1])

    with pytest.warns(UserWarning, match="decode.weight are left out"):
        data = train(make_parts(), scalar, make_batches(B, 4), tmp_path / "run")
    methods = {info.name: info.method for info in data.header.layers}
    assert methods == dict.fromkeys(methods, "rule") | {"decode.weight": "not covered"}
    reason = next(info.reason for info in data.header.layers if info.name == "decode.weight")
    assert "used elsewhere too" in reason, "what is wrong, not that nothing was seen of a ModuleDict"


class Ragged(nn.Module):
    """A list of sequences of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, sequences: list[Tensor]) -> Tensor:
        return self.head(torch.stack([torch.tanh(self.each(x)).mean(0) for x in sequences]))


def test_list_of_sequences_has_a_sample_each(tmp_path: Path) -> None:
    """The first sequence's length was taken for the number of samples."""
    lengths = (2, 4, 1, 4)
    batches = [(*batch, lengths) for batch in make_batches(B, 4, 4)]

    def cut(batch: tuple) -> list[Tensor]:
        return [x[:n] for x, n in zip(batch[0], batch[2], strict=True)]

    def samples(model: nn.Module, batch: tuple) -> list[Tensor]:
        return [F.cross_entropy(model([x])[0], y) for x, y in zip(cut(batch), batch[1], strict=True)]

    def scalar(model: nn.Module, batch: tuple) -> Tensor:
        return F.cross_entropy(model(cut(batch)), batch[1])

    torch.manual_seed(0)
    model = Ragged().double()
    truth = truth_of_objective(copy.deepcopy(model), Objective(scalar, samples), sgd, batches)
    assert_exact(train(model, scalar, batches, tmp_path / "run"), truth)


class Image(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.conv(x)).mean((-2, -1)))


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.head = nn.GRU(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(x)[0])


SINGLES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "vector": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4)), (4,)),
    "image": (Image, (3, 5, 5)),
    "sequence": (Sequence, (4, 4)),
}


@pytest.mark.filterwarnings("ignore:Cockpit. individual gradients of")
@pytest.mark.parametrize("name", SINGLES)
def test_features_of_a_single_sample_are_no_samples(name: str, tmp_path: Path) -> None:
    """``policy(observation)`` without a batch: as many outputs as inputs made each of them a sample."""
    build, shape = SINGLES[name]
    data = train(build().double(), lambda m, batch: m(batch[0]).square().mean(), make_batches(*shape), tmp_path / "run")
    assert by_step(data, "NormTest") == {}
    assert all(not by_step(data, "NormTest", info.name) for info in data.header.layers)
    said = " ".join(info.reason for info in data.header.layers)
    assert "batch_dim=" not in said
    if name == "vector":
        assert "unsqueeze(0)" in said
