"""Memory does not grow with the number of steps, and individual gradients of a whole model never exist at once."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import weakref
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

import cockpit_core
from tests.training import QUANTITIES, quantities, start


def count_tensors() -> int:
    gc.collect()
    return sum(1 for thing in gc.get_objects() if type(thing) in (torch.Tensor, nn.Parameter))


def resident_megabytes() -> float:
    return psutil.Process().memory_info().rss / 1e6


@pytest.mark.slow
@pytest.mark.parametrize(("config", "steps", "allowed"), [("economy", 2000, 6), ("full", 600, 6)])
def test_memory_does_not_grow_over_many_tracked_steps(config: str, steps: int, allowed: int, tmp_path: Path) -> None:
    """What leaks grows in every stretch of steps. The allocator of a process that ran other tests before may grow in one:
    caches, compiled kernels, arenas of threads."""
    training = start("cnn", "adam")
    batch = list(training.batches(10))
    stretch = steps // 40  # rounds of ten steps
    with training.track(tmp_path / "run", config=config):
        training.run(batch * stretch)
        tensors, megabytes = count_tensors(), [resident_megabytes()]
        for _ in range(3):
            training.run(batch * stretch)
            megabytes.append(resident_megabytes())
        assert count_tensors() == tensors
        assert min(later - earlier for earlier, later in itertools.pairwise(megabytes)) < allowed / 3, megabytes
    assert len(cockpit_core.load(tmp_path / "run").scalars("Loss")[0]) == 4 * 10 * stretch


def test_nothing_waits_for_the_garbage_collector(tmp_path: Path) -> None:
    """A cycle through a tensor keeps whole graphs alive until the collector happens to run."""
    training = start("cnn")
    with training.track(tmp_path / "run", config=quantities(*QUANTITIES)):
        training.run(training.batches(5))
        gc.collect()
        gc.disable()
        try:
            before = count_without_collecting()
            training.run(training.batches(20))
            assert count_without_collecting() - before < 10
        finally:
            gc.enable()


def count_without_collecting() -> int:
    return sum(1 for thing in gc.get_objects() if type(thing) in (torch.Tensor, nn.Parameter))


def test_closed_run_lets_go_of_model_and_optimizer(tmp_path: Path) -> None:
    training = start("cnn")
    with training.track(tmp_path / "run", config="full") as run:
        training.run(training.batches(3))
    model, optimizer = weakref.ref(training.model), weakref.ref(training.optimizer)
    del training
    gc.collect()
    assert model() is None
    assert optimizer() is None
    assert len(run.data.scalars("Loss")[0]) == 3


def test_steps_that_are_not_scheduled_keep_nothing(tmp_path: Path) -> None:
    training = start("cnn")
    with training.track(tmp_path / "run", config="full", schedule=1000):
        training.run(training.batches(3))
        before = count_tensors()
        training.run(training.batches(20))
        assert count_tensors() <= before


PEAK = """
import sys, torch, cockpit_core
from torch import nn
from tests.peak_memory import megabytes

def train(model, inputs, logdir=None):
    loss_fn, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=1e-3)
    run = cockpit_core.track(model, loss_fn, optimizer, logdir, config="economy", on_error="raise") if logdir else None
    for _ in range(3):
        optimizer.zero_grad()
        loss_fn(model(inputs), torch.zeros(len(inputs), dtype=torch.long)).backward()
        optimizer.step()
    if run:
        run.close()

def build(kind, width, depth):
    if kind == "linear":
        return nn.Sequential(*[nn.Linear(width, width) for _ in range(depth)]), torch.randn(64, width)
    layers = [nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(depth)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), torch.randn(64, width, 4, 4)

torch.set_num_threads(1)
kind, folder = sys.argv[1:]
train(*build(kind, 8, 2), folder + "/warm")    # compiled kernels and imports are no gradients
model, inputs = build(kind, *((512, 12) if kind == "linear" else (96, 24)))
train(model, inputs)
untracked = megabytes()
train(model, inputs, folder + "/run")
individual = 64 * sum(p.numel() for p in model.parameters()) * 4 / 1e6
print(megabytes() - untracked, individual)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_individual_gradients_of_the_whole_model_never_exist_at_once(kind: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PEAK, kind, str(tmp_path)]
    extra, individual = map(float, subprocess.check_output(command, text=True).split())
    assert individual > 200, "the network is too small to show anything"
    assert extra < individual / 6
