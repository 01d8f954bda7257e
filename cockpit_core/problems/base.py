"""What a training problem is: a network, a loss, data in three parts, and how well it did."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Prepare = Callable[[Tensor], Tensor]
Augment = Callable[[Tensor, torch.Generator], Tensor]


def keep(inputs: Tensor) -> Tensor:
    return inputs


@dataclass(frozen=True)
class Split:
    """Samples as they are stored (bytes, where they are pictures) and how a batch of them becomes the network's input.

    Without ``targets`` the network shall give back its input (an autoencoder). ``augment`` draws from the generator that
    shuffles, so a seed fixes both.
    """

    inputs: Tensor
    targets: Tensor | None = None
    prepare: Prepare = keep
    augment: Augment | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, index: Tensor | slice, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        inputs = self.prepare(self.inputs[index])
        if self.augment is not None and generator is not None:
            inputs = self.augment(inputs, generator)
        return inputs, inputs if self.targets is None else self.targets[index]

    def shuffle(self, batch_size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch in a new order; an incomplete last batch is dropped."""
        order = torch.randperm(len(self), generator=generator)
        for number in range(len(self) // batch_size):
            yield self.take(order[batch_size * number : batch_size * (number + 1)], generator)

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Everything once, in order, not augmented."""
        for start in range(0, len(self), batch_size):
            yield self.take(slice(start, start + batch_size))


@dataclass(frozen=True)
class Data:
    train: Split
    valid: Split
    test: Split


@dataclass(frozen=True)
class Problem:
    """One training problem, ready for ``cockpit sweep``.

    name: what it is called; the names of its runs begin with it.
    description: one sentence: which network, which data, where it comes from.
    make_model, make_loss: both are called after ``torch.manual_seed``.
    make_data: takes the folder of the user's data, or None.
    parameters: how many of them are trained; building a network with another number is an error.
    batch_size, epochs: what the benchmark that it comes from uses.
    metric: "accuracy" (more is better) or "loss" (less is better).
    """

    name: str
    description: str
    make_model: Callable[[], nn.Module]
    make_loss: Callable[[], nn.Module]
    make_data: Callable[[Path | None], Data]
    parameters: int
    batch_size: int
    epochs: int
    metric: str = "accuracy"

    def __post_init__(self) -> None:
        if self.metric not in ("accuracy", "loss"):
            raise ValueError(f'{self.name}: metric must be "accuracy" or "loss", got {self.metric!r}')
        if min(self.parameters, self.batch_size, self.epochs) < 1:
            raise ValueError(f"{self.name}: parameters, batch_size and epochs must be at least 1")

    def build(self, seed: int = 0) -> tuple[nn.Module, nn.Module]:
        """A new network and its loss; the same seed gives the same numbers."""
        torch.manual_seed(seed)
        model = self.make_model()
        count = sum(p.numel() for p in model.parameters() if p.requires_grad)
        if count != self.parameters:
            raise ValueError(f"{self.name} must have {self.parameters:,} parameters, but this network has {count:,}")
        return model, self.make_loss()

    def load(self, folder: str | Path | None = None) -> Data:
        data = self.make_data(Path(folder) if folder is not None else None)
        if len(data.train) < self.batch_size:
            raise ValueError(
                f"{self.name}: {len(data.train)} training samples are fewer than a batch of {self.batch_size}"
            )
        return data

    def measure(self, model: nn.Module, loss_fn: nn.Module, split: Split, batch_size: int = 1000) -> dict[str, float]:
        """Mean loss, and the share of right answers where there are any, over a whole split.

        The network is in eval mode meanwhile. Random numbers that it draws there (a variational autoencoder does) are the
        same each time and leave torch's generator as it was.
        """
        was_training = model.training
        model.eval()
        loss, right, answers = 0.0, 0, 0
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            for inputs, targets in split.batches(batch_size):
                outputs = model(inputs)
                loss += float(loss_fn(outputs, targets)) * len(inputs)
                if self.metric == "accuracy":
                    right += int((outputs.argmax(1) == targets).sum())
                    answers += targets.numel()
        model.train(was_training)
        measured = {"loss": loss / max(len(split), 1)}
        return {**measured, "accuracy": right / answers} if answers else measured


def hold_out(
    inputs: Tensor, targets: Tensor, count: int = 10_000
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and validation samples: ``count`` of them, at most a fifth, drawn once and for all, whatever the seed."""
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(42))
    held = min(count, len(inputs) // 5)
    train, valid = order[held:].sort()[0], order[:held].sort()[0]
    return (inputs[train], targets[train]), (inputs[valid], targets[valid])


def split_images(images: Any, prepare: Prepare, augment: Augment | None = None, labels: bool = True) -> Data:
    """``Images`` as train, valid and test; without ``labels`` the pictures themselves are the targets."""
    tensors = [torch.from_numpy(array.copy()) for array in images]
    tensors[1], tensors[3] = tensors[1].long(), tensors[3].long()
    train, valid = hold_out(tensors[0], tensors[1])
    test = tensors[2], tensors[3]
    parts = [(inputs, targets if labels else None) for inputs, targets in (train, valid, test)]
    return Data(Split(*parts[0], prepare, augment), Split(*parts[1], prepare), Split(*parts[2], prepare))
