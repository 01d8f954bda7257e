"""Which rows are whose: followed through the graph, marked where samples interact, refused where they cannot be told."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import orthogonal, weight_norm

import cockpit_core
from tests.core.engine.sample_cases import B, Shuffled, batches, layers_of, make_mlp
from tests.core.engine.test_kinds import compare, train, watch
from tests.kinds import squares


@pytest.mark.parametrize("wrap", [weight_norm, orthogonal])
def test_weight_that_a_parametrization_computes_is_no_batch(wrap: Callable, tmp_path: Path) -> None:
    """Its first dimension is as long as the batch; its rows belong to all samples."""
    torch.manual_seed(0)
    model = nn.Sequential(wrap(nn.Linear(3, B)), nn.Tanh(), nn.Linear(B, 2)).double()
    twin, steps = copy.deepcopy(model), batches(3)
    data = train(model, steps, squares, tmp_path / "run")
    assert data.header.covered == 1.0
    assert compare(data, watch(twin, steps, squares)) > 0


def test_rows_in_any_order_are_given_to_their_samples(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, steps = Shuffled().double(), batches(2, 3)
    twin = copy.deepcopy(model)
    data = train(model, steps, squares, tmp_path / "run")
    assert {method for method, _ in layers_of(data).values()} == {"rule"}
    assert compare(data, watch(twin, steps, squares)) == 3 * 3 * 4


class OnlyLoss(nn.Module):
    """Returns no more than the losses; inside, rows are flat and time comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.map, self.head = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.tanh(self.map(x.transpose(0, 1).reshape(-1, 3)))
        return squares(self.head(rows.view(x.shape[1], -1, 3)).transpose(0, 1))


def test_model_that_returns_its_losses(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, steps = OnlyLoss().double(), batches(B, 3)
    twin = copy.deepcopy(model)
    data = train(model, steps, lambda losses: losses, tmp_path / "run")
    assert compare(data, watch(twin, steps, lambda losses: losses)) == 3 * 3 * 4


def contrast(z: Tensor) -> Tensor:
    """InfoNCE over two views of each sample, one behind the other."""
    z = F.normalize(z.flatten(1), dim=1)
    first, second = z[: len(z) // 2], z[len(z) // 2 :]
    return F.cross_entropy(first @ second.t() / 0.5, torch.arange(len(first)))


def both_ways(z: Tensor) -> Tensor:
    logits = F.normalize(z[:, :2]) @ F.normalize(z[:, 2:]).t()
    target = torch.arange(len(z))
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2


INTERACTING: dict[str, Callable[[Tensor], Tensor]] = {
    "contrast": contrast,
    "both ways": both_ways,
    "worst": lambda z: torch.logsumexp(squares(z), 0),
    "curved": lambda z: torch.log(squares(z).mean()),
    "decorrelated": lambda z: (z.t() @ z / len(z) - torch.eye(z.shape[1]).double()).square().sum(),
    "centred": lambda z: (z - z.mean(0)).square().mean(),
    "neighbours": lambda z: sum((z[n] - z[n - 1]).square().sum() for n in range(B)),
    "pairs of rows": lambda z: (z[[0, 1, 2]] - z[[1, 2, 3]]).square().sum(),
}


def track_loss(model: nn.Module, loss_of: Callable[[Tensor], Tensor], folder: Path) -> cockpit_core.RunData:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with cockpit_core.track(model, None, optimizer, folder, config="economy", on_error="raise") as run:
        for (x,) in batches(3, count=2):
            optimizer.zero_grad()
            run.backward(loss_of(model(x)))
            optimizer.step()
    return run.data


@pytest.mark.parametrize("name", INTERACTING)
def test_samples_that_interact_in_the_loss_are_contributions(name: str, tmp_path: Path) -> None:
    layers = layers_of(track_loss(make_mlp(), INTERACTING[name], tmp_path / "run"))
    assert {method for method, _ in layers.values()} == {"contribution"}
    assert all("loss" in reason for _, reason in layers.values())


SEPARATE: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda z: squares(z).mean(),
    "sum": lambda z: squares(z).sum() / 7,
    "classes": lambda z: F.cross_entropy(z, torch.tensor([0, 3, 1, 1])),
    "some ignored": lambda z: F.cross_entropy(z, torch.tensor([0, -100, 1, 1]), label_smoothing=0.1),
    "two terms": lambda z: (
        F.mse_loss(z[:, :2], torch.ones(B, 2).double()) + 0.5 * F.l1_loss(z[:, 2:], z.new_zeros(B, 2))
    ),
    "binary": lambda z: F.binary_cross_entropy_with_logits(z, torch.ones_like(z), reduction="sum"),
    "tokens": lambda z: F.cross_entropy(z.view(-1, 2), torch.tensor([0, 1] * B)),
    "weighted": lambda z: (squares(z) * torch.arange(B)).sum() / torch.arange(B).sum(),
    "divergence": lambda z: F.kl_div(torch.log_softmax(z, 1), torch.ones_like(z) / 4, reduction="batchmean"),
    "cosine": lambda z: (1 - F.cosine_similarity(z[:, :2], z[:, 2:])).mean(),
    "triplet": lambda z: F.triplet_margin_loss(z[:, :2], z[:, 2:], z[:, 1:3]),
    "decay": lambda z: squares(z).mean() + 0.1 * z.new_ones(3).sum(),
    "one by one": lambda z: sum(F.cross_entropy(row.view(2, 2), torch.tensor([0, 1])) for row in z) / B,
    "some of their rows": lambda z: F.l1_loss(
        z.view(B, 2, 2)[[0, 0, 2, 3, 3], [0, 1, 1, 0, 1]], torch.ones(5, 2).double(), reduction="sum"
    ),
    "the hardest": lambda z: squares(z).topk(3).values.mean(),
}


@pytest.mark.parametrize("name", SEPARATE)
def test_sum_over_samples_is_not_marked(name: str, tmp_path: Path) -> None:
    layers = layers_of(track_loss(make_mlp(), SEPARATE[name], tmp_path / "run"))
    assert {method for method, _ in layers.values()} == {"rule"}, layers


class Inside(nn.Module):
    """Samples meet between the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.low(x)
        return self.high((h - h.mean(0)) / h.std(0))


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.low, self.norm, self.high = nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.high(torch.relu(self.norm(self.low(x))))


@pytest.mark.parametrize("kind", [Inside, Normalised])
def test_layers_behind_which_samples_meet_are_marked_and_no_others(kind: type[nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = layers_of(train(kind().double(), batches(3), squares, tmp_path / "run"))
    assert {name: method for name, (method, _) in layers.items() if method == "contribution"}.keys() == {
        name for name in layers if not name.startswith("high")
    }
