"""Run by ``against_2021.py`` inside the environment of cockpit-for-pytorch 1.0.2, never in ours.

Prints one line of JSON: seconds of each untracked and each tracked step, taking turns, or the extra peak memory.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import torch
from backpack import extend
from cockpit import Cockpit
from cockpit.utils.configuration import configuration
from torch import Tensor, nn

from benchmarks.measure import Training, take_turns
from benchmarks.networks import NETWORKS


class Tracked(Training):
    """The training step as the documentation of the 2021 tool writes it."""

    def __init__(self, model: nn.Module, optimizer: str, config: str):
        super().__init__(extend(model), optimizer)
        self.loss_fn = extend(self.loss_fn)
        self.individual_loss_fn = nn.CrossEntropyLoss(reduction="none")
        self.cockpit = Cockpit(model.parameters(), quantities=configuration(config))
        self.count = 0

    def __call__(self, inputs: Tensor, labels: Tensor) -> None:
        self.optimizer.zero_grad()
        outputs = self.model(inputs)
        loss = self.loss_fn(outputs, labels)
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


def read_peak() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    parser.add_argument("optimizer")
    parser.add_argument("--network", default="cifar10_3c3d")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", type=int, default=1)
    parser.add_argument("--clock", default="wall")
    parser.add_argument("--memory", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # an old tool under a new torch
    network = NETWORKS[options.network]
    torch.manual_seed(0)
    plain = Training(network.make(), options.optimizer)
    if options.memory:
        batch = network.batch()
        for _ in range(3):
            plain(*batch)
        untracked = read_peak()
        tracked = Tracked(network.make(), options.optimizer, options.config)
        for _ in range(2):
            tracked(*batch)
        print(json.dumps({"extra": read_peak() - untracked, "untracked": untracked}))
        return
    tracked = Tracked(network.make(), options.optimizer, options.config)
    contestants = {"untracked": plain, "tracked": tracked}
    times = take_turns(contestants, network.batch, options.rounds, warm=options.warm, clock=options.clock)
    print(json.dumps(times))


if __name__ == "__main__":
    main()
