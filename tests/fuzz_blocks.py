"""Pieces of random networks. Each maps [B, T, F] to [B, T, F]; sizes are drawn so that they often equal one another.

A piece may use rows in any order, give them to experts, share weights, keep state, or let samples see each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Sizes:
    """Samples, positions and features of the network's input."""

    B: int
    T: int
    F: int


class Act(nn.Module):
    """One linear map of the features, and a function without parameters around it."""

    def __init__(self, size: Sizes, function: Callable[[nn.Module, Tensor], Tensor], bias: bool = True):
        super().__init__()
        self.map, self.function = nn.Linear(size.F, size.F, bias=bias), function

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.function(self.map, x))


def flat(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x.reshape(-1, x.shape[-1])).view_as(x)


def time_first(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x.transpose(0, 1)).transpose(0, 1)


def flat_time_first(layer: nn.Module, x: Tensor) -> Tensor:
    B, T, _ = x.shape
    return layer(x.transpose(0, 1).reshape(T * B, -1)).view(T, B, -1).transpose(0, 1)


def residual(layer: nn.Module, x: Tensor) -> Tensor:
    return x + layer(x)


def shuffled_rows(layer: nn.Module, x: Tensor) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    order = torch.argsort(rows[:, 0].detach())
    return torch.empty_like(rows).index_copy(0, order, layer(rows[order])).view_as(x)


def first_half(layer: nn.Module, x: Tensor) -> Tensor:
    half = (x.shape[1] + 1) // 2
    return torch.cat([layer(x[:, :half]), x[:, half:]], 1)


