"""What people train besides: small versions of common networks, on random data."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.networks import PAPER, MakeBatch, Network, classify

VOCABULARY, POSITIONS, WIDTH, HEADS = 256, 64, 128, 4


class ResidualBlock(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer)
        self.conv2, self.bn2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inner != outer:
            self.shortcut = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += self.shortcut(x)
        return self.relu(out)


def resnet() -> nn.Module:
    """ResNet-14 for 32 x 32 images."""
    widths = (16, 16, 16, 32, 32, 64, 64)
    blocks = [ResidualBlock(i, o, 2 if o > i else 1) for i, o in pairwise(widths)]
    stem = (nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def resnet18() -> nn.Module:
    """The usual one of its depth, for images of 64 x 64 and 200 classes."""
    widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
    blocks = [ResidualBlock(i, o, 2 if o > i else 1) for i, o in pairwise(widths)]
    stem = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 200))


class DecoderBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, h: Tensor) -> Tensor:
        shape = (*h.shape[:2], self.heads, h.shape[2] // self.heads)
        q, k, v = (x.reshape(shape).transpose(1, 2) for x in self.query_key_value(self.norm1(h)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(h.shape)
        h = h + self.project(mixed)
        return h + self.feed(self.norm2(h))


class Decoder(nn.Module):
    """GPT-style, the output layer sharing its weight with the embedding."""

    def __init__(
        self,
        vocabulary: int = VOCABULARY,
        positions: int = POSITIONS,
        width: int = WIDTH,
        heads: int = HEADS,
        blocks: int = 2,
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.blocks = nn.Sequential(*(DecoderBlock(width, heads) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, vocabulary, bias=False)
        self.output.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]).expand_as(tokens))
        return self.output(self.norm(self.blocks(h))).transpose(1, 2)  # [B, classes, positions], as the loss wants it


class VisionTransformer(nn.Module):
    """64 patches of 4 x 4 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 4, 4)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.encoder(self.patch(images).flatten(2).transpose(1, 2)).mean(1))


class LSTMClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 64)
        self.lstm = nn.LSTM(64, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0][:, -1])


class UNet(nn.Module):
    """Two levels; classifies every pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.down = self.block(3, 16), nn.Conv2d(16, 32, 3, 2, 1)
        self.bottom, self.up = self.block(32, 32), nn.ConvTranspose2d(32, 16, 2, 2)
        self.leave, self.out = self.block(32, 16), nn.Conv2d(16, 3, 1)

    @staticmethod
    def block(inner: int, outer: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inner, outer, 3, padding=1), nn.GroupNorm(4, outer), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        high = self.enter(x)
        return self.out(self.leave(torch.cat([high, self.up(self.bottom(self.down(high)))], 1)))


class Autoencoder(nn.Module):
    """Variational: returns the reconstruction, and mean and log-variance of the code."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Flatten(), nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 40))
        self.decode = nn.Sequential(nn.Linear(20, 400), nn.ReLU(), nn.Linear(400, 784))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encode(x).chunk(2, 1)
        return self.decode(mean + torch.randn_like(mean) * (log_variance / 2).exp()), mean, log_variance


def lower_bound(model: nn.Module, images: Tensor, _: Tensor) -> Tensor:
    """The negative evidence lower bound of each sample."""
    logits, mean, log_variance = model(images)
    error = F.binary_cross_entropy_with_logits(logits, images.flatten(1), reduction="none").sum(1)
    return error - 0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1)


def hugging_face_decoder() -> nn.Module:
    """Without torchvision, which it does not need: one whose binary does not fit this torch would fail on import."""
    loaded = sys.modules.pop("torchvision", None)
    sys.modules["torchvision"] = None  # type: ignore[assignment]
    from transformers import GPT2Config, GPT2LMHeadModel

    del sys.modules["torchvision"]
    if loaded:
        sys.modules["torchvision"] = loaded
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=WIDTH, n_layer=2, n_head=HEADS,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def next_token_losses(model: nn.Module, tokens: Tensor, _: Tensor) -> Tensor:
    logits = model(input_ids=tokens).logits[:, :-1]
    return F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none").mean(1)


def read(length: int, classes: int, *label_shape: int) -> MakeBatch:
    return lambda size: (
        torch.randint(0, VOCABULARY, (size, length)),
        torch.randint(0, classes, (size, *label_shape)),
    )


COMMON = {
    network.name: network
    for network in (
        Network("resnet14, BatchNorm", resnet, classify((3, 32, 32), 10), 64, 175_258),
        Network(
            "resnet18, 64 px",
            resnet18,
            classify((3, 64, 64), 200),
            16,
            11_279_112,
            skipped=("business, SGD", "full, SGD"),
        ),
        Network("decoder, tied embedding", Decoder, read(POSITIONS, VOCABULARY, POSITIONS), 16, 437_760),
        Network("vision transformer", VisionTransformer, classify((3, 32, 32), 10), 32, 272_522),
        Network("LSTM classifier", LSTMClassifier, read(32, 10), 32, 117_002),
        Network("U-Net, GroupNorm", UNet, classify((3, 32, 32), 3, 32, 32), 16, 21_203),
        Network("variational autoencoder", Autoencoder, classify((1, 28, 28), 10), 128, 652_824, lower_bound),
        Network("Hugging Face GPT-2", hugging_face_decoder, read(POSITIONS, 1), 16, 437_760, next_token_losses),
    )
    if not network.name.startswith("Hugging Face") or find_spec("transformers")
}
NETWORKS = PAPER | COMMON
LARGE = {
    "gpt": Network("gpt", lambda: Decoder(2048, 128, 384, 6, 6), read(128, VOCABULARY, 128), 8, 11_483_136),
    "gpt, batch of 32": Network(
        "gpt, batch of 32", lambda: Decoder(2048, 128, 384, 6, 6), read(128, VOCABULARY, 128), 32, 11_483_136
    ),
}
"""Whose memory is of interest: two copies of its parameters and ``memory_budget`` are what tracking may take."""
