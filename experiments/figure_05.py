"""Figure 5: final accuracy against the median alpha of a run, for many learning rates; and what alpha on one batch says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core
from cockpit_core import problems, quantities
from experiments.report import BLUE, GREY, ORANGE, Arguments, Experiment, make_figure, run

RATES = (1e-5, 1e-4, 1e-3, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
QUICK = (1e-3, 0.01, 0.1, 0.5, 1.0)
AUTHORS = {"mnist_mlp": 0.00, "fmnist_mlp": 0.26, "svhn_3c3d": 0.085, "cifar10_3c3d": 0.23}
GOOD = 0.02  # of the best accuracy: a good run


@dataclass(frozen=True)
class Point:
    rate: float
    accuracy: float
    alpha: float  # median over the run, the paper's: start and end of a step see different batches
    own: float  # median of lr g'Hg / g'g - 1, both ends on the same batch


def train(name: str, rate: float, epochs: int, most: int | None, arguments: Arguments) -> Point:
    problem = problems.find(name)
    data = problem.load(arguments.data)
    model, loss_fn = problem.build(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    total = min(most or 10**9, epochs * (len(data.train) // problem.batch_size))
    every, step, own = max(2, total // 150), 0, []
    generator = torch.Generator().manual_seed(0)
    chosen = [quantities.Loss(), quantities.Alpha()]
    logdir = arguments.logdir / f"{name}-{rate:g}"
    with cockpit_core.track(model, loss_fn, optimizer, logdir, config=chosen, schedule=every) as tracked:
        for _ in range(epochs):
            for inputs, targets in data.train.shuffle(problem.batch_size, generator):
                if step == total:
                    break
                if step % (3 * every) == every // 2 + 1:  # between tracked steps
                    own.append(rate * measure_sharpness(model, inputs, targets) - 1)
                optimizer.zero_grad()
                loss_fn(model(inputs), targets).backward()
                optimizer.step()
                step += 1
    accuracy = problem.measure(model, loss_fn, data.test)["accuracy"]
    finite = [value for value in own if np.isfinite(value)]  # a dead network has no gradient, and so no value
    alpha = float(np.median(tracked.data.scalars("Alpha")[1]))
    return Point(rate, accuracy, alpha, float(np.median(finite)) if finite else float("nan"))


def measure_sharpness(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> float:
    """``g'Hg / g'g`` on this batch."""
    parameters = list(model.parameters())
    gradient = torch.autograd.grad(F.cross_entropy(model(inputs), targets), parameters, create_graph=True)
    product = torch.autograd.grad(sum((g.detach() * g).sum() for g in gradient), parameters)
    flat = [torch.cat([t.detach().reshape(-1) for t in tensors]) for tensors in (gradient, product)]
    square = float(flat[0] @ flat[0])
    return float(flat[0] @ flat[1]) / square if square > 0 else float("nan")


def carry_out(arguments: Arguments) -> tuple[Experiment, object]:
    names = ("mnist_mlp", "fmnist_mlp") if arguments.quick else ("mnist_mlp", "fmnist_mlp", "cifar10_3c3d")
    rates, epochs, most = (QUICK, 2, 390) if arguments.quick else (RATES, 100, None)
    length = "390 steps" if arguments.quick else "100 epochs"
    settings = (
        f"SGD, batch 128, {length}, {len(rates)} rates from {rates[0]:g} to {rates[-1]:g}, one seed: {', '.join(names)}"
    )
    experiment = Experiment(5, "Accuracy against alpha", settings, arguments.quick)
    found = {}
    for name in names:
        found[name] = []
        for rate in rates:
            point = train(name, rate, epochs, most, arguments)
            found[name].append(point)
            print(
                f"  {name} lr {rate:g}: accuracy {point.accuracy:.3f}, alpha {point.alpha:+.2f}, own batch {point.own:+.2f}",
                flush=True,
            )
    for name, points in found.items():
        judge(experiment, name, points)
    experiment.remark(
        "The paper's alpha sees another batch at each end of a step. It is about lr g'Hg / g'g - s, where s is the share "
        "of signal in the gradient. So it is positive at any rate once gradients are mostly noise, in good runs and in bad "
        "ones. On one batch it is lr g'Hg / g'g - 1, and orders the rates of runs that learn. A run that died has few "
        "values, all from before it died, and they may break the order."
    )
    if arguments.quick:
        experiment.remark("390 steps and one seed are far from the paper's 100 epochs.")
    return experiment, draw(found)


def judge(experiment: Experiment, name: str, points: list[Point]) -> None:
    best = max(points, key=lambda p: p.accuracy)
    good = [p for p in points if p.accuracy > best.accuracy - GOOD]
    bad = [p for p in points if p.accuracy <= best.accuracy - GOOD]
    text = f"{name}: all good runs have a median alpha above 0"
    ours = f"best lr {best.rate:g} ({best.accuracy:.1%}) at {best.alpha:+.2f}; good runs: " + list_alphas(good)
    experiment.claim(text, f"best at about {AUTHORS[name]:+.2f}", ours, all(p.alpha > 0 for p in good))
    text = f"{name}: a median alpha above 0 tells good runs from bad ones"
    wrong = [p for p in bad if p.alpha > 0]
    ours = f"bad runs above 0: {list_alphas(wrong) or 'none'}"
    paper = "how the figure is read; not sufficient by itself, says Section 3.3"
    experiment.claim(text, paper, ours, not wrong if bad else None)
    alive = sorted((p for p in points if np.isfinite(p.own)), key=lambda p: p.rate)
    shown = ", ".join(f"{p.rate:g}: {p.own:+.2f}" for p in alive)
    dead = [f"{p.rate:g}" for p in points if not np.isfinite(p.own)]
    shown += f" (no value at {', '.join(dead)}: the gradient is zero)" if dead else ""
    text = f"{name}: alpha on the step's own batch orders the rates"
    experiment.claim(text, "not in the paper", shown, bool(np.all(np.diff([p.own for p in alive]) > -0.05)))


def list_alphas(points: list[Point]) -> str:
    return ", ".join(f"{p.alpha:+.2f} (lr {p.rate:g})" for p in points)


def draw(found: dict[str, list[Point]]) -> object:
    figure, (left, right) = make_figure(2)
    for (name, points), color in zip(found.items(), (BLUE, ORANGE, GREY), strict=False):
        for axis, values in ((left, [p.alpha for p in points]), (right, [p.own for p in points])):
            sizes = [12 * (np.log10(p.rate) + 6) for p in points]
            axis.scatter(values, [p.accuracy for p in points], s=sizes, color=color, alpha=0.7, label=name)
    left.set(xlabel="median alpha, as in the paper", ylabel="test accuracy")
    right.set(xlabel="median alpha on the step's own batch", ylabel="test accuracy")
    left.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    run(5, "Accuracy against alpha", carry_out)
