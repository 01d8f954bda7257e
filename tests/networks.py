"""Networks that per-sample-gradient tools stumble over, each small enough for a whole Hessian."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.problems import PROBLEMS, Problem, classes


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


class SequenceFirst(nn.Module):
    """Samples are counted by the second dimension from here on, as torch's recurrent and attention modules do by default."""

    def __init__(self, inner: nn.Module, width: int) -> None:
        super().__init__()
        self.inner, self.head = inner, nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.inner(x.transpose(0, 1))
        return self.head((out[0] if isinstance(out, tuple) else out).mean(0))


class Teacher(nn.Module):
    """A part that runs under ``no_grad``, though its parameters could be trained: they have no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student, self.head = nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            target = torch.tanh(self.teacher(x))
        return self.head(torch.tanh(self.student(x)) * target)


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
        self.down = nn.Conv2d(1, 2, 3, stride=2, padding=1, bias=False)
        self.norm = nn.GroupNorm(2, 2)
        self.up = nn.ConvTranspose2d(2, 2, 3, stride=2, padding=1, output_padding=1)
        self.out = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cat([x, self.up(torch.tanh(self.norm(self.down(x))))], 1))


class UsedAgain(nn.Module):
    """A convolution, and a Linear with several positions, each called twice: their gradients are formed, then added."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear, self.head = nn.Conv2d(2, 2, 3, padding=1), nn.Linear(4, 4), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.conv(torch.tanh(self.conv(x))))
        return self.head(torch.tanh(self.linear(torch.tanh(self.linear(x)))).sum(2).flatten(1))


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
    """A module over images between a convolution and a classifier; no bias before what may be a normalisation."""
    return sequence(
        *(lambda: nn.Conv2d(1, 4, 3, padding=1, bias=False), build, nn.Tanh),
        *(lambda: nn.AdaptiveAvgPool2d(1), nn.Flatten, linear(channels, 3)),
    )


def tokens(length: int) -> Callable[[torch.Generator, int], Tensor]:
    return lambda generator, size: torch.randint(7, (size, length), generator=generator)


def labels_per_position(count: int, *shape: int) -> Callable[[torch.Generator, int], Tensor]:
    return lambda generator, size: torch.randint(count, (size, *shape), generator=generator)


def encoder_layer() -> nn.Module:
    return Wrapped(nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True), 4)


def encoder(positions_first: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=not positions_first)
    return nn.TransformerEncoder(layer, 1, norm=nn.LayerNorm(4), enable_nested_tensor=False)


def attention() -> nn.Module:
    return Wrapped(nn.MultiheadAttention(4, 2, batch_first=True), 4, self_attention=True)


def classify(name: str, build: Callable[[], nn.Module], input_shape: tuple[int, ...], **options) -> Problem:
    return Problem(name, build, nn.CrossEntropyLoss, input_shape, options.pop("target", classes(3)), **options)


def between(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A module over five features between two Linears."""
    return sequence(linear(4, 5), build, nn.Tanh, linear(5, 3))


def then_classify(build: Callable[[], nn.Module], features: int) -> Callable[[], nn.Module]:
    return sequence(build, nn.Tanh, nn.Flatten, linear(features, 3))


NETWORKS = {
    problem.name: problem
    for problem in (
        classify("layernorm", between(lambda: nn.LayerNorm(5)), (4,)),
        classify("rmsnorm", between(lambda: nn.RMSNorm(5)), (4,)),
        classify("prelu", between(lambda: nn.PReLU(5)), (4,)),
        classify("own_parameter", sequence(linear(4, 4), OwnParameter, linear(4, 3)), (4,)),
        classify("groupnorm", around(lambda: nn.GroupNorm(2, 4), 4), (1, 4, 4)),
        classify("instancenorm", around(lambda: nn.InstanceNorm2d(4, affine=True), 4), (1, 4, 4)),
        classify("attention", attention, (3, 4), batch_size=5),
        classify("encoder_layer", encoder_layer, (3, 4), batch_size=5),
        classify("lstm", lambda: Wrapped(nn.LSTM(3, 3, batch_first=True), 3), (4, 3), batch_size=5),
        classify("gru", lambda: Wrapped(nn.GRU(3, 3, batch_first=True), 3), (4, 3), batch_size=5),
        classify("sequence_first_lstm", lambda: SequenceFirst(nn.LSTM(3, 3), 3), (4, 3), batch_size=4),
        classify("sequence_first_encoder", lambda: SequenceFirst(encoder(True), 4), (3, 4), batch_size=5),
        classify("as_many_positions", lambda: SequenceFirst(encoder(True), 4), (4, 4), batch_size=4),
        classify("positions", sequence(linear(4, 4), nn.Tanh, lambda: Wrapped(nn.Linear(4, 4), 4)), (3, 4)),
        classify("embedding", lambda: Wrapped(nn.Embedding(7, 4), 4), (), build_input=tokens(5)),
        classify("embedding_bag", then_classify(lambda: nn.EmbeddingBag(7, 4), 4), (), build_input=tokens(5)),
        classify("decoder", Decoder, (), target=labels_per_position(7, 4), batch_size=4, build_input=tokens(4)),
        classify("keywords", KeywordsAndDicts, (4,)),
        classify("checkpointed", Checkpointed, (4,)),
        classify("bilinear", TwoInputs, (4,)),
        classify("unet", UNet, (1, 4, 4), target=labels_per_position(3, 4, 4), batch_size=4),
        classify("used_again", UsedAgain, (2, 4, 4)),
        classify("resnet", ResNetBlock, (2, 4, 4)),
        classify("conv1d", then_classify(lambda: nn.Conv1d(2, 4, 3, dilation=2, groups=2), 12), (2, 7)),
        classify("conv3d", then_classify(lambda: nn.Conv3d(1, 2, 2), 16), (1, 3, 3, 3)),
        classify("transposed1d", then_classify(lambda: nn.ConvTranspose1d(2, 3, 3, stride=2), 21), (2, 3)),
        *(PROBLEMS[name] for name in ("batchnorm", "residual_relu", "called_twice", "tied", "cnn")),
    )
}
