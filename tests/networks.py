"""Networks that per-sample-gradient tools stumble over, each small enough for a whole Hessian."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.problems import PROBLEMS, Problem, classes

CrossEntropy = nn.CrossEntropyLoss


class Wrapped(nn.Module):
    """A recurrent or attention module in the middle: takes what it needs of its tuple, and classifies the mean."""

    def __init__(self, inner: nn.Module, width: int, *, self_attention: bool = False, time_dim: int = 1) -> None:
        super().__init__()
        self.inner, self.head = inner, nn.Linear(width, 3)
        self.self_attention, self.time_dim = self_attention, time_dim

    def forward(self, x: Tensor) -> Tensor:
        out = self.inner(x, x, x) if self.self_attention else self.inner(x)
        return self.head((out[0] if isinstance(out, tuple) else out).mean(self.time_dim))


class OwnParameter(nn.Module):
    """A user's module that multiplies with a Parameter of its own, broadcast over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([0.5, 1.0, 1.5, 2.0]))
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x * self.scale) + self.shift


class Decoder(nn.Module):
    """GPT-style: causal self-attention, and an output layer that shares its weight with the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.norm = nn.LayerNorm(4)
        self.query_key_value = nn.Linear(4, 12)
        self.project = nn.Linear(4, 4)
        self.output = nn.Linear(4, 7, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embedding(tokens)
        q, k, v = self.query_key_value(self.norm(h)).chunk(3, -1)
        h = h + self.project(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return self.output(h).transpose(1, 2)  # [B, classes, positions], as the loss wants it


class KeywordsAndDicts(nn.Module):
    """Keyword inputs, and a module that returns a dict."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, *, hidden: Tensor) -> dict[str, Tensor]:
            return {"hidden": torch.tanh(self.linear(input=hidden))}

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = self.Inner(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(hidden=x)["hidden"])


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.block, x, use_reentrant=False))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bilinear, self.head = nn.Bilinear(2, 2, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.bilinear(x[:, :2], x[:, 2:])))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 2, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(2, 2)
        self.up = nn.ConvTranspose2d(2, 2, 3, stride=2, padding=1, output_padding=1)
        self.out = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cat([x, self.up(torch.tanh(self.norm(self.down(x))))], 1))


