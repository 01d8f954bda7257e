"""A tracked step asks the device for numbers a few times, however many layers there are, and never while it computes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import cockpit_core
from cockpit_core.foundation import transfer
from cockpit_core.kernels.native import striding

WAITS = ("aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal", "aten::nonzero")
FEW, MANY = 13, 25  # layers: signals look at twelve activations of both

MOST_CALLS = 30  # of torch, per parameter tensor
MOST_WAITS = 3  # beside the transfers of what lies on another device, which the CPU does not show


class Listener(TorchDispatchMode):
    """Counts calls, and those that wait: a number is read, or the way to go depends on one."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.waits, self.within = 0, 0, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        if function._schema.name in WAITS:
            self.waits += 1
            self.within += torch._C._current_graph_task_id() != -1
        return function(*args, **(kwargs or {}))


def count(
    layers: int, folder: Path | None, monkeypatch: pytest.MonkeyPatch, optimizer: Any, config: str = ""
) -> Listener:
    """Of the fifth step. A list of a tensor's numbers is one transfer, and takes no call on the CPU: counted apart."""
    torch.manual_seed(0)
    stack = [module for _ in range(layers - 1) for module in (nn.Linear(8, 8), nn.Tanh())]
    model, loss_fn = nn.Sequential(*stack, nn.Linear(8, 3)), nn.CrossEntropyLoss()
    steps, listener = optimizer(model.parameters()), Listener()

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            listener.waits += 1
            return original(tensor, *args, **kwargs)

        return call

    tracked = (
        cockpit_core.track(model, loss_fn, steps, folder, on_error="raise", config=config) if config else nullcontext()
    )
    with tracked:
        for step in range(5):
            inputs, labels = torch.randn(6, 8), torch.randint(0, 3, (6,))
            with listener if step == 4 else nullcontext(), monkeypatch.context() as patches:
                if step == 4:
                    patches.setattr(Tensor, "tolist", counted(Tensor.tolist))
                steps.zero_grad()
                loss_fn(model(inputs), labels).backward()
                steps.step()
    return listener


OPTIMIZERS = {"SGD": lambda p: torch.optim.SGD(p, 0.1), "Adam": lambda p: torch.optim.Adam(p, 1e-3)}


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_waits_do_not_grow_with_the_layers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, calls = [], []
    for layers in (FEW, MANY):
        tracked = count(layers, tmp_path / str(layers), monkeypatch, OPTIMIZERS[name], "economy")
        plain = count(layers, None, monkeypatch, OPTIMIZERS[name])  # Adam itself reads a number per tensor
        waits.append(tracked.waits - plain.waits)
        calls.append(tracked.calls - plain.calls)
    assert waits[0] == waits[1] <= MOST_WAITS, waits
    assert (calls[1] - calls[0]) / (2 * (MANY - FEW)) < MOST_CALLS


def test_no_layer_is_waited_for_inside_the_backward_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = count(MANY, tmp_path / "run", monkeypatch, OPTIMIZERS["SGD"], "economy")
    assert found.within <= 1  # the loss itself, on the CPU: is it out of line?


def test_what_lies_elsewhere_is_brought_over_three_times_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With tensors that are taken for those of another device; the stand-in counts its own waits."""
    brought: list[tuple[int, bool]] = []
    original = transfer.bring

    def bring(tensors: list[Tensor]) -> list[Tensor]:
        brought.append((len(tensors), torch._C._current_graph_task_id() != -1))
        return original(tensors)

    monkeypatch.setattr(transfer, "is_here", lambda tensor: False)
    monkeypatch.setattr(transfer, "bring", bring)
    monkeypatch.setattr(striding, "can_walk", lambda tensors: False)  # only what is on the host is walked through
    model, loss_fn = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", on_error="raise", config="economy"):
        for _ in range(5):
            brought.clear()
            optimizer.zero_grad()
            loss_fn(model(torch.randn(6, 8)), torch.randint(0, 3, (6,))).backward()
            optimizer.step()
    assert 2 <= len(brought) <= 3
    assert not any(inside for _, inside in brought)
