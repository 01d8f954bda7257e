"""Run by ``against_2021.py`` and ``memory.py`` inside the environment of cockpit-for-pytorch 1.0.2, never in ours.

Prints one line of JSON: the seconds of each untracked and each tracked step, taking turns; by how many MB that raised the
high-water mark of untracked steps; and when each tracked step began and ended.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import torch
from backpack import extend
from cockpit import Cockpit
from cockpit.utils.configuration import configuration
from torch import Tensor, nn

from benchmarks.measure import Effort, Training, take_turns
from benchmarks.networks import PAPER


class Tracked(Training):
    """The training step as the documentation of the 2021 tool writes it."""

    def __init__(self, model: nn.Module, optimizer: str, config: str):
        super().__init__(extend(model), optimizer)
        self.loss = extend(nn.CrossEntropyLoss())
        self.individual_loss_fn = nn.CrossEntropyLoss(reduction="none")
        self.cockpit = Cockpit(model.parameters(), quantities=configuration(config))
        self.count = 0
        self.moments: list[tuple[float, float]] = []

    def __call__(self, inputs: Tensor, labels: Tensor) -> None:
        began = time.monotonic()
        self.optimizer.zero_grad()
        outputs = self.model(inputs)
        loss = self.loss(outputs, labels)
        info = {
            "batch_size": len(inputs),
            "individual_losses": self.individual_loss_fn(outputs, labels),
            "loss": loss,
            "optimizer": self.optimizer,
        }
        with self.cockpit(self.count, info=info):
            loss.backward(create_graph=self.cockpit.create_graph(self.count))
        self.optimizer.step()
        self.count += 1
        self.moments.append((began, time.monotonic()))


def read_peak() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config")
    parser.add_argument("optimizer")
    parser.add_argument("--network", default="cifar10_3c3d")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", type=int, default=1)
    parser.add_argument("--clock", default="wall")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # an old tool under a new torch
    torch.manual_seed(0)
    network = PAPER[options.network]
    plain = network.train(options.optimizer)
    for _ in range(3):
        plain(*network.batch())
    untracked = read_peak()
    tracked = Tracked(network.make(), options.optimizer, options.config)
    effort = Effort(options.rounds, warm=options.warm, clock=options.clock)
    times = take_turns({"untracked": plain, "tracked": tracked}, network.batch, effort)
    time.sleep(0.05)
    extra = read_peak() - untracked
    print(json.dumps({"times": times, "extra": extra, "untracked": untracked, "steps": tracked.moments}))


if __name__ == "__main__":
    main()
