"""Loops as people write them, each with its losses written once more, sample by sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.objectives import Objective

B = 5


def draw(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def labels(generator: torch.Generator, classes: int, *shape: int) -> Tensor:
    return torch.randint(classes, shape, generator=generator)


@dataclass(frozen=True)
class Loop:
    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], tuple]
    scalar: Callable
    samples: Callable | None

    @property
    def objective(self) -> Objective:
        return Objective(self.scalar, self.samples)

    def make(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.build().double()

    def batches(self, steps: int) -> list[tuple]:
        generator = torch.Generator().manual_seed(1)
        return [self.batch(generator) for _ in range(steps)]


def small(outputs: int = 3, inputs: int = 4) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(inputs, 5), nn.Tanh(), nn.Linear(5, outputs))


def each(model: nn.Module, x: Tensor, loss: Callable) -> list[Tensor]:
    """``loss(prediction of one sample [1, ...], n)`` for every sample by itself."""
    return [loss(model(x[n : n + 1]), n) for n in range(len(x))]


def squares(model: nn.Module) -> Tensor:
    return sum((p**2).sum() for p in model.parameters())


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.body(x))
        return self.first(hidden), self.second(hidden)


class Tokens(nn.Module):
    """A tiny decoder that computes its own loss, as nanoGPT does: ``(logits, loss)``."""

    def __init__(self, classes: int = 4, width: int = 4) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(classes, width), nn.Embedding(3, width)
        self.mix, self.head = nn.Linear(width, 3 * width), nn.Linear(width, classes, bias=False)

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.embed(ids) + self.positions(torch.arange(ids.shape[1]))
        q, k, v = (t.unsqueeze(1) for t in self.mix(x).chunk(3, -1))
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)
        logits = self.head(x)
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


def tokens(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    target = labels(generator, 4, B, 3)
    target[1, 2] = target[3, 1] = -1
    return labels(generator, 4, B, 3), target


def token_samples(model: nn.Module, batch: tuple) -> list[Tensor]:
    ids, target = batch
    count = int((target != -1).sum())
    rows = [
        F.cross_entropy(model(ids[n : n + 1])[0][0], target[n], reduction="none", ignore_index=-1) for n in range(B)
    ]
    return [row.sum() * B / count for row in rows]


def classes(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return draw(generator, B, 4), labels(generator, 3, B)


def numbers(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return draw(generator, B, 4), draw(generator, B, 3)


def masked(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    return draw(generator, B, 4), labels(generator, 3, B), torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0], dtype=torch.float64)


def logp_of(y: Tensor, t: Tensor) -> Tensor:
    return torch.log_softmax(y, 1)[torch.arange(len(t)), t]


LOOPS = {
    loop.name: loop
    for loop in (
        Loop(
            "function", small(), classes,
            lambda m, b: F.cross_entropy(m(b[0]), b[1]),
            lambda m, b: each(m, b[0], lambda y, n: F.cross_entropy(y, b[1][n : n + 1])),
        ),
        Loop(
            "smoothing and weights", small(), classes,
            lambda m, b: F.cross_entropy(m(b[0]), b[1], torch.tensor([0.5, 1.0, 2.0]).double(), label_smoothing=0.1),
            lambda m, b: each(m, b[0], lambda y, n: smoothed(y, b[1], n)),
        ),
        Loop(
            "squared error by hand", small(), numbers,
            lambda m, b: ((m(b[0]) - b[1]) ** 2).mean(),
            lambda m, b: each(m, b[0], lambda y, n: (y - b[1][n]).square().mean()),
        ),
        Loop(
            "masked mean", small(), masked,
            lambda m, b: (F.cross_entropy(m(b[0]), b[1], reduction="none") * b[2]).sum() / b[2].sum(),
            lambda m, b: each(m, b[0], lambda y, n: -logp_of(y, b[1][n : n + 1]).sum() * b[2][n] * B / b[2].sum()),
        ),
        Loop(
            "chosen entries", small(), masked,
            lambda m, b: F.cross_entropy(m(b[0])[b[2] > 0], b[1][b[2] > 0]),
            lambda m, b: each(m, b[0], lambda y, n: -logp_of(y, b[1][n : n + 1]).sum() * b[2][n] * B / b[2].sum()),
        ),
        Loop(
            "penalty", small(), classes,
            lambda m, b: F.cross_entropy(m(b[0]), b[1]) + 0.01 * squares(m),
            lambda m, b: each(m, b[0], lambda y, n: -logp_of(y, b[1][n : n + 1]).sum() + 0.01 * squares(m)),
        ),
        Loop(
            "two heads", TwoHeads, lambda g: (*classes(g), draw(g, B, 2)),
            lambda m, b: F.cross_entropy(m(b[0])[0], b[1]) + 0.5 * F.mse_loss(m(b[0])[1], b[2]),
            lambda m, b: each(
                m, b[0],
                lambda y, n: -logp_of(y[0], b[1][n : n + 1]).sum() + 0.5 * (y[1] - b[2][n]).square().mean(),
            ),
        ),
        Loop("loss of the model", Tokens, tokens, lambda m, b: m(*b)[1], token_samples),
        Loop(
            "flattened tokens", Tokens, tokens,
            lambda m, b: F.cross_entropy(m(b[0])[0].view(-1, 4), b[1].view(-1), ignore_index=-1),
            token_samples,
        ),
        Loop(
            "attention and a penalty", Tokens, tokens,
            lambda m, b: m(*b)[1] + 0.01 * squares(m),
            lambda m, b: [loss + 0.01 * squares(m) for loss in token_samples(m, b)],
        ),
        Loop(
            "policy gradient", small(), lambda g: (*classes(g), draw(g, B)),
            lambda m, b: -(torch.distributions.Categorical(logits=m(b[0])).log_prob(b[1]) * b[2]).sum() / 3,
            lambda m, b: each(m, b[0], lambda y, n: -logp_of(y, b[1][n : n + 1]).sum() * b[2][n] * B / 3),
        ),
        Loop(
            "divergence", small(), lambda g: (draw(g, B, 4), draw(g, B, 3).softmax(1)),
            lambda m, b: F.kl_div(m(b[0]).log_softmax(1), b[1], reduction="batchmean"),
            lambda m, b: each(
                m, b[0], lambda y, n: (b[1][n] * (b[1][n].log() - y[0].log_softmax(0))).sum()
            ),
        ),
    )
}  # fmt: skip


def smoothed(y: Tensor, t: Tensor, n: int, eps: float = 0.1) -> Tensor:
    """Weighted and smoothed cross entropy of one sample: both means divide by the weights of the batch's targets."""
    w = torch.tensor([0.5, 1.0, 2.0]).double()
    logp = torch.log_softmax(y[0], 0)
    return -((1 - eps) * w[t[n]] * logp[t[n]] + eps / 3 * (w * logp).sum()) * len(t) / w[t].sum()
