"""A ``torch.autograd.Function`` of the user's own may move rows: it is followed on copies, or what lies below is marked."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cockpit_core.engine.samples import own_functions
from tests.core.engine.sample_cases import B, batches, layers_of
from tests.core.engine.test_kinds import compare, compare_network, train, watch
from tests.kinds import squares


class Turn(torch.autograd.Function):
    """Rows in the opposite order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.flip(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].flip(0)


class Pick(torch.autograd.Function):
    """``x[order] * factor``, with arguments that are no tensors before and behind, and an output that nobody uses."""

    @staticmethod
    def forward(ctx: Any, name: str, x: Tensor, order: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(order)
        ctx.factor, ctx.shape = factor, x.shape
        return x[order] * factor, x.sum(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple:
        (order,) = ctx.saved_tensors
        own = gradients[0].new_zeros(ctx.shape).index_add(0, order, gradients[0] * ctx.factor)
        return None, own + gradients[1][:, None], None, None


class Relu(torch.autograd.Function):
    """Has the name of a function of torch's, and moves rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.relu().roll(1, 0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].roll(-1, 0) * (ctx.saved_tensors[0] > 0)


class Average(torch.autograd.Function):
    """Samples meet."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x - x.mean(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] - gradients[0].mean(0)


class Clip(torch.autograd.Function):
    """The gradient of a sample depends on how it is scaled."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].clamp(-0.1, 0.1)


class Stateful(torch.autograd.Function):
    """Its backward writes wherever it can."""

    calls = 0
    log: ClassVar[list[float]] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor, owner: nn.Module) -> Tensor:
        ctx.save_for_backward(x.tanh())
        ctx.left, ctx.owner = [1], owner
        return x.tanh()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple:
        (y,) = ctx.saved_tensors
        factor = 1.0 if ctx.left[0] == 1 else 100.0
        ctx.left[0] -= 1
        Stateful.calls += 1
        Stateful.log.append(float(gradients[0].sum()))
        ctx.owner.seen += 1
        with torch.no_grad():
            ctx.owner.noise.add_(torch.randn(()) + random.random() + np.random.rand())
        return gradients[0].mul_(y.square_().neg_().add_(1).mul_(factor)), None


class Twice(torch.autograd.Function):
    """Cannot be run again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        if type(ctx).__name__ != "TwiceBackward":
            raise RuntimeError("not mine")
        return 2 * gradients[0]


FUNCTIONS = {
    "turn": lambda self, h: Turn.apply(h),
    "pick": lambda self, h: Pick.apply("name", h, torch.tensor([2, 0, 3, 1]), 0.5)[0],
    "relu": lambda self, h: Relu.apply(h),
    "average": lambda self, h: Average.apply(h),
    "clip": lambda self, h: Clip.apply(h),
    "twice": lambda self, h: Twice.apply(h),
    "stateful": lambda self, h: Stateful.apply(h, self),
}


class Network(nn.Module):
    def __init__(self, name: str):
        super().__init__()
        self.low, self.high, self.name, self.seen = nn.Linear(3, 5), nn.Linear(5, 2), name, 0
        self.register_buffer("noise", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.high(torch.tanh(FUNCTIONS[self.name](self, self.low(x))))


def run(name: str, folder: Path) -> tuple[Any, list, list[nn.Module]]:
    torch.manual_seed(0)
    model, steps = Network(name).double(), batches(3)
    twin = copy.deepcopy(model)
    data = train(model, steps, squares, folder)
    return data, watch(twin, steps, squares), [model, twin]


@pytest.mark.parametrize("name", ["turn", "pick", "relu"])
def test_rows_are_followed_through_a_function_of_the_users_own(name: str, tmp_path: Path) -> None:
    data, truth, _ = run(name, tmp_path / "run")
    assert {method for method, _ in layers_of(data).values()} == {"rule"}
    assert compare(data, truth) == 3 * 3 * 4
    assert compare_network(data, truth) == 3 * 3
    assert len(data.alphas) == 2


@pytest.mark.parametrize(
    ("name", "words"), [("average", "see each other"), ("clip", "not linear"), ("twice", "RuntimeError")]
)
def test_what_is_not_known_of_a_function_is_marked(name: str, words: str, tmp_path: Path) -> None:
    data, _, _ = run(name, tmp_path / "run")
    layers = layers_of(data)
    assert {name: method for name, (method, _) in layers.items()} == {
        **dict.fromkeys(("low.weight", "low.bias"), "contribution"),
        **dict.fromkeys(("high.weight", "high.bias"), "rule"),
    }
    assert words in layers["low.weight"][1]


def test_following_leaves_no_trace(tmp_path: Path) -> None:
    states, steps = [], batches(3)
    for tracked in (True, False):
        torch.manual_seed(0)
        model, Stateful.calls, Stateful.log = Network("stateful").double(), 0, []
        random.seed(1)
        np.random.seed(1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        if tracked:
            data = train(model, steps, squares, tmp_path / "run")
        else:
            torch.manual_seed(1)
            for (x,) in steps:
                optimizer.zero_grad()
                squares(model(x)).mean().backward()
                optimizer.step()
        drawn = (torch.rand(()).item(), random.random(), np.random.rand())
        values = [p.detach().clone() for p in (*model.parameters(), model.noise)]
        states.append((values, model.seen, Stateful.calls, Stateful.log, drawn))
    (a, *rest), (b, *others) = states
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert rest == others
    assert rest[0] == 3, "the user's own passes"
    assert {method for method, _ in layers_of(data).values()} == {"rule"}


def test_with_several_processes_it_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may wait for the others, who do not look at this step."""
    for name, answer in (("is_initialized", True), ("get_world_size", 2)):
        monkeypatch.setattr(own_functions.torch.distributed, name, lambda *_, answer=answer: answer)
    x = Turn.apply(torch.randn(B, 3, requires_grad=True))
    with pytest.raises(own_functions.Doubt, match="other processes"):
        own_functions.pull_pairs(x.grad_fn, {0: (torch.ones(B, 3), torch.ones(B, 3))})
