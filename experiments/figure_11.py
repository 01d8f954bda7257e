"""Figure 11: two scalar weights. Gradient descent and SGD reach the same loss; SGD drifts on to a flatter place."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import cockpit_core
from cockpit_core import quantities, schedules
from experiments.report import BLUE, ORANGE, Arguments, Experiment, make_figure, run


def make_points() -> tuple[torch.Tensor, torch.Tensor]:
    """100 points of ``y = 1.4 x + noise``; both are standard normal."""
    random = np.random.RandomState(42)
    x, noise = random.normal(size=(300, 1)), random.normal(size=(300, 1))
    return torch.tensor(x[:100], dtype=torch.float32), torch.tensor((1.4 * x + noise)[:100], dtype=torch.float32)


def train(batch_size: int, steps: int, logdir, seed: int = 0):
    x, y = make_points()
    model, loss_fn = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)), nn.MSELoss()
    for layer, value in zip(model, (0.1, 1.7), strict=True):
        nn.init.constant_(layer.weight, value)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(seed)
    schedule = schedules.logarithmic(0, float(np.log10(steps - 1)), steps=200)
    chosen = [quantities.Loss(), quantities.HessMaxEV()]
    with cockpit_core.track(model, loss_fn, optimizer, logdir, config=chosen, schedule=schedule) as tracked:
        for _ in range(steps):
            batch = torch.randperm(100, generator=generator)[:batch_size]
            optimizer.zero_grad()
            loss_fn(model(x[batch]), y[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        return tracked.data, float(loss_fn(model(x), y))


def carry_out(arguments: Arguments) -> tuple[Experiment, object]:
    steps = 20_000 if arguments.quick else 100_000
    settings = f"weights 0.1 and 1.7, y = 1.4 x + noise, 100 points, batch 95 against 100, lr 0.1, {steps:,} epochs of one step"
    experiment = Experiment(11, "SGD drifts to flatter minima", settings, arguments.quick)
    (descent, descent_loss), (sgd, sgd_loss) = (train(b, steps, arguments.logdir / str(b)) for b in (100, 95))
    ends = [float(np.median(data.scalars("HessMaxEV")[1][-20:])) for data in (descent, sgd)]
    apart = abs(sgd_loss / descent_loss - 1)
    experiment.claim(
        "Both reach the same loss", "by eye", f"{descent_loss:.4f} (GD), {sgd_loss:.4f} (SGD)", apart < 0.02
    )
    words = f"largest eigenvalue at the end {ends[0]:.3g} (GD), {ends[1]:.3g} (SGD)"
    experiment.claim("SGD ends at a flatter place", "lower under SGD, by eye", words, ends[1] < ends[0])
    figure, (left, right) = make_figure(2)
    for data, color, label in ((descent, BLUE, "batch 100 (GD)"), (sgd, ORANGE, "batch 95 (SGD)")):
        left.plot(*data.scalars("Loss"), color=color, label=label)
        right.plot(*data.scalars("HessMaxEV"), color=color)
    left.set(xscale="symlog", xlabel="step", ylabel="mini-batch loss", title="loss")
    right.set(xscale="symlog", xlabel="step", ylabel="largest eigenvalue", title="curvature")
    left.legend(fontsize=8)
    return experiment, figure


if __name__ == "__main__":
    run(11, "SGD drifts to flatter minima", carry_out)
