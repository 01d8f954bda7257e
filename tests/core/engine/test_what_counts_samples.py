"""Which size of inputs and outputs counts samples, where more than one may: lists, heads side by side, steps of time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cockpit_core
from tests.objectives import Objective, truth_of_objective
from tests.training import assert_alphas_close, by_step

NAMES = ("Loss", "NormTest", "InnerTest", "OrthoTest")


class Images(nn.Module):
    """As many channels as classes: the number of channels was taken for the number of samples."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.conv, self.head = way, nn.Conv2d(3, 3, 3), nn.Linear(3, 3)

    def forward(self, images: list[Any], labels: Tensor | None = None) -> Any:
        if self.way == "dense":
            return self.conv(torch.stack(images)).flatten(2)[..., :3]
        if self.way == "each":
            maps = torch.cat([self.conv(image[None]) for image in images])
        else:
            maps = self.conv(torch.stack([image["image"] if isinstance(image, dict) else image for image in images]))
        scores = self.head(torch.tanh(maps).mean((2, 3)))
        return scores if labels is None else {"loss": F.cross_entropy(scores, labels)}


class Frames(nn.Module):
    """A list with a step of time each, [B, features]; time comes first in the output too."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(3, 3), nn.Linear(3, 3)

    def forward(self, frames: list[Tensor]) -> Tensor:
        state, scores = torch.zeros_like(frames[0]), []
        for frame in frames:
            state = self.cell(frame, state)
            scores.append(self.head(state))
        return torch.stack(scores)


class Ensemble(nn.Module):
    """Heads side by side: fewer of them than samples were taken for the samples."""

    def __init__(self, heads: int, *trunk: nn.Module) -> None:
        super().__init__()
        self.trunk = nn.Sequential(*trunk)
        self.heads = nn.ModuleList([nn.Linear(4, 3) for _ in range(heads)])

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.trunk(x)
        return torch.stack([head(hidden) for head in self.heads])


class TimeFirst(nn.Module):
    """Batches of sequences in, time first inside and in the output."""

    def __init__(self, *, flat: bool) -> None:
        super().__init__()
        self.flat, self.words, self.recurrent, self.head = flat, nn.Embedding(5, 3), nn.RNN(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.head(self.recurrent(self.words(x.T))[0])
        return scores.flatten(0, 1) if self.flat else scores


class Video(nn.Module):
    """Frames in one dimension with the samples, before the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv1d(2, 3, 2), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.conv(x.flatten(0, 1))).mean(2))


class Attending(nn.Module):
    """Time first from the first layer on; a batch may have as many samples as there are steps."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.head = nn.MultiheadAttention(4, 2), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        return self.head(self.attend(x, x, x)[0])


class Repeated(nn.Module):
    """Several draws for each sample: whose rows are whose, no graph tells."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x.repeat(3, 1))))


