"""Run by ``peers.py`` inside an environment that has the other tools beside ours: all of them take turns in one process.

Prints one line of JSON: by contestant the seconds of each step, or why it cannot.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from benchmarks.architectures import COMMON, ResidualBlock
from benchmarks.measure import Effort, Step, Training, take_turns, tracked
from benchmarks.networks import PAPER, Network, classify


class Block(ResidualBlock):
    """Nothing in place: hooks of the other tools do not allow it."""

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(inner)) + self.shortcut(x))


def resnet_with_groups() -> nn.Module:
    """Individual gradients through BatchNorm are not defined for all of the tools."""
    widths = (16, 16, 16, 32, 32, 64, 64)
    blocks = [Block(i, o, 2 if o > i else 1) for i, o in pairwise(widths)]
    stem = (nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    model = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, nn.GroupNorm(4, child.num_features))
    return model


NETWORKS = {
    "LSTM": COMMON["LSTM classifier"],
    "transformer": PAPER["transformer"],
    "ResNet-14, GroupNorm": Network("resnet14", resnet_with_groups, classify((3, 32, 32), 10), 16, 175_258),
    "3C3D": PAPER["cifar10_3c3d"],
}


class ByFunctions(Training):
    """``vmap(grad(...))``; the mean serves as the gradient, so there is no backward pass besides."""

    def __init__(self, model: nn.Module):
        super().__init__(model)
        loss_fn = nn.CrossEntropyLoss()

        def loss_of(parameters: dict[str, Tensor], inputs: Tensor, label: Tensor) -> Tensor:
            return loss_fn(functional_call(model, parameters, (inputs[None],)), label[None])

        self.individual: Any = vmap(grad(loss_of), in_dims=(None, 0, 0))

    def __call__(self, inputs: Tensor, labels: Tensor) -> None:
        parameters = {name: p.detach() for name, p in self.model.named_parameters()}
        found = self.individual(parameters, inputs, labels)
        self.norms = torch.stack([g.flatten(1).square().sum(1) for g in found.values()]).sum(0).sqrt()
        for name, p in self.model.named_parameters():
            p.grad = found[name].mean(0)
        self.optimizer.step()


class ByOpacus(Training):
    """Its hooks store ``grad_sample``; layers that it does not know are replaced by its own first, as it asks for."""

    def __init__(self, model: nn.Module):
        from opacus import GradSampleModule
        from opacus.validators import ModuleValidator

        super().__init__(GradSampleModule(ModuleValidator.fix(model)))

    def __call__(self, inputs: Tensor, labels: Tensor) -> None:
        self.optimizer.zero_grad()
        assert self.loss_fn is not None
        self.loss_fn(self.model(inputs), labels).backward()
        samples = [p.grad_sample for p in self.model.parameters()]
        self.norms = torch.stack([g.flatten(1).square().sum(1) for g in samples]).sum(0).sqrt()
        for p in self.model.parameters():
            p.grad_sample = None
        self.optimizer.step()


class ByGhosts(Training):
    """Opacus without stored gradients: norms alone, where it has a rule for them."""

    def __init__(self, model: nn.Module):
        from opacus.grad_sample import GradSampleModuleFastGradientClipping
        from opacus.validators import ModuleValidator

        super().__init__(
            GradSampleModuleFastGradientClipping(ModuleValidator.fix(model), max_grad_norm=1.0, use_ghost_clipping=True)
        )

    def __call__(self, inputs: Tensor, labels: Tensor) -> None:
        self.optimizer.zero_grad()
        assert self.loss_fn is not None
        self.loss_fn(self.model(inputs), labels).backward()
        self.norms = self.model.get_norm_sample()
        self.optimizer.step()


class ByCockpit2021(Training):
    """Its test of norms, which is the cheapest that asks for them."""

    def __init__(self, model: nn.Module):
        from backpack import extend
        from cockpit import Cockpit
        from cockpit.quantities import NormTest
        from cockpit.utils import schedules

        super().__init__(extend(model))
        self.loss, self.each = extend(nn.CrossEntropyLoss()), nn.CrossEntropyLoss(reduction="none")
        self.cockpit = Cockpit(model.parameters(), quantities=[NormTest(schedules.linear(1))])
        self.count = 0

    def __call__(self, inputs: Tensor, labels: Tensor) -> None:
        self.optimizer.zero_grad()
        outputs = self.model(inputs)
        loss = self.loss(outputs, labels)
        info = {"batch_size": len(inputs), "individual_losses": self.each(outputs, labels), "loss": loss}
        with self.cockpit(self.count, info={**info, "optimizer": self.optimizer}):
            loss.backward(create_graph=self.cockpit.create_graph(self.count))
        self.optimizer.step()
        self.count += 1


class ByCurvlinops(Training):
    """The largest eigenvalue of the Hessian by scipy's Lanczos, to the tolerance of ours; then the step."""

    def __call__(self, inputs: Tensor, labels: Tensor) -> None:
        from curvlinops import HessianLinearOperator
        from scipy.sparse.linalg import eigsh

        parameters = list(self.model.parameters())
        hessian = HessianLinearOperator(
            self.model, self.loss_fn, parameters, [(inputs, labels)], check_deterministic=False
        )
        self.value = eigsh(hessian.to_scipy(), k=1, which="LA", tol=5e-3, return_eigenvectors=False)
        super().__call__(inputs, labels)


NORMS: dict[str, Callable[[nn.Module], Training]] = {
    "torch.func": ByFunctions, "opacus": ByOpacus, "opacus, ghost norms": ByGhosts, "cockpit-for-pytorch": ByCockpit2021,
}  # fmt: skip
EIGENVALUE: dict[str, Callable[[nn.Module], Training]] = {"curvlinops": ByCurvlinops}
TASKS = {"norms": (["NormTest"], NORMS), "eigenvalue": (["HessMaxEV"], EIGENVALUE)}


def find_able(network: Network, size: int, ways: dict[str, Callable[[nn.Module], Training]]) -> tuple[dict, dict]:
    """Those that get through one step, and why others do not."""
    able: dict[str, Step] = {}
    reasons: dict[str, str] = {}
    for name, make in ways.items():
        try:
            training = make(network.make())
            training(*network.batch(size))
            able[name] = training
        except Exception as error:
            reasons[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    return able, reasons


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--clock", default="wall")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # old tools under a new torch
    network, (config, ways) = NETWORKS[options.network], TASKS[options.task]
    able, reasons = find_able(network, options.size, ways)
    with ExitStack() as stack:
        ours = stack.enter_context(tracked(network.train(), config=config, schedule=1))
        alone = stack.enter_context(tracked(network.train(), judged=False, config=config, schedule=1))
        contestants = {"untracked": network.train(), "Cockpit": ours, "Cockpit, without diagnosis": alone, **able}
        effort = Effort(options.rounds, least=3, seconds=90, clock=options.clock)
        times = take_turns(contestants, lambda: network.batch(options.size), effort)
    print(json.dumps({"times": times, "reasons": reasons}))


if __name__ == "__main__":
    main()
