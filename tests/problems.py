"""Small training problems in float64 that the tests name; with so few parameters, a whole Hessian is cheap.

``problem.make()`` returns a fresh model, its loss and a function that yields the batches. The same seed always gives
the same three, and neither the data nor the weights touch torch's global random state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Batches = Callable[[int], Iterator[tuple[Tensor, Tensor]]]
Groups = Callable[[nn.Module], list[dict[str, object]]]


def everything_in_one_group(model: nn.Module) -> list[dict[str, object]]:
    return [{"params": [p for p in model.parameters() if p.requires_grad]}]


def weights_slower_than_biases(model: nn.Module) -> list[dict[str, object]]:
    weights = [p for p in model.parameters() if p.dim() > 1]
    biases = [p for p in model.parameters() if p.dim() <= 1]
    return [{"params": weights}, {"params": biases, "lr": 0.02}]


@dataclass(frozen=True)
class Problem:
    name: str
    build_model: Callable[[], nn.Module]
    build_loss: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    build_target: Callable[[torch.Generator, int], Tensor]
    batch_size: int = 7
    groups: Groups = everything_in_one_group
    build_input: Callable[[torch.Generator, int], Tensor] | None = None  # where inputs are no normal random numbers

    def make(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, nn.Module, Batches]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self.build_model().to(dtype)
        loss_fn = self.build_loss().to(dtype)

        def batches(steps: int) -> Iterator[tuple[Tensor, Tensor]]:
            generator = torch.Generator().manual_seed(seed + 1)
            for _ in range(steps):
                inputs = (self.build_input or self.build_normal)(generator, self.batch_size)
                target = self.build_target(generator, self.batch_size)
                yield to_dtype(inputs, dtype), to_dtype(target, dtype)

        return model, loss_fn, batches

    def build_normal(self, generator: torch.Generator, size: int) -> Tensor:
        return torch.randn(size, *self.input_shape, generator=generator, dtype=torch.float64)


def to_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


class Residual(nn.Module):
    """``x + f(x)``: the branch that BackPACK's diagonal Hessian has no rule for."""

    def __init__(self, width: int, activation: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.activation = activation
        self.outer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(self.activation(self.inner(x)))


class CalledTwice(nn.Module):
    """One Linear applied twice: both uses count into the individual gradient before anything is squared."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(5, 6)
        self.again = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.stem(x))
        return self.head(torch.tanh(self.again(torch.tanh(self.again(hidden)))))


class TiedWeights(nn.Module):
    """Two modules that own the same Parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.second = nn.Linear(5, 5)
        self.second.weight = self.first.weight
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


def classes(count: int) -> Callable[[torch.Generator, int], Tensor]:
    return lambda generator, size: torch.randint(count, (size,), generator=generator)


def classes_of_which_some_are_ignored(generator: torch.Generator, size: int) -> Tensor:
    target = torch.randint(3, (size,), generator=generator)
    target[1] = -100
    return target


def numbers(outputs: int) -> Callable[[torch.Generator, int], Tensor]:
    return lambda generator, size: torch.randn(size, outputs, generator=generator, dtype=torch.float64)


def build_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))


def build_cnn() -> nn.Module:
    convolution = nn.Conv2d(2, 3, 3, stride=2, padding=1)
    return nn.Sequential(convolution, nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3))


def build_regression() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 3))


def build_residual(activation: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), Residual(6, activation()), nn.Linear(6, 3))


def build_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Dropout(0.4), nn.Linear(9, 4))


def build_batchnorm() -> nn.Module:
    # no bias before the normalisation: its gradient is zero and every ratio with it is rounding noise
    convolution = nn.Conv2d(2, 3, 3, padding=1, bias=False)
    tail = [nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 5, bias=False)]
    return nn.Sequential(convolution, *tail, nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


def build_frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))
    model[0].weight.requires_grad_(False)
    return model


def build_weighted_loss() -> nn.Module:
    return nn.CrossEntropyLoss(weight=torch.tensor([0.5, 1.0, 2.5]), label_smoothing=0.1)


PROBLEMS = {
    problem.name: problem
    for problem in (
        Problem("mlp", build_mlp, nn.CrossEntropyLoss, (6,), classes(4)),
        Problem("cnn", build_cnn, nn.CrossEntropyLoss, (2, 8, 8), classes(3), batch_size=6),
        Problem("regression", build_regression, nn.MSELoss, (4,), numbers(3)),
        Problem("residual_tanh", build_residual(nn.Tanh), nn.CrossEntropyLoss, (5,), classes(3)),
        Problem("residual_relu", build_residual(nn.ReLU), nn.CrossEntropyLoss, (5,), classes(3)),
        Problem("dropout", build_dropout, nn.CrossEntropyLoss, (6,), classes(4)),
        Problem("batchnorm", build_batchnorm, nn.CrossEntropyLoss, (2, 4, 4), classes(3)),
        Problem("sum_reduction", build_mlp, lambda: nn.CrossEntropyLoss(reduction="sum"), (6,), classes(4)),
        Problem("mse_sum", build_regression, lambda: nn.MSELoss(reduction="sum"), (4,), numbers(3)),
        Problem("weighted", build_residual(nn.Tanh), build_weighted_loss, (5,), classes(3)),
        Problem("ignored", build_residual(nn.Tanh), build_weighted_loss, (5,), classes_of_which_some_are_ignored),
        Problem("groups", build_mlp, nn.CrossEntropyLoss, (6,), classes(4), groups=weights_slower_than_biases),
        Problem("called_twice", CalledTwice, nn.CrossEntropyLoss, (5,), classes(3)),
        Problem("tied", TiedWeights, nn.CrossEntropyLoss, (5,), classes(3)),
        Problem("frozen", build_frozen, nn.CrossEntropyLoss, (6,), classes(3)),
    )
}
