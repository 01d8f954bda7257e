"""Accelerate: the loop is yours, so ``cockpit_core.track`` comes after ``prepare``, on what ``prepare`` returned.

accelerate launch examples/accelerate_loop.py        # one process or several: every number is the global batch's
"""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cockpit_core


def main(logdir: str = "runs/accelerate", epochs: int = 2) -> None:
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    torch.manual_seed(0)
    inputs = torch.randn(256, 10)
    loader = DataLoader(TensorDataset(inputs, (inputs.sum(1) > 0).long()), batch_size=32)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    loss_fn = nn.CrossEntropyLoss()

    with cockpit_core.track(model, loss_fn, optimizer, logdir, config="economy", steps_per_epoch=len(loader)) as run:
        for _ in range(epochs):
            for batch, labels in loader:
                optimizer.zero_grad()
                accelerator.backward(loss_fn(model(batch), labels))
                optimizer.step()
                if run.should_stop:
                    return


if __name__ == "__main__":
    main(*sys.argv[1:2])
