"""One run of a program, to be changed in place by a fault. The training loop reads the flags."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from benchmarks.diagnosis.programs import Data, Program, Settings, make_optimizer

MATRICES = (nn.Linear, nn.Conv1d, nn.Conv2d)
TRAINED = (*MATRICES, nn.GRU, nn.Embedding)


@dataclass
class Job:
    program: Program
    settings: Settings
    data: Data
    model: nn.Module
    loss: nn.Module
    optimizer: torch.optim.Optimizer | None = None
    zero_grad: bool = True
    sign: float = 1.0  # what the loss is multiplied by before the backward pass
    shuffle: bool = True
    same_batch: bool = False
    eval_mode: bool = False
    divide: bool = True  # the loss by the number of accumulated parts
    output: Callable[[Tensor], Tensor] | None = None  # what is done to the output before the loss
    mild: bool = False
    loss_scale: float = 0.0  # of a GradScaler; clipping comes before it is taken off
    scheduler_first: bool = False
    resume_at: int = 0  # the run is closed at this step and goes on in the same log
    where: list[str] = field(default_factory=list)  # parameters and modules that a right finding may name

    def remake_optimizer(self) -> None:
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(self.settings.optimizer, parameters, self.settings)


def trained_modules(model: nn.Module, kinds: tuple[type[nn.Module], ...] = TRAINED) -> dict[str, nn.Module]:
    return {path: module for path, module in model.named_modules() if isinstance(module, kinds)}


def with_followers(model: nn.Module, chosen: Iterable[str]) -> list[str]:
    """The modules, and those without parameters that stand behind each: a dead layer shows at its activation."""
    wanted, found, behind = set(chosen), [], False
    for path, module in model.named_modules():
        if any(True for _ in module.children()):
            continue
        if any(True for _ in module.parameters(recurse=False)):
            behind = path in wanted
        if behind:
            found.append(path)
    return found
