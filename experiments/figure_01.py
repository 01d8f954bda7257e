"""Figure 1: two runs on a 2D quadratic with the same loss curve; only alpha tells that one jumps and the other crawls."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import cockpit_core
from cockpit_core import quantities
from experiments.report import BLUE, ORANGE, Arguments, Experiment, make_figure, run

STEPS = 20


def make_quadratic() -> nn.Module:
    """``L = theta' H theta / 2`` with eigenvalues 0.5 and 10, turned by 30 degrees; theta starts at (1, 1)."""
    angle = np.pi / 6
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    hessian = turn @ np.diag([0.5, 10.0]) @ turn.T
    shift, root = nn.Linear(2, 2), nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        shift.weight.copy_(-torch.eye(2))
        shift.bias.fill_(1.0)
        root.weight.copy_(torch.from_numpy(np.linalg.cholesky(hessian).T.copy()))
    for layer in (shift, root):
        layer.weight.requires_grad_(False)
    return nn.Sequential(shift, root)


def train(rates: list[float], logdir) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Losses, alphas and the path of theta. All 128 samples are alike: there is no noise."""
    model, loss_fn = make_quadratic(), nn.MSELoss()
    optimizer = torch.optim.SGD([model[0].bias], lr=1.0)
    inputs = torch.zeros(128, 2)
    path = [model[0].bias.detach().numpy().copy()]
    chosen = [quantities.Loss(), quantities.Alpha(), quantities.Distance()]
    with cockpit_core.track(model, loss_fn, optimizer, logdir, config=chosen) as tracked:
        for rate in rates:
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            loss_fn(model(inputs), torch.zeros(128, 2)).backward()
            optimizer.step()
            path.append(model[0].bias.detach().numpy().copy())
    data = tracked.data
    return data.scalars("Loss")[1], data.scalars("Alpha")[1], np.array(path)


def carry_out(arguments: Arguments) -> tuple[Experiment, object]:
    settings = "SGD, lr 0.2 against 0.0072 x 0.87^epoch, batch 128, 20 epochs of one step"
    experiment = Experiment(1, "Same loss curve, different steps", settings, arguments.quick)
    large = train([0.2] * STEPS, arguments.logdir / "large")
    small = train([0.0072 * 0.87**k for k in range(STEPS)], arguments.logdir / "small")
    apart = float(np.max(np.abs(np.log(large[0] / small[0]))))
    experiment.claim(
        "The loss curves are virtually the same", "by eye", f"at most {np.expm1(apart):.1%} apart", bool(apart < 0.1)
    )
    high, low = float(np.median(large[1])), float(np.median(small[1]))
    experiment.claim(
        "Alpha tells them apart", "about +1 and -1", f"medians {high:+.2f} and {low:+.2f}", high > 0.8 and low < -0.8
    )
    return experiment, draw(large, small)


def draw(large: tuple, small: tuple) -> object:
    figure, (left, middle, right) = make_figure(3)
    for (losses, alphas, path), color, label in ((large, BLUE, "lr 0.2"), (small, ORANGE, "lr 0.0072 x 0.87^epoch")):
        left.plot(losses, color=color, label=label)
        middle.plot(path[:, 0], path[:, 1], ".-", color=color)
        right.hist(alphas, bins=np.linspace(-1.5, 1.5, 31), color=color)
    left.set(xlabel="step", ylabel="loss", title="loss")
    left.legend(fontsize=8)
    middle.set(xlabel="theta 1", ylabel="theta 2", title="trajectory")
    right.set(xlabel="alpha", ylabel="steps", title="alpha")
    return figure


if __name__ == "__main__":
    run(1, "Same loss curve, different steps", carry_out)
