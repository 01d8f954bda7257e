"""A real training for the browser to look at: ``python -m tests.e2e.tensorboard_training runs/digits 60 [pause]``."""

from __future__ import annotations

import sys
import time

import torch
from torch import nn

import cockpit_core

QUANTITIES = (
    *("Loss", "Time", "ParamNorm", "GradNorm", "Distance", "UpdateSize", "NormTest", "InnerTest", "OrthoTest", "Alpha"),
    *("GradHist1d", "MeanGSNR", "EarlyStopping", "CABS", "HessTrace", "HessMaxEV", "TICDiag", "TICTrace"),
)


def train(logdir: str, steps: int, pause: float = 0.0) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 3))
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(256, 8)
    labels = (inputs @ torch.randn(8, 3)).argmax(1)
    config = [getattr(cockpit_core.quantities, name)() for name in QUANTITIES]
    config.append(cockpit_core.quantities.GradHist2d(range=(-0.3, 0.3)))  # too narrow: there is something to warn of
    with cockpit_core.track(model, loss_fn, optimizer, logdir=logdir, config=config, steps_per_epoch=4) as run:
        for step in range(steps):
            batch = torch.arange(64 * step, 64 * (step + 1)) % 256
            optimizer.zero_grad()
            loss = loss_fn(model(inputs[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            if step % 4 == 3:
                run.log(valid_accuracy=(model(inputs).argmax(1) == labels).float().mean().item())
            time.sleep(pause)


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]), *map(float, sys.argv[3:]))