class ResNetBlock(nn.Module):
    """Convolution, BatchNorm, in-place ReLU and a sum, in the usual order."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(2, 2, 3, padding=1, bias=False), nn.BatchNorm2d(2)
        self.conv2, self.bn2 = nn.Conv2d(2, 2, 3, padding=1, bias=False), nn.BatchNorm2d(2)
        self.relu, self.head = nn.ReLU(inplace=True), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x
        return self.head(self.relu(out).mean((2, 3)))


def sequence(*layers: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*(build() for build in layers))


def linear(i: int, o: int) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(i, o)


def around(build: Callable[[], nn.Module], channels: int) -> Callable[[], nn.Module]:
    """A module over images between a convolution and a classifier; tanh, so that the Hessian is no matter of luck."""
    return sequence(
        lambda: nn.Conv2d(1, 4, 3, padding=1),
        build,
        nn.Tanh,
        lambda: nn.AdaptiveAvgPool2d(1),
        nn.Flatten,
        linear(channels, 3),
    )


def tokens(length: int) -> Callable[[torch.Generator, int], Tensor]:
    return lambda generator, size: torch.randint(7, (size, length), generator=generator)


def time_first(generator: torch.Generator, size: int) -> Tensor:
    return torch.randn(5, size, 3, generator=generator, dtype=torch.float64)


def labels_per_position(count: int, *shape: int) -> Callable[[torch.Generator, int], Tensor]:
    return lambda generator, size: torch.randint(count, (size, *shape), generator=generator)


def encoder_layer() -> nn.Module:
    return Wrapped(nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True), 4)


def attention() -> nn.Module:
    return Wrapped(nn.MultiheadAttention(4, 2, batch_first=True), 4, self_attention=True)


NETWORKS = {
    problem.name: problem
    for problem in (
        Problem(
            "layernorm",
            sequence(linear(4, 5), lambda: nn.LayerNorm(5), nn.Tanh, linear(5, 3)),
            CrossEntropy,
            (4,),
            classes(3),
        ),
        Problem(
            "rmsnorm",
            sequence(linear(4, 5), lambda: nn.RMSNorm(5), nn.Tanh, linear(5, 3)),
            CrossEntropy,
            (4,),
            classes(3),
        ),
        Problem("groupnorm", around(lambda: nn.GroupNorm(2, 4), 4), CrossEntropy, (1, 4, 4), classes(3)),
        Problem(
            "instancenorm", around(lambda: nn.InstanceNorm2d(4, affine=True), 4), CrossEntropy, (1, 4, 4), classes(3)
        ),
        Problem("prelu", sequence(linear(4, 5), lambda: nn.PReLU(5), linear(5, 3)), CrossEntropy, (4,), classes(3)),
        Problem("own_parameter", sequence(linear(4, 4), OwnParameter, linear(4, 3)), CrossEntropy, (4,), classes(3)),
        Problem("attention", attention, CrossEntropy, (3, 4), classes(3), batch_size=5),
        Problem("encoder_layer", encoder_layer, CrossEntropy, (3, 4), classes(3), batch_size=5),
        Problem(
            "lstm", lambda: Wrapped(nn.LSTM(3, 3, batch_first=True), 3), CrossEntropy, (4, 3), classes(3), batch_size=5
        ),
        Problem(
            "gru", lambda: Wrapped(nn.GRU(3, 3, batch_first=True), 3), CrossEntropy, (4, 3), classes(3), batch_size=5
        ),
        Problem(
            "rnn_time_first",
            lambda: Wrapped(nn.RNN(3, 4), 4, time_dim=0),
            CrossEntropy,
            (),
            classes(3),
            batch_size=6,
            build_input=time_first,
        ),
        Problem(
            "tokens_linear",
            sequence(linear(4, 4), nn.Tanh, lambda: Wrapped(nn.Linear(4, 4), 4)),
            CrossEntropy,
            (3, 4),
            classes(3),
        ),
        Problem(
            "embedding", lambda: Wrapped(nn.Embedding(7, 4), 4), CrossEntropy, (), classes(3), build_input=tokens(5)
        ),
        Problem(
            "embedding_bag",
            sequence(lambda: nn.EmbeddingBag(7, 4), nn.Tanh, linear(4, 3)),
            CrossEntropy,
            (),
            classes(3),
            build_input=tokens(5),
        ),
        Problem("decoder", Decoder, CrossEntropy, (), labels_per_position(7, 4), batch_size=4, build_input=tokens(4)),
        Problem("keywords", KeywordsAndDicts, CrossEntropy, (4,), classes(3)),
        Problem("checkpointed", Checkpointed, CrossEntropy, (4,), classes(3)),
        Problem("bilinear", TwoInputs, CrossEntropy, (4,), classes(3)),
        Problem("unet", UNet, CrossEntropy, (1, 4, 4), labels_per_position(3, 4, 4), batch_size=4),
        Problem("resnet", ResNetBlock, CrossEntropy, (2, 4, 4), classes(3)),
        Problem(
            "conv1d",
            sequence(lambda: nn.Conv1d(2, 4, 3, dilation=2, groups=2), nn.Tanh, nn.Flatten, linear(12, 3)),
            CrossEntropy,
            (2, 7),
            classes(3),
        ),
        Problem(
            "conv3d",
            sequence(lambda: nn.Conv3d(1, 2, 2), nn.Tanh, nn.Flatten, linear(16, 3)),
            CrossEntropy,
            (1, 3, 3, 3),
            classes(3),
        ),
        Problem(
            "transposed1d",
            sequence(lambda: nn.ConvTranspose1d(2, 3, 3, stride=2), nn.Tanh, nn.Flatten, linear(21, 3)),
            CrossEntropy,
            (2, 3),
            classes(3),
        ),
        *(PROBLEMS[name] for name in ("batchnorm", "residual_relu", "called_twice", "tied", "cnn")),
    )
}
