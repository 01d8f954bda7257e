"""Does a budget hold? ``python -m benchmarks.budget``: what tracking adds to a training, beside an untracked twin.

Both train in turns, block by block, in one process. A pair is one such training from its first step; the share is what the
tracked one took more, over the first 300 and over all steps. Median of five pairs, with the smallest and the largest.
``--cpu`` takes processor time, for a machine that others use too; ``--idle`` measures the hooks alone.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import cockpit_core
from cockpit_core.problems.cifar import make_3c3d

BLOCK = 20
FIRST = 300


class Tokens(nn.Module):
    """A small GPT: causal self-attention, two blocks."""

    def __init__(self, vocabulary: int = 64, width: int = 64, heads: int = 4, length: int = 32, blocks: int = 2):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, blocks, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        return self.head(self.blocks(h, mask=self.mask)).transpose(1, 2)


def make_logreg(batch: int = 128) -> tuple[nn.Module, Tensor, Tensor]:
    """Its step takes less than 0.2 ms on a fast core; the first record takes as long as fifteen of them."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    return model, torch.randn(batch, 1, 28, 28), torch.randint(0, 10, (batch,))


def make_larger_logreg() -> tuple[nn.Module, Tensor, Tensor]:
    """About 0.6 ms."""
    return make_logreg(512)


def make_mlp() -> tuple[nn.Module, Tensor, Tensor]:
    sizes = [(784, 128), (128, 64), (64, 10)]
    layers = [part for a, b in sizes for part in (nn.Linear(a, b), nn.ReLU())][:-1]
    return nn.Sequential(nn.Flatten(), *layers), torch.randn(128, 1, 28, 28), torch.randint(0, 10, (128,))


def make_cnn() -> tuple[nn.Module, Tensor, Tensor]:
    """3C3D, the network of the paper's figures."""
    return make_3c3d(), torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))


def make_gpt() -> tuple[nn.Module, Tensor, Tensor]:
    return Tokens(), torch.randint(0, 64, (16, 32)), torch.randint(0, 64, (16, 32))


PROBLEMS: dict[str, Callable[[], tuple[nn.Module, Tensor, Tensor]]] = {
    "logreg": make_logreg,
    "logreg of 512": make_larger_logreg,
    "mlp": make_mlp,
    "gpt": make_gpt,
    "3c3d": make_cnn,
}


@dataclass
class Training:
    """One of the twins."""

    name: str

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.model, self.x, self.y = PROBLEMS[self.name]()
        self.loss_fn = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def run(self, steps: int) -> float:
        began = time.perf_counter()
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.loss_fn(self.model(self.x), self.y).backward()
            self.optimizer.step()
        return time.perf_counter() - began


def measure_pair(name: str, steps: int, options: dict) -> tuple[list[float], cockpit_core.RunData, float]:
    """Shares over the first steps and over all, the log, and what the run says itself."""
    ours, twin = Training(name), Training(name)
    twin.run(BLOCK)
    ours.run(BLOCK)  # torch's own first time is nobody's
    shares, taken = [], [0.0, 0.0]
    with (
        tempfile.TemporaryDirectory() as folder,
        cockpit_core.track(ours.model, ours.loss_fn, ours.optimizer, Path(folder) / "run", **options) as run,
    ):
        account, left = run._tracker.pace.account, time.perf_counter()
        for block in range(steps // BLOCK):
            account.mark += time.perf_counter() - left  # the twin's turn is no training of ours
            taken[0] += ours.run(BLOCK)
            left = time.perf_counter()
            taken[1] += twin.run(BLOCK)
            if (block + 1) * BLOCK == FIRST:
                shares.append(taken[0] / taken[1] - 1)
        shares.append(taken[0] / taken[1] - 1)
        return shares, run.data, account.spent / taken[1]


def describe(values: list[float]) -> str:
    return f"{100 * statistics.median(values):5.1f} % ({100 * min(values):.1f} to {100 * max(values):.1f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS), help=f"of {', '.join(PROBLEMS)}")
    parser.add_argument("--budget", type=float, default=0.05)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--idle", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if given.cpu:
        time.perf_counter = time.process_time  # type: ignore[assignment]
    options = {"config": "full", "schedule": 10**9} if given.idle else {"budget": given.budget}
    for name in given.problems:
        pairs = []
        for number in range(given.pairs):
            print(f"{name}: pair {number + 1} of {given.pairs}", end="\r", file=sys.stderr, flush=True)
            pairs.append(measure_pair(name, given.steps, options))
        first, whole = ([shares[k] for shares, _, _ in pairs] for k in (0, -1))
        data = pairs[-1][1]
        counts = {
            q: len(data.scalars(q)[0]) for q in ("Loss", "NormTest", "Alpha", "BatchSharpness") if q in data.names
        }
        print(f"{name:8} first {FIRST}: {describe(first)}   {given.steps}: {describe(whole)}   "
              f"own account {describe([own for _, _, own in pairs])}   steps with {counts}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
