"""Kinds of networks that people train today, small. Batch sizes equal other sizes on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

B, T, E = 4, 4, 4


@dataclass(frozen=True)
class Kind:
    """How to build it, what to feed it, and the losses [B] of its samples."""

    build: Callable[[], nn.Module]
    feed: Callable[[], tuple[Any, ...]]
    losses: Callable[[Any], Tensor]


def squares(output: Tensor) -> Tensor:
    """Uneven, so that no gradient vanishes by symmetry."""
    flat = output.reshape(len(output), -1)
    return (flat.square() * (1 + torch.arange(flat.shape[1]) / 3)).sum(1)


def sequence() -> tuple[Tensor]:
    return (torch.randn(B, T, E).double(),)


class Experts(nn.Module):
    """Two experts for each token, chosen by a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.head = nn.Linear(E, 3), nn.Linear(E, 2)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(E, 6), nn.GELU(), nn.Linear(6, E)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        weights, chosen = torch.softmax(self.gate(rows), -1).topk(2, -1)
        out = torch.zeros_like(rows)
        for k, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == k)
            out = out.index_add(0, token, expert(rows[token]) * weights[token, slot, None])
        return self.head(out.view_as(x).mean(1))


class ExpertChoice(Experts):
    """Each expert takes the B tokens that it likes best; all experts at once in one product would do the same."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        scores = torch.softmax(self.gate(rows), -1)
        out = torch.zeros_like(rows)
        for k, expert in enumerate(self.experts):
            weight, token = scores[:, k].topk(B)
            out = out.scatter_add(0, token[:, None].expand(-1, E), expert(rows[token]) * weight[:, None])
        return self.head((x + out.view_as(x)).mean(1))


class Graphs(nn.Module):
    """Nodes of all graphs in one batch, messages along edges, pooled by graph."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.message, self.head = nn.Linear(E, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor, edges: Tensor, graph: Tensor) -> Tensor:
        h = torch.tanh(self.inner(x))
        h = h + torch.zeros_like(h).index_add(0, edges[1], self.message(h)[edges[0]])
        pooled = h.new_zeros(int(graph.max()) + 1, 6).index_add(0, graph, torch.relu(h))
        return self.head(pooled)


def graphs() -> tuple[Tensor, Tensor, Tensor]:
    """The first has as many nodes as there are graphs; all together a multiple of it."""
    sizes = [4, 3, 3, 2]
    starts = [0, 4, 7, 10]
    edges = torch.cat([s + torch.randint(n, (2, 2 * n)) for s, n in zip(starts, sizes, strict=True)], 1)
    return torch.randn(12, E).double(), edges, torch.arange(4).repeat_interleave(torch.tensor(sizes))


class SelectiveScan(nn.Module):
    """A state space with gates that depend on the input, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.gates, self.out = nn.Linear(E, 2 * E), nn.Linear(E, 2 * E), nn.Linear(E, E)
        self.decay, self.mix = nn.Parameter(torch.rand(E)), nn.Conv1d(E, E, 3, padding=2, groups=E)

    def forward(self, x: Tensor) -> Tensor:
        u, gate = self.into(x).chunk(2, -1)
        u = F.silu(self.mix(u.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        step, read = self.gates(u).chunk(2, -1)
        step, state, outputs = F.softplus(step), torch.zeros_like(u[:, 0]), []
        for t in range(x.shape[1]):
            state = torch.exp(-step[:, t] * self.decay) * state + step[:, t] * u[:, t]
            outputs.append(state * read[:, t])
        return self.out(torch.stack(outputs, 1) * F.silu(gate))


class LowRank(nn.Module):
    """A frozen map and a trained one of low rank beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.down, self.up = nn.Linear(E, E), nn.Linear(E, 2, bias=False), nn.Linear(2, E, bias=False)
        self.base.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.base(x) + 2 * self.up(self.down(x)))


