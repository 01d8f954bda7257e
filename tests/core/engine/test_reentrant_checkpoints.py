"""``checkpoint(..., use_reentrant=True)`` hides its graph: exact where samples stay in their places, marked where not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.core.engine.sample_cases import batches, layers_of
from tests.core.engine.test_kinds import compare, compare_network, train, watch
from tests.kinds import squares

INSIDE: dict[str, Callable[[Tensor], Tensor]] = {
    "still": lambda y: y,
    "rolled": lambda y: y.roll(1, 0),
    "there and back": lambda y: y,
    "centred": lambda y: y - y.mean(0),
    "normalised": lambda y: y,
}


class Network(nn.Module):
    def __init__(self, name: str, reentrant: bool):
        super().__init__()
        self.low, self.high, self.name, self.reentrant = nn.Linear(3, 4), nn.Linear(4, 2), name, reentrant
        self.block, self.norm = nn.TransformerEncoderLayer(4, 2, 5, 0.0, batch_first=True), nn.BatchNorm1d(6)

    def inside(self, y: Tensor) -> Tensor:
        if self.name == "there and back":
            return self.block(y.flip(0)).flip(0)
        y = self.block(INSIDE[self.name](y))
        return self.norm(y) if self.name == "normalised" else y

    def forward(self, x: Tensor) -> Tensor:
        y = checkpoint(self.inside, torch.tanh(self.low(x)), use_reentrant=self.reentrant)
        return self.high(y.mean(1))


def build(name: str, *, reentrant: bool) -> nn.Module:
    torch.manual_seed(0)
    model = Network(name, reentrant).double()
    if name != "normalised":
        del model.norm
    return model


def test_samples_that_stay_in_their_places_are_exact(tmp_path: Path) -> None:
    steps = batches(6, 3)
    data = train(build("still", reentrant=True), steps, squares, tmp_path / "run")
    truth = watch(build("still", reentrant=False), steps, squares)
    assert {method for method, _ in layers_of(data).values()} == {"rule"}
    assert compare(data, truth) == 3 * 3 * len(truth[0])
    assert compare_network(data, truth) == 3 * 3


@pytest.mark.parametrize("name", ["rolled", "there and back", "centred", "normalised"])
def test_a_checkpoint_that_moves_or_mixes_samples_marks_all(name: str, tmp_path: Path) -> None:
    steps = batches(6, 3, count=2)
    tracked, untracked = build(name, reentrant=True), build(name, reentrant=True)
    layers = layers_of(train(tracked, steps, squares, tmp_path / "run"))
    assert {method for method, _ in layers.values()} == {"contribution"}
    assert "use_reentrant=False" in layers["low.weight"][1]
    optimizer = torch.optim.Adam(untracked.parameters(), lr=0.01)
    for (x,) in steps:
        optimizer.zero_grad()
        squares(untracked(x)).mean().backward()
        optimizer.step()
    pairs = zip(tracked.state_dict().values(), untracked.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs), "running statistics, too, are those of an untracked training"