def shifted(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(torch.roll(x, 1, 1)) + torch.flip(x, [1])


def twice(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(torch.tanh(layer(x)))


def shared_with_function(layer: nn.Module, x: Tensor) -> Tensor:
    return F.linear(torch.tanh(layer(x)), layer.weight.t())  # type: ignore[operator]


def checkpointed(layer: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(layer, x, use_reentrant=False)


def one_by_one(layer: nn.Module, x: Tensor) -> Tensor:
    return torch.stack([layer(x[:, t]) for t in range(x.shape[1])], 1)


def sample_by_sample(layer: nn.Module, x: Tensor) -> Tensor:
    return torch.stack([layer(row) for row in x])


def pairs_of_segments(layer: nn.Module, x: Tensor) -> Tensor:
    """Rows of a sample are pooled by index_add, as nodes of a graph are."""
    B, T, _ = x.shape
    owner = torch.arange(B).repeat_interleave(T)
    pooled = x.new_zeros(B, x.shape[-1]).index_add(0, owner, x.reshape(B * T, -1))
    return x + layer(pooled)[:, None]


def masked_rows(layer: nn.Module, x: Tensor) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    chosen = rows[:, 0].detach() > 0
    out = rows.clone()
    out[chosen] = layer(rows[chosen])
    return out.view_as(x)


def centred(layer: nn.Module, x: Tensor) -> Tensor:
    """Samples see each other."""
    y = layer(x)
    return y - y.mean(0)


def across_samples(layer: nn.Module, x: Tensor) -> Tensor:
    y = layer(x)
    return torch.softmax(y[:, 0] @ y[:, 0].t(), -1).matmul(y.flatten(1)).view_as(y)


FUNCTIONS: tuple[Callable[[nn.Module, Tensor], Tensor], ...] = (
    *(flat, time_first, flat_time_first, residual, shuffled_rows, first_half, shifted, twice, shared_with_function),
    *(checkpointed, one_by_one, sample_by_sample, pairs_of_segments, masked_rows, centred, across_samples),
)


class Experts(nn.Module):
    """Each token goes to one expert: how many rows an expert sees depends on the data."""

    def __init__(self, size: Sizes, count: int):
        super().__init__()
        self.gate = nn.Linear(size.F, count)
        self.experts = nn.ModuleList(nn.Linear(size.F, size.F) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        weight, choice = torch.softmax(self.gate(rows), -1).max(-1)
        out = torch.zeros_like(rows)
        for k, expert in enumerate(self.experts):
            own = torch.nonzero(choice == k).flatten()
            if len(own):
                out = out.index_add(0, own, expert(rows[own]) * weight[own, None])
        return x + out.view_as(x)


class ChoosingExperts(nn.Module):
    """Each expert takes as many tokens as it has room for, whosever they are."""

    def __init__(self, size: Sizes, count: int, room: int):
        super().__init__()
        self.gate, self.room = nn.Linear(size.F, count), room
        self.experts = nn.ModuleList(nn.Linear(size.F, size.F) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        scores = torch.softmax(self.gate(rows), -1)
        out = torch.zeros_like(rows)
        for k, expert in enumerate(self.experts):
            value, own = scores[:, k].topk(min(self.room, len(rows)))
            out = out.index_add(0, own, expert(rows[own]) * value[:, None])
        return x + out.view_as(x)


class Positions(nn.Module):
    """Learned positions, added or multiplied, from a table or a parameter."""

    def __init__(self, size: Sizes, table: bool, multiply: bool):
        super().__init__()
        self.values = nn.Embedding(size.T, size.F) if table else nn.Parameter(torch.randn(size.T, size.F))
        self.multiply = multiply

    def forward(self, x: Tensor) -> Tensor:
        own = self.values(torch.arange(x.shape[1])) if isinstance(self.values, nn.Embedding) else self.values
        return x * own if self.multiply else x + own


class Attention(nn.Module):
    def __init__(self, size: Sizes, batch_first: bool):
        super().__init__()
        self.inner, self.batch_first = nn.MultiheadAttention(size.F, 1, batch_first=batch_first), batch_first

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.batch_first else x.transpose(0, 1)
        out = self.inner(x, x, x)[0]
        return out if self.batch_first else out.transpose(0, 1)


class Recurrent(nn.Module):
    def __init__(self, size: Sizes, kind: type[nn.RNNBase], batch_first: bool):
        super().__init__()
        self.inner, self.batch_first = kind(size.F, size.F, batch_first=batch_first), batch_first

    def forward(self, x: Tensor) -> Tensor:
        out = self.inner(x if self.batch_first else x.transpose(0, 1))[0]
        return out if self.batch_first else out.transpose(0, 1)


class Sorted(nn.Module):
    """Samples in another order while the piece inside works on them."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0, 0].detach().argsort()
        return self.inner(x[order])[order.argsort()]


class Folded(nn.Module):
    """Each position is a row of its own, and sees the others only in windows of two, where there are so many."""

    def __init__(self, size: Sizes, inner: nn.Module):
        super().__init__()
        self.width, self.inner = 2 - size.T % 2, inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.reshape(-1, self.width, x.shape[-1])).reshape(x.shape)


class Convolved(nn.Module):
    def __init__(self, size: Sizes, normalise: nn.Module | None):
        super().__init__()
        self.inner, self.after = nn.Conv1d(size.F, size.F, 3, padding=1), normalise or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.after(self.inner(x.transpose(1, 2)))).transpose(1, 2)


class Hyper(nn.Module):
    """Each sample makes its own weights."""

    def __init__(self, size: Sizes):
        super().__init__()
        self.make, self.size = nn.Linear(size.F, size.F * size.F), size

    def forward(self, x: Tensor) -> Tensor:
        weight = self.make(x.mean(1)).view(-1, self.size.F, self.size.F)
        return x + torch.bmm(x, weight) / self.size.F


class Latents(nn.Module):
    """A few learned queries read the sequence."""

    def __init__(self, size: Sizes):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(size.B, size.F))
        self.key, self.back = nn.Linear(size.F, size.F), nn.Linear(size.F, size.F)

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.softmax(self.latents @ self.key(x).transpose(1, 2), -1)  # [B, latents, T]
        return x + weights.transpose(1, 2) @ self.back(weights @ x)


class Remembers(nn.Module):
    """State of several kinds: a counter, a running mean, the number of calls."""

    def __init__(self, size: Sizes):
        super().__init__()
        self.map, self.calls = nn.Linear(size.F, size.F), 0
        self.register_buffer("mean", torch.zeros(size.F))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.mean((0, 1)), alpha=0.1)
        return self.map(x - self.mean)


class ByFunction(nn.Module):
    """Parameters of its own, used by functions."""

    def __init__(self, size: Sizes, transpose: bool):
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(size.F, size.F) / 2), nn.Parameter(torch.ones(size.F))
        self.transpose = transpose

    def forward(self, x: Tensor) -> Tensor:
        y = x.flatten(0, 1) @ self.weight if self.transpose else torch.einsum("btf,fg->btg", x, self.weight)
        return x + torch.tanh(y.view_as(x)) * self.scale


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        return 0.5 * gradients[0]


class OwnFunction(nn.Module):
    def __init__(self, size: Sizes):
        super().__init__()
        self.map = nn.Linear(size.F, size.F)

    def forward(self, x: Tensor) -> Tensor:
        return Same.apply(self.map(x))


def parametrized(size: Sizes, wrap: Callable[[nn.Module], nn.Module]) -> nn.Module:
    return nn.Sequential(wrap(nn.Linear(size.F, size.F)), nn.Tanh())


Maker = Callable[[Sizes, Callable[[int], int]], nn.Module]

REGROUPED: dict[str, Maker] = {
    "sorted attention": lambda s, draw: Sorted(Attention(s, bool(draw(2)))),
    "sorted recurrent": lambda s, draw: Sorted(Recurrent(s, [nn.LSTM, nn.GRU, nn.RNN][draw(3)], bool(draw(2)))),
    "windows of attention": lambda s, draw: Folded(s, Attention(s, bool(draw(2)))),
    "windows of recurrences": lambda s, draw: Folded(s, Recurrent(s, nn.GRU, bool(draw(2)))),
}
BLOCKS: dict[str, Maker] = {
    **{function.__name__: (lambda s, draw, f=function: Act(s, f)) for function in FUNCTIONS},
    "experts": lambda s, draw: Experts(s, 2 + draw(2)),
    "choosing experts": lambda s, draw: ChoosingExperts(s, 2, [s.B, s.T, 2 * s.B, s.B * s.T // 2][draw(4)]),
    "positions": lambda s, draw: Positions(s, bool(draw(2)), bool(draw(2))),
    "attention": lambda s, draw: Attention(s, bool(draw(2))),
    "recurrent": lambda s, draw: Recurrent(s, [nn.LSTM, nn.GRU, nn.RNN][draw(3)], bool(draw(2))),
    "convolution": lambda s, draw: Convolved(s, [None, nn.GroupNorm(1, s.F), nn.BatchNorm1d(s.F)][draw(3)]),
    "hypernetwork": lambda s, draw: Hyper(s),
    "latents": lambda s, draw: Latents(s),
    "remembers": lambda s, draw: Remembers(s),
    "function": lambda s, draw: ByFunction(s, bool(draw(2))),
    "own function": lambda s, draw: OwnFunction(s),
    "weight norm": lambda s, draw: parametrized(s, weight_norm),
    "orthogonal": lambda s, draw: parametrized(s, orthogonal),
    "spectral norm": lambda s, draw: parametrized(s, spectral_norm),
    "layer norm": lambda s, draw: nn.LayerNorm([s.T, s.F] if draw(2) else s.F),
    "dropout": lambda s, draw: nn.Dropout(0.3),
    "gated": lambda s, draw: nn.Sequential(nn.Linear(s.F, 2 * s.F), nn.GLU()),
    **REGROUPED,
}
