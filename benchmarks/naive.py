"""The statistics of "economy" the obvious way, against ours: ``python -m benchmarks.naive``.

All individual gradients at once, with ``torch.func``.

In its favour: the mean of the individual gradients serves as the gradient, so that there is no backward pass besides
theirs, and nothing is written to disk.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from benchmarks.measure import Effort, Step, Training, compare, take_turns, tracked
from benchmarks.networks import PAPER, Network
from benchmarks.results import kept, make_parser, parse, report

NETWORKS = ("cifar10_3c3d", "mnist_mlp")
TITLE = "torch.func, all at once"


class NaiveEconomy(Training):
    """A training step that stores the individual gradients of the whole network, and reduces them afterwards."""

    def __init__(self, model: nn.Module, optimizer: str = "SGD"):
        super().__init__(model, optimizer)
        loss_fn = nn.CrossEntropyLoss()
        self.start = self.copy()
        self.update = {name: torch.zeros_like(p) for name, p in self.start.items()}

        def loss_of(parameters: dict[str, Tensor], inputs: Tensor, label: Tensor) -> Tensor:
            return loss_fn(functional_call(model, parameters, (inputs[None],)), label[None])

        self.individual: Any = vmap(grad_and_value(loss_of), in_dims=(None, 0, 0))

    def copy(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def __call__(self, inputs: Tensor, labels: Tensor) -> None:
        before = self.copy()
        individual, self.values = self.individual(before, inputs, labels)
        for name, p in self.model.named_parameters():
            p.grad = individual[name].mean(0)
        self.statistics = {name: self.reduce(name, G) for name, G in individual.items()}
        del individual
        self.optimizer.step()
        after = self.copy()
        self.update = {name: after[name] - before[name] for name in after}
        self.distance = {name: (after[name] - self.start[name]).norm() for name in after}

    def reduce(self, name: str, G: Tensor) -> dict[str, Tensor]:
        """What the tests (norm, inner product, orthogonality), Alpha and the histogram need of [N, ...] gradients."""
        flat = G.flatten(1)
        mean = flat.mean(0)
        return {
            "norms": flat.square().sum(1),
            "squares": flat.square().sum(0),
            "on the gradient": flat @ mean,
            "on the last step": flat @ self.update[name].flatten(),
            "histogram": torch.histc(flat.clamp(-2, 2), 100, -2, 2),
        }


def measure(network: Network, effort: Effort) -> dict[str, Any]:
    with tracked(network.train(), config="economy") as training:
        contestants: dict[str, Step] = {
            "untracked": network.train(),
            "economy": training,
            TITLE: NaiveEconomy(network.make()),
        }
        return compare(take_turns(contestants, network.batch, effort))


def draw(content: dict[str, Any], options: Namespace) -> None:
    from benchmarks.figures import draw_dots, figure

    found = content["networks"]
    if found:
        with figure(options.results, "against_naive", size=(6, 1.1 + 0.3 * len(found))) as axes:
            draw_dots(axes, found, ["economy", TITLE], "multiple of the untracked step")


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(make_parser(__doc__, rounds=11), arguments)
    content: dict[str, Any] = {"networks": {}}
    with kept("against_naive", content, options, draw) as save:
        for name in ("mnist_logreg",) if options.quick else NETWORKS:
            content["networks"][name] = rows = measure(PAPER[name], Effort(options.rounds, clock=options.clock))
            report(f"individual gradients with torch.func, {name}", rows)
            save()


if __name__ == "__main__":
    main()