class Vision(nn.Module):
    """Patches, a class token, positions, one block of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(1, E, 2, stride=2), nn.Parameter(torch.randn(1, 1, E))
        self.places = nn.Parameter(torch.randn(1, 5, E))
        self.block = nn.TransformerEncoderLayer(E, 2, 8, 0.0, batch_first=True)
        self.head = nn.Linear(E, 2)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.places
        return self.head(self.block(tokens)[:, 0])


class Unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.norm = nn.Conv2d(1, 4, 3, 2, 1), nn.GroupNorm(2, 4)
        self.middle, self.up = nn.Conv2d(4, 4, 3, 1, 1), nn.ConvTranspose2d(4, 2, 2, 2)
        self.time, self.out = nn.Linear(3, 4), nn.Conv2d(3, 1, 3, 1, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = F.silu(self.norm(self.down(x))) + self.time(t)[:, :, None, None]
        return self.out(torch.cat([self.up(self.middle(h)), x], 1))


class Sets(nn.Module):
    """Elements of sets of different sizes, padded; a mask chooses those that are there."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.all = nn.Linear(E, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor, present: Tensor) -> Tensor:
        h = torch.zeros(*x.shape[:2], 6, dtype=x.dtype)
        h[present] = torch.tanh(self.each(x[present]))
        return self.all(h.sum(1))


class Flow(nn.Module):
    """Coupling layers: what passes through and the logarithm of the volume."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 4)) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        volume = x.new_zeros(len(x))
        for layer in self.layers:
            a, b = x.chunk(2, 1)
            scale, shift = layer(a).chunk(2, 1)
            x = torch.cat([b * torch.tanh(scale).exp() + shift, a], 1)
            volume = volume + torch.tanh(scale).sum(1)
        return x, volume


class Variational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 8), nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mean, log_variance = self.encode(x).chunk(2, -1)
        code = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        return self.decode(code), mean, log_variance, x


def evidence(output: tuple[Tensor, ...]) -> Tensor:
    made, mean, log_variance, x = output
    return (made - x).square().sum(1) - 0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1)


class Twins(nn.Module):
    """One network on both halves of a pair, side by side in one batch of 2 B rows."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(E, 6), nn.ReLU(), nn.Linear(6, 3))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        first, second = self.tower(torch.cat([x, y])).chunk(2)
        return first - second


class Hyper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.make, self.out = nn.Linear(3, E * E), nn.Linear(E, 2)

    def forward(self, x: Tensor, task: Tensor) -> Tensor:
        return self.out(torch.tanh(torch.einsum("bte,bef->btf", x, self.make(task).view(-1, E, E)))).mean(1)


class Latents(nn.Module):
    """As many learned queries as samples read the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.latents, self.norm = nn.Parameter(torch.randn(B, E)), nn.LayerNorm(E)
        self.read = nn.MultiheadAttention(E, 2, batch_first=True)
        self.out = nn.Linear(E, 2)

    def forward(self, x: Tensor) -> Tensor:
        queries = self.latents.expand(len(x), -1, -1)
        return self.out(self.norm(queries + self.read(queries, x, x)[0])).mean(1)


class TimeMix(nn.Module):
    """Mixes each token with the one before it, and with an average that decays."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.decay = nn.Parameter(torch.rand(E)), nn.Parameter(torch.rand(E))
        self.key, self.value, self.out = nn.Linear(E, E, bias=False), nn.Linear(E, E), nn.Linear(E, E)

    def forward(self, x: Tensor) -> Tensor:
        before = F.pad(x, (0, 0, 1, -1))
        mixed = x * self.mix + before * (1 - self.mix)
        key, value = self.key(mixed).exp(), self.value(mixed)
        top = bottom = torch.zeros_like(x[:, 0])
        outputs = []
        for t in range(x.shape[1]):
            top, bottom = [
                torch.exp(-self.decay) * s + new for s, new in ((top, key[:, t] * value[:, t]), (bottom, key[:, t]))
            ]
            outputs.append(top / bottom)
        return self.out(torch.stack(outputs, 1))


