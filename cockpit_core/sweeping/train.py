"""One run of a sweep: an ordinary training loop under ``cockpit_core.track``, as any user writes it."""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import cockpit_core
from cockpit_core.problems import Data, Problem, UnknownName, find_object
from cockpit_core.sweeping.trials import RESULT, SPEC, Trial, clear_unfinished, parse_optimizer, write_json
from cockpit_core.sweeping.worker import PARENT

RECORDS = 300  # tracked steps per run, if nothing else is asked for

Say = Callable[[str], None]


class Orphan(Exception):
    """The sweep that started this run is gone: another one may begin the same run at any moment."""


def find_optimizer(name: str) -> type[torch.optim.Optimizer]:
    """One of ``torch.optim``, or ``module:Class``."""
    if ":" in name:
        kind = find_object(name, "optimizer")
    else:
        kind = getattr(torch.optim, name, None)
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)) or kind is torch.optim.Optimizer:
        known = ", ".join(list_optimizers())
        raise UnknownName(f"there is no optimizer {name!r}; there are {known}, and module:Class of your own")
    return kind


def list_optimizers() -> list[str]:
    base = torch.optim.Optimizer
    return sorted(
        n for n, c in vars(torch.optim).items() if isinstance(c, type) and issubclass(c, base) and c is not base
    )


def make_optimizer(trial: Trial, model: nn.Module) -> torch.optim.Optimizer:
    name, options = parse_optimizer(trial.optimizer)
    make: Callable[..., torch.optim.Optimizer] = find_optimizer(name)
    return make([p for p in model.parameters() if p.requires_grad], lr=trial.lr, **options)


def describe_hardware() -> str:
    processor = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{os.cpu_count()} cores, {processor}"


def run_trial(
    trial: Trial, problem: Problem, data: Data, folder: Path, config: str, every: int | None, say: Say
) -> dict[str, Any]:
    """Train from the beginning and put the result beside the log. The same trial gives the same numbers again."""
    clear_unfinished(folder)
    write_json(folder / SPEC, dataclasses.asdict(trial))
    began, started = time.perf_counter(), time.time()
    metrics, status = train(trial, problem, data, folder, config, every, say)
    check_parent()
    result = {
        "trial": dataclasses.asdict(trial),
        "metric": f"valid_{problem.metric}",
        "less_is_better": problem.metric == "loss",
        "metrics": {name: value if math.isfinite(value) else None for name, value in metrics.items()},
        "status": status,
        "started": started,
        "seconds": time.perf_counter() - began,
        "hardware": describe_hardware(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    write_json(folder / RESULT, result)
    return result


def train(
    trial: Trial, problem: Problem, data: Data, folder: Path, config: str, every: int | None, say: Say
) -> tuple[dict[str, float], str]:
    """The metrics at the end, and "finished" or "diverged": a loss that is not finite ends the run."""
    model, loss_fn = problem.build(trial.seed)
    optimizer = make_optimizer(trial, model)
    generator = torch.Generator().manual_seed(trial.seed)
    steps = len(data.train) // trial.batch_size
    if not steps:
        raise ValueError(
            f"{trial.problem}: {len(data.train)} training samples are fewer than a batch of {trial.batch_size}"
        )
    interval = every or max(1, steps * trial.epochs // RECORDS)
    metrics: dict[str, float] = {}
    began = time.perf_counter()
    with cockpit_core.track(
        model, loss_fn, optimizer, folder, config=config, schedule=interval, steps_per_epoch=steps
    ) as run:
        run.note_settings(problem=trial.problem, optimizer=trial.optimizer, seed=trial.seed, epochs=trial.epochs)
        run.note_settings(hardware=describe_hardware(), threads=torch.get_num_threads())
        for epoch in range(trial.epochs):
            for inputs, targets in data.train.shuffle(trial.batch_size, generator):
                loss = take_step(model, loss_fn, optimizer, inputs, targets)
                if not math.isfinite(loss):
                    metrics = dict.fromkeys((f"valid_{problem.metric}", f"test_{problem.metric}"), math.nan)
                    run.log(**metrics)
                    return metrics, "diverged"
                check_parent()
            metrics = {f"valid_{k}": v for k, v in problem.measure(model, loss_fn, data.valid).items()}
            run.log(**metrics)
            spent = time.perf_counter() - began
            left = spent / (epoch + 1) * (trial.epochs - epoch - 1)
            shown = f"valid_{problem.metric} {metrics[f'valid_{problem.metric}']:.4g}"
            say(f"{trial}: epoch {epoch + 1} of {trial.epochs}, {shown}, {left:.0f} s left")
        metrics |= {f"test_{k}": v for k, v in problem.measure(model, loss_fn, data.test).items()}
        run.log(**{k: v for k, v in metrics.items() if k.startswith("test_")})
    return metrics, "finished"


def take_step(
    model: nn.Module, loss_fn: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor
) -> float:
    """The loss before the step. Optimizers that evaluate the loss themselves (LBFGS) get a closure."""

    def evaluate() -> Tensor:
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        return loss

    if needs_closure(optimizer):
        return float(torch.as_tensor(optimizer.step(evaluate)).detach())  # type: ignore[arg-type]
    loss = evaluate()
    optimizer.step()
    return loss.item()


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    parameter = inspect.signature(type(optimizer).step).parameters.get("closure")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def check_parent() -> None:
    parent = os.environ.get(PARENT)
    if parent and os.getppid() != int(parent):
        raise Orphan
