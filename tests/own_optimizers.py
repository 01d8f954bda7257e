"""Optimizers as people write them themselves: the shapes that are met in the wild, in as few lines as they take."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer


class Sam(Optimizer):
    """Sharpness-aware minimisation in two calls; the inner optimizer takes the step, its own ``step`` is never called."""

    def __init__(self, params: Iterable[Tensor], rho: float = 0.05, **options: Any) -> None:
        super().__init__(params, {"rho": rho, **options})
        self.base_optimizer = SGD(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        norm = torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"]]).norm()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.data.clone()
                p.add_(p.grad * (group["rho"] / (norm + 1e-12)))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        self.move_back()
        self.base_optimizer.step()
        self.zero_grad()

    def move_back(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old"]

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is not None
        self.first_step()
        with torch.enable_grad():
            closure()
        self.second_step()


class SamByData(Sam):
    """The same through ``.data``, which leaves no trace in a tensor's version, and back by subtraction."""

    @torch.no_grad()
    def first_step(self) -> None:
        norm = torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"]]).norm()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["by"] = p.grad * (group["rho"] / (norm + 1e-12))
                p.data.add_(self.state[p]["by"])
        self.zero_grad(set_to_none=False)

    def move_back(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.data.sub_(self.state[p]["by"])


class SamAlone(Sam):
    """It moves the parameters itself: no ``step`` of any optimizer is ever called."""

    @torch.no_grad()
    def second_step(self) -> None:
        self.move_back()
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad)
        self.zero_grad()


class SamInOneCall(Sam):
    """``step()`` without a closure that does all its backward passes itself."""

    evaluate: Callable[[], Tensor]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.enable_grad():
            self.evaluate().backward()
        self.first_step()
        with torch.enable_grad():
            self.evaluate().backward()
        self.second_step()


class Longer(SGD):
    """``step`` calls that of its base class: both run the hooks."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        return super().step(closure)


class Lookahead:
    """No Optimizer: slow weights that the fast ones are pulled to at every second step, after the inner step."""

    def __init__(self, optimizer: Optimizer, every: int = 2) -> None:
        self.optimizer, self.every, self.count = optimizer, every, 0
        self.param_groups = optimizer.param_groups
        self.slow = [p.detach().clone() for group in self.param_groups for p in group["params"]]

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    @torch.no_grad()
    def step(self) -> None:
        self.optimizer.step()
        self.count += 1
        if self.count % self.every == 0:
            for slow, p in zip(self.slow, (p for g in self.param_groups for p in g["params"]), strict=True):
                slow.add_(0.5 * (p - slow))
                p.copy_(slow)


class LookaheadOptimizer(Optimizer):
    """The same as an Optimizer, with the inner one inside."""

    def __init__(self, optimizer: Optimizer, every: int = 2) -> None:
        super().__init__(optimizer.param_groups, {})
        self.optimizer = optimizer
        self.inner = Lookahead(optimizer, every)
        self.param_groups = optimizer.param_groups

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()


class Lars:
    """No Optimizer: scales each gradient, and passes the step on."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optim = optimizer

    def zero_grad(self) -> None:
        self.optim.zero_grad()

    @torch.no_grad()
    def step(self) -> None:
        for group in self.optim.param_groups:
            for p in group["params"]:
                p.grad.mul_(p.norm() / (p.grad.norm() + 1e-8))
        self.optim.step()


class ScheduleFree(Optimizer):
    """SGD that trains at an interpolation y and evaluates at an average x, with ``train()`` and ``eval()`` in between."""

    def __init__(self, params: Iterable[Tensor], lr: float = 0.1, beta: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "beta": beta})
        self.count = 0
        for p in self.parameters():
            self.state[p]["z"] = p.detach().clone()

    def parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def eval(self) -> None:
        for p in self.parameters():
            p.lerp_(self.state[p]["z"], 1 - 1 / self.defaults["beta"])

    @torch.no_grad()
    def train(self) -> None:
        for p in self.parameters():
            p.lerp_(self.state[p]["z"], 1 - self.defaults["beta"])

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.count += 1
        beta, share = self.defaults["beta"], 1 / self.count
        for p in self.parameters():
            z = self.state[p]["z"]
            x = p.lerp(z, 1 - 1 / beta)
            z.sub_(self.defaults["lr"] * p.grad)
            x.lerp_(z, share)
            p.copy_(x.lerp(z, 1 - beta))


class ByHand:
    """A plain class that is no Optimizer and holds none."""

    def __init__(self, params: Iterable[Tensor], lr: float) -> None:
        self.params, self.lr = list(params), lr

    @torch.no_grad()
    def step(self) -> None:
        for p in self.params:
            p.sub_(self.lr * p.grad)
