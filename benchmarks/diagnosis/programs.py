"""Eight small programs that differ in kind. Data are made up, so that a run needs no download and a second or two.

A program is a network, data with a validation part, a loss, and settings with which it trains well. ``Settings`` can be
changed by a fault or drawn at random for a healthy run; the training loop is in ``loop.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Settings:
    lr: float
    optimizer: str = "sgd"
    batch: int = 32
    momentum: float = 0.9
    weight_decay: float = 0.0
    clip: float = 0.0
    schedule: str = "constant"
    decay: float = 1.0  # factor of the learning rate at each step, for schedule "exponential"
    width: float = 1.0
    depth: int = 0  # layers more than usual
    dropout: float = 0.0
    activation: str = "relu"
    init: str = "default"
    steps: int = 150
    accumulate: int = 1


@dataclass
class Data:
    x: Tensor
    y: Tensor
    valid_x: Tensor
    valid_y: Tensor


@dataclass
class Program:
    name: str
    settings: Settings
    make_data: Callable[[torch.Generator], Data]
    make_model: Callable[[Settings], nn.Module]
    make_loss: Callable[[], nn.Module]
    kind: str = "classes"  # "classes", "values", "tokens", "reconstruction"
    others: tuple[str, ...] = field(default=("sgd", "momentum", "adam", "adamw", "rmsprop", "adagrad"))
    rates: dict[str, float] = field(default_factory=dict)  # a good learning rate for each optimizer


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU, "silu": nn.SiLU, "elu": nn.ELU, "sigmoid": nn.Sigmoid,
    "none": nn.Identity,
}  # fmt: skip


def act(settings: Settings) -> nn.Module:
    return ACTIVATIONS[settings.activation]()


def wide(settings: Settings, units: int) -> int:
    return max(4, round(units * settings.width))


def more(settings: Settings, units: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for _ in range(settings.depth):
        layers += [nn.Linear(units, units), act(settings)]
    return layers


def split(x: Tensor, y: Tensor, valid: int) -> Data:
    return Data(x[valid:], y[valid:], x[:valid], y[:valid])


def make_clusters(g: torch.Generator) -> Data:
    """Ten classes in 24 dimensions, bent, so that a linear network does not do."""
    centres = torch.randn(20, 24, generator=g) * 1.1
    which = torch.randint(0, 20, (2600,), generator=g)
    x = centres[which] + torch.randn(2600, 24, generator=g)
    return split(x / x.std(), which % 10, 600)


def make_pictures(g: torch.Generator, side: int = 12) -> Data:
    """Eight kinds of stripes and blobs with noise."""
    n, grid = 1800, torch.linspace(-1, 1, side)
    a, b = torch.meshgrid(grid, grid, indexing="ij")
    y = torch.randint(0, 8, (n,), generator=g)
    phase = torch.rand(n, generator=g) * 6.28
    angle = (y % 4).float() * math.pi / 4
    wave = torch.cos(angle)[:, None, None] * a + torch.sin(angle)[:, None, None] * b
    x = torch.sin(wave * torch.where(y < 4, 4.0, 8.0)[:, None, None] + phase[:, None, None])
    x = x + 0.7 * torch.randn(n, side, side, generator=g)
    return split(x[:, None], y, 400)


def make_values(g: torch.Generator) -> Data:
    """A smooth function of eight numbers, with a little noise; standardised."""
    x = torch.randn(2400, 8, generator=g)
    y = (
        torch.sin(2 * x[:, :1])
        + x[:, 1:2] * x[:, 2:3]
        + 0.5 * x[:, 3:4].abs()
        + 0.1 * torch.randn(2400, 1, generator=g)
    )
    return split(x, (y - y.mean()) / y.std(), 500)


def make_signals(g: torch.Generator) -> Data:
    """Five kinds of one-dimensional signals of 48 points: frequency and envelope."""
    n = 1800
    y = torch.randint(0, 5, (n,), generator=g)
    time = torch.linspace(0, 1, 48)
    phase = 6.28 * torch.rand(n, 1, generator=g)
    x = torch.sin(6.28 * (2 + 2 * y[:, None]) * time + phase) * torch.exp(-time * (y[:, None] % 2) * 2)
    return split((x + 0.5 * torch.randn(n, 48, generator=g))[:, None], y, 400)


def make_sequences(g: torch.Generator) -> Data:
    """Is the sum of the marked numbers positive? [T, 2] numbers and marks, three classes by the sum."""
    x = torch.randn(2000, 8, 2, generator=g)
    x[..., 1] = (torch.rand(2000, 8, generator=g) < 0.4).float()
    total = (x[..., 0] * x[..., 1]).sum(1)
    return split(x, (total > -0.6).long() + (total > 0.6).long(), 400)


LETTERS = 10  # of a text


def make_tokens(g: torch.Generator) -> Data:
    """Texts of a random grammar of 16 letters: each letter has three likely successors."""
    successors = torch.randint(0, 16, (16, 3), generator=g)
    text = torch.randint(0, 16, (1500, 1), generator=g)
    for _ in range(LETTERS):
        choice = torch.randint(0, 3, (1500,), generator=g)
        following = successors[text[:, -1], choice]
        stray = torch.rand(1500, generator=g) < 0.05
        following = torch.where(stray, torch.randint(0, 16, (1500,), generator=g), following)
        text = torch.cat([text, following[:, None]], 1)
    return split(text[:, :-1].contiguous(), text[:, 1:].contiguous(), 300)


def make_manifold(g: torch.Generator) -> Data:
    """Points of a curved surface of four dimensions in 32, to be reconstructed."""
    hidden = torch.randn(2000, 4, generator=g)
    lift = torch.randn(4, 32, generator=g)
    x = torch.tanh(hidden @ lift * 0.6) + 0.05 * torch.randn(2000, 32, generator=g)
    x = x / x.std()
    return split(x, x, 400)


def mlp(s: Settings) -> nn.Module:
    h = wide(s, 64)
    return nn.Sequential(
        nn.Linear(24, h), act(s), nn.Dropout(s.dropout), nn.Linear(h, h), act(s), *more(s, h), nn.Linear(h, 10)
    )


def cnn(s: Settings) -> nn.Module:
    c = wide(s, 12)
    return nn.Sequential(
        nn.Conv2d(1, c, 3, padding=1), act(s), nn.MaxPool2d(2), nn.Conv2d(c, 2 * c, 3, padding=1), act(s),
        nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(s.dropout), nn.Linear(18 * c, 48), act(s), *more(s, 48), nn.Linear(48, 8),
    )  # fmt: skip


class Block(nn.Module):
    def __init__(self, c: int, s: Settings):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.conv2, self.bn2 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.act = act(s)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x + self.bn2(self.conv2(self.act(self.bn1(self.conv1(x))))))


def resnet(s: Settings) -> nn.Module:
    c = wide(s, 8)
    return nn.Sequential(
        nn.Conv2d(1, c, 3, padding=1, bias=False), nn.BatchNorm2d(c), act(s), Block(c, s), nn.MaxPool2d(2), Block(c, s),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(s.dropout), *more(s, 4 * c), nn.Linear(4 * c, 8),
    )  # fmt: skip


def regression(s: Settings) -> nn.Module:
    h = wide(s, 64)
    return nn.Sequential(
        nn.Linear(8, h), act(s), nn.Dropout(s.dropout), nn.Linear(h, h), act(s), *more(s, h), nn.Linear(h, 1)
    )


def conv1d(s: Settings) -> nn.Module:
    c = wide(s, 12)
    return nn.Sequential(
        nn.Conv1d(1, c, 5, stride=2, padding=2), act(s), nn.Conv1d(c, 2 * c, 5, stride=2, padding=2), act(s), nn.Flatten(),
        nn.Dropout(s.dropout), nn.Linear(24 * c, 32), act(s), *more(s, 32), nn.Linear(32, 5),
    )  # fmt: skip


class Recurrent(nn.Module):
    def __init__(self, s: Settings):
        super().__init__()
        h = wide(s, 24)
        self.rnn, self.drop = nn.GRU(2, h, batch_first=True), nn.Dropout(s.dropout)
        self.head = nn.Sequential(*more(s, h), nn.Linear(h, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.rnn(x)[0][:, -1]))


class Attention(nn.Module):
    def __init__(self, d: int, s: Settings):
        super().__init__()
        self.scale: float | None = None  # 1 / sqrt(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), act(s), nn.Linear(2 * d, d), nn.Dropout(s.dropout))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        parts = (part[:, None] for part in (q, k, v))
        a = nn.functional.scaled_dot_product_attention(*parts, is_causal=True, scale=self.scale)
        x = x + self.out(a[:, 0])
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    """Tied embedding; gives scores [B, V, T] as cross-entropy wants them."""

    def __init__(self, s: Settings):
        super().__init__()
        d = wide(s, 24)
        self.embed, self.place = nn.Embedding(16, d), nn.Parameter(0.02 * torch.randn(LETTERS, d))
        self.head: nn.Linear | None = None  # the embedding is the head
        nn.init.normal_(self.embed.weight, std=0.05)
        self.blocks = nn.ModuleList([Attention(d, s) for _ in range(2 + s.depth // 2)])
        self.norm = nn.LayerNorm(d)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.place
        for block in self.blocks:
            x = block(x)
        weight = self.embed.weight if self.head is None else self.head.weight
        return (self.norm(x) @ weight.T).transpose(1, 2)


def autoencoder(s: Settings) -> nn.Module:
    h = wide(s, 48)
    return nn.Sequential(
        nn.Linear(32, h),
        act(s),
        *more(s, h),
        nn.Linear(h, 6),
        nn.Linear(6, h),
        act(s),
        nn.Dropout(s.dropout),
        nn.Linear(h, 32),
    )


CE, MSE = nn.CrossEntropyLoss, nn.MSELoss
_RATES = {"sgd": 0.15, "momentum": 0.03, "adam": 3e-3, "adamw": 3e-3, "rmsprop": 1e-3, "adagrad": 0.03}
_GENTLE = {"sgd": 0.1, "momentum": 0.01, "adam": 2e-3, "adamw": 2e-3, "rmsprop": 1e-3, "adagrad": 0.02}


def _rates(**changes: float) -> dict[str, float]:
    return {**_RATES, **changes}


PROGRAMS = {
    p.name: p
    for p in (
        Program("mlp", Settings(0.15), make_clusters, mlp, CE, rates=_RATES),
        Program("cnn", Settings(0.03, "momentum"), make_pictures, cnn, CE, rates=_rates(momentum=0.02, sgd=0.1)),
        Program("resnet", Settings(0.03, "momentum"), partial(make_pictures, side=8), resnet, CE, rates=_RATES),
        Program("regression", Settings(3e-3, "adam"), make_values, regression, MSE, "values", rates=_GENTLE),
        Program("conv1d", Settings(3e-3, "adam"), make_signals, conv1d, CE, rates=_rates(momentum=0.02, sgd=0.1)),
        Program(
            "gru",
            Settings(5e-3, "adam"),
            make_sequences,
            Recurrent,
            CE,
            rates=_rates(adam=5e-3, adamw=5e-3, sgd=0.5, momentum=0.1),
        ),
        Program(
            "decoder",
            Settings(3e-3, "adamw"),
            make_tokens,
            Decoder,
            CE,
            "tokens",
            rates=_rates(sgd=0.5, momentum=0.1),
        ),
        Program(
            "autoencoder",
            Settings(3e-3, "adam"),
            make_manifold,
            autoencoder,
            MSE,
            "reconstruction",
            rates=_rates(sgd=0.5, momentum=0.1),
        ),
    )
}


def with_optimizer(program: Program, name: str) -> Settings:
    return replace(program.settings, optimizer=name, lr=program.rates.get(name, program.settings.lr))


def make_optimizer(name: str, parameters: Any, s: Settings) -> torch.optim.Optimizer:
    plain: dict[str, Any] = {"lr": s.lr, "weight_decay": s.weight_decay}
    makers: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "sgd": lambda: torch.optim.SGD(parameters, **plain),
        "momentum": lambda: torch.optim.SGD(parameters, momentum=s.momentum, **plain),
        "adam": lambda: torch.optim.Adam(parameters, betas=(s.momentum, 0.999), **plain),
        "adamw": lambda: torch.optim.AdamW(parameters, betas=(s.momentum, 0.999), **plain),
        "rmsprop": lambda: torch.optim.RMSprop(parameters, **plain),
        "adagrad": lambda: torch.optim.Adagrad(parameters, **plain),
    }
    return makers[name]()