class Late(nn.Module):
    """The first argument counts nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, time: Tensor, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x) * time))


def draw(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator).double()


def labels(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randint(3, shape, generator=generator)


def scores(model: nn.Module, batch: tuple) -> Tensor:
    return F.cross_entropy(model(*batch[:-1]), batch[-1])


def stacked(model: nn.Module, batch: tuple) -> Tensor:
    return torch.stack([F.cross_entropy(own, batch[-1]) for own in model(batch[0])]).mean()


def weighted(model: nn.Module, batch: tuple) -> Tensor:
    losses = torch.stack([F.cross_entropy(own, batch[-1]) for own in model(batch[0])])
    return (torch.arange(1, 1 + len(losses)) * losses).sum()


def by_time(model: nn.Module, batch: tuple) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def turned(model: nn.Module, batch: tuple) -> Tensor:
    return F.cross_entropy(model(batch[0]).reshape(-1, 3), batch[1].T.reshape(-1))


def sentences(B: int, g: torch.Generator) -> tuple:
    """As many words as the largest batch has sentences."""
    return torch.randint(5, (B, 6), generator=g), labels(g, B, 6)


def own_loss(model: nn.Module, batch: tuple) -> Tensor:
    return model(*batch)["loss"]


def images(B: int, g: torch.Generator) -> tuple:
    return [draw(g, 3, 4, 4) for _ in range(B)], labels(g, B)


def cut(batch: tuple, n: int) -> tuple:
    return tuple(part[n : n + 1] if len(part) > 1 else part for part in batch)


def cut_time(batch: tuple, n: int) -> tuple:
    return [frame[n : n + 1] for frame in batch[0]], batch[1][:, n : n + 1]


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    batch: Callable[[int, torch.Generator], tuple]
    scalar: Callable[[nn.Module, tuple], Tensor] = scores
    cut: Callable[[tuple, int], tuple] = cut


def vectors(B: int, g: torch.Generator) -> tuple:
    return draw(g, B, 4), labels(g, B)


CASES = {
    "list of images": Case(lambda: Images("stacked"), images),
    "list of images, each alone": Case(lambda: Images("each"), images),
    "list of images, dense": Case(
        lambda: Images("dense"), lambda B, g: ([draw(g, 3, 4, 4) for _ in range(B)], labels(g, B, 3))
    ),
    "list of images, own loss": Case(lambda: Images("stacked"), images, own_loss),
    "list of dictionaries": Case(
        lambda: Images("stacked"), lambda B, g: ([{"image": draw(g, 3, 4, 4)} for _ in range(B)], labels(g, B))
    ),
    "list of frames": Case(
        Frames, lambda B, g: ([draw(g, B, 3) for _ in range(4)], labels(g, 4, B)), by_time, cut_time
    ),
    "ensemble": Case(lambda: Ensemble(3), vectors, stacked),
    "ensemble with a trunk": Case(lambda: Ensemble(2, nn.Linear(4, 4), nn.Tanh()), vectors, stacked),
    "ensemble with weights": Case(lambda: Ensemble(2, nn.Linear(4, 4), nn.Tanh()), vectors, weighted),
    "time first": Case(lambda: TimeFirst(flat=False), sentences, turned),
    "time first, flat": Case(lambda: TimeFirst(flat=True), sentences, turned),
    "attention, time first": Case(Attending, lambda B, g: (draw(g, B, 6, 4), labels(g, B, 6)), turned),
    "video": Case(
        Video,
        lambda B, g: (draw(g, B, 3, 2, 3), labels(g, B, 3)),
        lambda model, batch: F.cross_entropy(model(batch[0]), batch[1].flatten()),
    ),
    "instance norm": Case(
        lambda: nn.Sequential(nn.Conv1d(2, 3, 2), nn.InstanceNorm1d(3, affine=True), nn.Flatten(), nn.Linear(9, 3)),
        lambda B, g: (draw(g, B, 2, 4), labels(g, B)),
    ),
    "first argument of one": Case(Late, lambda B, g: (draw(g, 1), *vectors(B, g))),
}
SIZES = (2, 3, 6)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("B", SIZES)
def test_samples_are_counted_by_what_counts_them(name: str, B: int, tmp_path: Path) -> None:
    case, generator = CASES[name], torch.Generator().manual_seed(B)
    batches = [case.batch(B, generator) for _ in range(2)]

    def make() -> nn.Module:
        torch.manual_seed(0)
        return case.make().double()

    def samples(model: nn.Module, batch: tuple) -> list[Tensor]:
        return [case.scalar(model, case.cut(batch, n)) for n in range(B)]

    truth = truth_of_objective(make(), Objective(case.scalar, samples), sgd, batches)
    model = make()
    optimizer = sgd(model.parameters())
    with cockpit_core.track(model, None, optimizer, tmp_path / "run", config="economy", on_error="raise") as run:
        for batch in batches:
            optimizer.zero_grad()
            case.scalar(model, batch).backward()
            optimizer.step()
    assert {info.method for info in run.data.header.layers} <= {"rule", "fallback", "no gradient"}
    for key in NAMES:
        assert by_step(run.data, key) == pytest.approx(truth["scalars"][key], rel=1e-5, abs=1e-7), key
    assert_alphas_close(run.data, truth["alphas"])


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("B", [3, 6])
def test_loss_module_gets_rows_with_time_first(B: int, flat: bool, tmp_path: Path) -> None:
    """The losses of the samples are sums over the right rows."""
    generator, loss_fn = torch.Generator().manual_seed(B), nn.CrossEntropyLoss()
    batches = [sentences(B, generator) for _ in range(3)]

    def samples(model: nn.Module, batch: tuple) -> list[Tensor]:
        return [turned(model, cut(batch, n)) for n in range(B)]

    def make() -> nn.Module:
        torch.manual_seed(0)
        return TimeFirst(flat=flat).double()

    truth = truth_of_objective(make(), Objective(turned, samples), sgd, batches)
    model = make()
    optimizer = sgd(model.parameters())
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", config="economy", on_error="raise") as run:
        for x, y in batches:
            optimizer.zero_grad()
            loss_fn(model(x).reshape(-1, 3), y.T.reshape(-1)).backward()
            optimizer.step()
    assert by_step(run.data, "NormTest") == pytest.approx(truth["scalars"]["NormTest"], rel=1e-5)
    assert_alphas_close(run.data, truth["alphas"])


def test_rows_in_an_order_that_nothing_tells_are_marked(tmp_path: Path) -> None:
    """They were taken for blocks of each sample: NormTest 0.35 for 0.80."""
    torch.manual_seed(0)
    model = Repeated().double()
    optimizer = sgd(model.parameters())
    with cockpit_core.track(model, None, optimizer, tmp_path / "run", config="economy", on_error="raise") as run:
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(4, 4).double()), torch.randint(3, (4,)).repeat(3)).backward()
            optimizer.step()
    assert {info.method for info in run.data.header.layers} == {"contribution"}
    assert "another order" in run.data.header.layers[0].reason


class Tags(nn.Module):
    """Scores of sequences of tags (CRF): a term of the loss looks transitions up by the labels alone."""

    def __init__(self) -> None:
        super().__init__()
        self.emit, self.transitions = nn.Linear(3, 3), nn.Parameter(torch.randn(3, 3))

    def forward(self, x: Tensor, tags: Tensor) -> Tensor:
        scores = self.emit(x)
        total = scores[:, 0]
        for t in range(1, x.shape[1]):
            total = torch.logsumexp(total[:, :, None] + self.transitions, 1) + scores[:, t]
        gold = scores.gather(2, tags[..., None])[..., 0].sum(1) + self.transitions[tags[:, :-1], tags[:, 1:]].sum(1)
        return (torch.logsumexp(total, 1) - gold).mean()


@pytest.mark.filterwarnings("ignore:Cockpit. individual gradients of transitions")
def test_parameters_that_are_looked_up_by_labels_are_no_penalty(tmp_path: Path) -> None:
    """Their term was taken to count alike for every sample: NormTest 0.49 for 1.17."""
    torch.manual_seed(0)
    model = Tags().double()
    optimizer = sgd(model.parameters())
    with cockpit_core.track(model, None, optimizer, tmp_path / "run", config="economy", on_error="raise") as run:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(4, 5, 3).double(), torch.randint(3, (4, 5))).backward()
            optimizer.step()
    methods = {info.name: info.method for info in run.data.header.layers}
    assert methods == {"transitions": "not covered", "emit.weight": "rule", "emit.bias": "rule"}


class Graphs(nn.Module):
    """Nodes of several graphs in one sparse matrix, which has no memory that could be measured."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.first, self.last = nn.Parameter(torch.ones(3)), nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor, edges: Tensor, owner: Tensor) -> Tensor:
        hidden = torch.tanh(torch.sparse.mm(edges, self.first(x)) * (self.scale @ self.scale))
        return self.last(torch.zeros(2, 4).double().index_add(0, owner, hidden))


def test_sparse_inputs_of_a_model_that_is_measured_as_a_whole(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, owner = Graphs().double(), torch.tensor([0, 0, 1, 1, 1])
    x, edges, y = torch.randn(5, 3).double(), torch.eye(5).double().to_sparse(), torch.tensor([0, 2])
    optimizer = sgd(model.parameters())
    with cockpit_core.track(model, None, optimizer, tmp_path / "run", config="economy", on_error="raise") as run:
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x, edges, owner), y).backward()
            optimizer.step()
    assert run.data.header.batch_size == 2
    assert by_step(run.data, "NormTest").keys() >= {1, 2}
