"""A training on the stand-in device, and the same one on the CPU, for the tests beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import cockpit_core
from tests.device.stand_in import NAME, load
from tests.problems import PROBLEMS
from tests.training import OPTIMIZERS

STAND_IN = load()
CPU = torch.device("cpu")
torch.__future__.set_swap_module_params_on_conversion(True)  # else tied weights are untied on their way to the device

NOT_COMPARED = ("Time",)


def move(value: Any, device: torch.device) -> Any:
    return tuple(move(part, device) for part in value) if isinstance(value, tuple) else value.to(device)


class Training:
    """``calculate(model, batch)``: the loss that is differentiated; ``loss_fn``: what ``track`` is told of it."""

    def __init__(
        self, model: nn.Module, loss_fn: Any, optimizer: Callable, batches: Iterable, device: torch.device,
        calculate: Callable[[nn.Module, tuple], Tensor],
    ):  # fmt: skip
        self.model, self.loss_fn, self.device, self.calculate = model.to(device), loss_fn, device, calculate
        self.batches = [move(batch, device) for batch in batches]
        self.optimizer = optimizer(self.model)

    def run(self) -> dict[str, Tensor]:
        """All that a training leaves behind, on the CPU."""
        torch.manual_seed(2)
        losses = []
        for batch in self.batches:
            self.optimizer.zero_grad()
            loss = self.calculate(self.model, batch)
            loss.backward()
            self.optimizer.step()
            losses.append(loss.detach())
        return {name: value.cpu() for name, value in self.state(losses).items()}

    def state(self, losses: list[Tensor]) -> dict[str, Tensor]:
        state = {"losses": torch.stack(losses), "random": torch.get_rng_state()}
        state["random of the device"] = torch.get_device_module(NAME).get_rng_state()
        state |= {f"state {name}": value.detach().clone() for name, value in self.model.state_dict().items()}
        state |= {f"grad {n}": p.grad.clone() for n, p in self.model.named_parameters() if p.grad is not None}
        for i, entry in enumerate(self.optimizer.state.values()):
            state |= {f"optimizer {i} {key}": torch.as_tensor(value).clone() for key, value in entry.items()}
        return state

    def run_tracked(self, folder: Path, **options: Any) -> tuple[dict[str, Tensor], cockpit_core.RunData]:
        options = {"on_error": "raise", **options}
        with cockpit_core.track(self.model, self.loss_fn, self.optimizer, folder, **options) as run:
            left = self.run()
        return left, run.data


def start(problem: str, device: torch.device, steps: int, optimizer: str = "adam") -> Training:
    found = PROBLEMS[problem]
    model, loss_fn, batches = found.make()
    loss_fn.to(device)
    return Training(
        model, loss_fn, lambda moved: OPTIMIZERS[optimizer](found.groups(moved)), batches(steps), device,
        lambda own, batch: loss_fn(own(batch[0]), batch[1]),
    )  # fmt: skip


def find_differences(first: dict[str, Tensor], second: dict[str, Tensor]) -> list[str]:
    assert first.keys() == second.keys()
    return [name for name, value in first.items() if not torch.equal(value, second[name])]


def all_values(data: cockpit_core.RunData) -> dict[tuple[str, str, int], float]:
    """By name, layer and step; "" is the whole network."""
    found = {}
    for name in (name for name in data.names if name not in NOT_COMPARED):
        for layer in (None, *data.layers):
            try:
                steps, values = data.scalars(name, layer)
            except KeyError:
                continue
            found |= {(name, layer or "", int(t)): float(v) for t, v in zip(steps, values, strict=True)}
    return found
