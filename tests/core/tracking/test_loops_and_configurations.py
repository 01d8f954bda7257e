"""Every kind of loop with every configuration: no error inside, and training is bit for bit the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import cockpit_core

BATCHES = 5


class Net(nn.Module):
    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 8), nn.ReLU())
        self.head = nn.Linear(8, 3)
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(self.body, x, use_reentrant=False) if self.checkpointed else self.body(x)
        return self.head(hidden)


class Loop:
    """A model, its loss and optimizers, and one training step on a batch."""

    def __init__(self, step: Callable, optimizers: Callable, **options: Any):
        torch.manual_seed(0)
        self.model, self.loss_fn = Net(**options), nn.CrossEntropyLoss()
        self.optimizers = optimizers(self.model)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        self.step = step

    def run(self) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(1)
        torch.manual_seed(2)
        for _ in range(BATCHES):
            self.step(self, torch.randn(8, 6, generator=generator), torch.randint(3, (8,), generator=generator))
        state = dict(self.model.state_dict()) | {"random": torch.get_rng_state()}
        state |= {f"grad {n}": p.grad for n, p in self.model.named_parameters() if p.grad is not None}
        return {name: value.clone() for name, value in state.items()}

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss_fn(self.model(x), y)

    def clear(self, **options: Any) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(**options)

    def advance(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()


def accumulate(loop: Loop, x: Tensor, y: Tensor) -> None:
    loop.clear()
    for part in (slice(0, 4), slice(4, 8)):
        (loop.loss(x[part], y[part]) / 2).backward()
    loop.advance()


def clip(loop: Loop, x: Tensor, y: Tensor) -> None:
    loop.clear()
    loop.loss(x, y).backward()
    nn.utils.clip_grad_norm_(loop.model.parameters(), 0.1)
    loop.advance()


def keep_zeros(loop: Loop, x: Tensor, y: Tensor) -> None:
    loop.clear(set_to_none=False)
    loop.loss(x, y).backward()
    loop.advance()


def two_losses(loop: Loop, x: Tensor, y: Tensor) -> None:
    loop.clear()
    outputs = loop.model(x)
    (loop.loss_fn(outputs, y) + 0.5 * loop.loss_fn(outputs, y.flip(0))).backward()
    loop.advance()


def two_batches(loop: Loop, x: Tensor, y: Tensor) -> None:
    loop.clear()
    (loop.loss(x[:3], y[:3]) + loop.loss(x[3:], y[3:])).backward()
    loop.advance()


def closure(loop: Loop, x: Tensor, y: Tensor) -> None:
    def again() -> Tensor:
        loop.clear()
        loss = loop.loss(x, y)
        loss.backward()
        return loss

    loop.optimizers[0].step(again)


def validated(loop: Loop, x: Tensor, y: Tensor) -> None:
    clip(loop, x, y)
    loop.model.eval()
    with torch.no_grad():
        loop.loss(x, y)
    loop.model.train()


def mixed(dtype: torch.dtype, scaled: bool) -> Callable:
    def step(loop: Loop, x: Tensor, y: Tensor) -> None:
        loop.clear()
        with torch.autocast("cpu", dtype):
            loss = loop.loss(x, y)
        if scaled:
            loop.scaler.scale(loss).backward()
            loop.scaler.step(loop.optimizers[0])
            loop.scaler.update()
        else:
            loss.backward()
            loop.advance()

    return step


def all_inside(loop: Loop, x: Tensor, y: Tensor) -> None:
    """Backward pass and step too: not as torch says, but seen often."""
    with torch.autocast("cpu", torch.bfloat16):
        clip(loop, x, y)


def sgd(model: Net) -> list:
    return [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)]


def lbfgs(model: Net) -> list:
    return [torch.optim.LBFGS(model.parameters(), max_iter=2)]


def two(model: Net) -> list:
    return [torch.optim.Adam(model.body.parameters(), lr=0.01), torch.optim.SGD(model.head.parameters(), lr=0.1)]


LOOPS: dict[str, Callable[[], Loop]] = {
    "accumulation": lambda: Loop(accumulate, sgd),
    "clipping": lambda: Loop(clip, sgd),
    "set_to_none=False": lambda: Loop(keep_zeros, sgd),
    "two losses": lambda: Loop(two_losses, sgd),
    "two batches": lambda: Loop(two_batches, sgd),
    "closure": lambda: Loop(closure, lbfgs),
    "two optimizers": lambda: Loop(clip, two),
    "validation in between": lambda: Loop(validated, sgd),
    "checkpointed": lambda: Loop(clip, sgd, checkpointed=True),
    "bfloat16": lambda: Loop(mixed(torch.bfloat16, False), sgd),
    "all inside autocast": lambda: Loop(all_inside, sgd),
    "float16 with a scaler": lambda: Loop(mixed(torch.float16, True), sgd),
}


@pytest.mark.filterwarnings("ignore")  # what has no value says so
@pytest.mark.parametrize("config", ["economy", "business", "full"])
@pytest.mark.parametrize("name", LOOPS)
def test_every_loop_runs_bit_for_bit_with_every_configuration(name: str, config: str, tmp_path: Path) -> None:
    plain, loop = LOOPS[name](), LOOPS[name]()
    optimizers: Any = loop.optimizers if len(loop.optimizers) > 1 else loop.optimizers[0]
    with cockpit_core.track(
        loop.model, loop.loss_fn, optimizers, tmp_path / "run", config=config, on_error="raise"
    ) as run:
        tracked = loop.run()
    untracked = plain.run()
    assert [n for n, value in untracked.items() if not torch.equal(value, tracked[n])] == []
    assert len(run.data.scalars("Loss")[0]) == BATCHES
    assert len(run.data.scalars("NormTest")[0]) >= BATCHES - 1  # the first step may not know yet how many passes come
    assert run.data.header.covered == 1.0