class Rays(nn.Module):
    """Points along rays, all in one batch of rows, put together ray by ray."""

    def __init__(self) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, origin: Tensor, direction: Tensor) -> Tensor:
        depth = torch.linspace(0, 1, 5).double()
        points = origin[:, None] + depth[None, :, None] * direction[:, None]
        places = torch.cat([points.sin(), points.cos()], -1)
        density, colour = self.field(places.reshape(-1, 6)).reshape(len(origin), 5, 4).split([1, 3], -1)
        alpha = 1 - torch.exp(-F.softplus(density) / 5)
        clear = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha[:, :-1]], 1), 1)
        return (alpha * clear * torch.sigmoid(colour)).sum(1)


class Bags(nn.Module):
    """A bag of words for each of two features, with offsets; they meet in a product."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.items = nn.EmbeddingBag(9, 3, mode="mean"), nn.EmbeddingBag(7, 3, mode="sum")
        self.out = nn.Linear(4, 2)

    def forward(self, dense: Tensor, words: Tensor, starts: Tensor, items: Tensor, both: Tensor) -> Tensor:
        first, pairs = self.words(words, starts), self.items(items, both)  # [B, 3], [2 B, 3]
        second, third = pairs.view(2, -1, 3)
        cross = torch.stack([(a * b).sum(1) for a, b in ((first, second), (second, third), (first, third))], 1)
        return self.out(torch.cat([cross, dense], 1))


def bags() -> tuple[Tensor, ...]:
    starts, both = torch.tensor([0, 3, 4, 9]), torch.tensor([0, 1, 3, 4, 6, 6, 9, 10])
    return torch.randn(B, 1).double(), torch.randint(9, (12,)), starts, torch.randint(7, (12,)), both


class Mixer(nn.Module):
    """Tokens are mixed by a map over positions, of which there are as many as samples."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.channels, self.norm = nn.Linear(T, T), nn.Linear(E, E), nn.LayerNorm(E)

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.gelu(self.tokens(self.norm(x).transpose(1, 2))).transpose(1, 2)
        return x + F.gelu(self.channels(x))


class RelativePlaces(nn.Module):
    """Attention with a learned bias for each distance, looked up once for all samples."""

    def __init__(self) -> None:
        super().__init__()
        self.bias, self.maps, self.out = nn.Embedding(2 * T, 1), nn.Linear(E, 3 * E), nn.Linear(E, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.maps(x).chunk(3, -1)
        place = torch.arange(x.shape[1])
        bias = self.bias(place[:, None] - place[None, :] + T)[..., 0]
        return self.out(torch.softmax(q @ k.transpose(1, 2) + bias, -1) @ v)


def vectors(*sizes: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: tuple(torch.randn(B, size).double() for size in sizes)


KINDS: dict[str, Kind] = {
    "mixture of experts": Kind(Experts, sequence, squares),
    "expert choice": Kind(ExpertChoice, sequence, squares),
    "batched graphs": Kind(Graphs, graphs, squares),
    "selective scan": Kind(SelectiveScan, sequence, squares),
    "low rank": Kind(LowRank, sequence, squares),
    "vision transformer": Kind(Vision, lambda: (torch.randn(B, 1, 4, 4).double(),), squares),
    "diffusion": Kind(Unet, lambda: (torch.randn(B, 1, 4, 4).double(), torch.randn(B, 3).double()), squares),
    "sets": Kind(Sets, lambda: (*sequence(), torch.rand(B, T) > 0.4), squares),
    "flow": Kind(Flow, vectors(4), lambda out: out[0].square().sum(1) / 2 - out[1]),
    "variational": Kind(Variational, vectors(6), evidence),
    "twins": Kind(Twins, vectors(E, E), squares),
    "hypernetwork": Kind(Hyper, lambda: (*sequence(), torch.randn(B, 3).double()), squares),
    "latents": Kind(Latents, sequence, squares),
    "time mix": Kind(TimeMix, sequence, squares),
    "rays": Kind(Rays, vectors(3, 3), squares),
    "bags": Kind(Bags, bags, squares),
    "mixer": Kind(Mixer, sequence, squares),
    "relative places": Kind(RelativePlaces, sequence, squares),
}
