"""Figure 19 (16 of the preprint): in convex problems the gradient norm goes to zero, in a deep network it does not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import cockpit_core
from cockpit_core import problems, quantities, schedules
from experiments.report import BLUE, GREY, ORANGE, Arguments, Experiment, make_figure, run
from experiments.restarts import cosine_restarts


@dataclass(frozen=True)
class Course:
    steps: np.ndarray
    norms: np.ndarray
    before: float  # of the whole training set's gradient
    after: float


def train(name: str, epochs: int, cycle: int, arguments: Arguments, most: int | None = None) -> Course:
    """SGD with lr 0.1; at most ``most`` steps. Tracked at 300 steps, logarithmically spaced."""
    problem = problems.find(name)
    data = problem.load(arguments.data)
    model, loss_fn = problem.build(0)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    total = min(most or 10**9, epochs * (len(data.train) // problem.batch_size))
    schedule = schedules.logarithmic(0, math.log2(max(total - 1, 2)), steps=300, base=2)
    before = measure_gradient(model, loss_fn, data.train, trained)
    generator, step = torch.Generator().manual_seed(0), 0
    chosen = [quantities.Loss(), quantities.GradNorm()]
    logdir: Path = arguments.logdir / name
    with cockpit_core.track(model, loss_fn, optimizer, logdir, config=chosen, schedule=schedule) as tracked:
        for _, factor in zip(range(epochs), cosine_restarts(cycle), strict=False):
            optimizer.param_groups[0]["lr"] = 0.1 * factor
            for inputs, targets in data.train.shuffle(problem.batch_size, generator):
                if step == total:
                    break
                optimizer.zero_grad()
                loss_fn(model(inputs), targets).backward()
                optimizer.step()
                step += 1
            print(f"  {name}: step {step} of {total}", flush=True)
            if step == total:
                break
    steps, norms = tracked.data.scalars("GradNorm")
    return Course(steps, norms, before, measure_gradient(model, loss_fn, data.train, trained))


def measure_gradient(model, loss_fn, split, trained, most: int = 5_000) -> float:
    """Length of the gradient over up to 5,000 training samples: without the noise of a mini-batch."""
    total, count = [torch.zeros_like(p) for p in trained], min(most, len(split))
    for start in range(0, count, 1000):
        inputs, targets = split.take(slice(start, min(start + 1000, count)))
        grads = torch.autograd.grad(loss_fn(model(inputs), targets), trained)
        total = [a + b * len(inputs) / count for a, b in zip(total, grads, strict=True)]
    return float(torch.sqrt(sum((g**2).sum() for g in total)))


def carry_out(arguments: Arguments) -> tuple[Experiment, object]:
    quick = arguments.quick
    epochs = {"quadratic_deep": 100, "mnist_logreg": 12 if quick else 50}
    settings = "SGD, lr 0.1, batch 128, cosine restarts of 7 and 4 epochs; "
    settings += (
        f"{epochs['quadratic_deep']} and {epochs['mnist_logreg']} epochs, CIFAR-10 {150 if quick else 3000} steps"
    )
    experiment = Experiment(19, "Gradients vanish in convex problems only", settings, quick)
    courses = {
        "quadratic_deep": train("quadratic_deep", epochs["quadratic_deep"], 7, arguments),
        "mnist_logreg": train("mnist_logreg", epochs["mnist_logreg"], 4, arguments),
        "cifar10_3c3d": train("cifar10_3c3d", 100, 12, arguments, most=150 if quick else 3000),
    }
    for name, course in courses.items():
        convex = name != "cifar10_3c3d"
        first, last = float(np.median(course.norms[:3])), float(np.median(course.norms[-20:]))
        for kind, before, after in (
            ("of mini-batches (as in the paper)", first, last),
            ("over the training set", course.before, course.after),
        ):
            fell = before / after
            paper = "by eye" if kind.startswith("of") else "not in the paper"
            words = f"{before:.3g} to {after:.3g} (1/{fell:.3g})"
            if convex:
                experiment.claim(
                    f"{name}: the gradient norm {kind} falls to a tenth", f"falls, {paper}", words, fell > 10
                )
            else:
                experiment.claim(
                    f"{name}: the gradient norm {kind} does not fall to a tenth",
                    f"rises or stays, {paper}",
                    words,
                    fell < 10,
                )
    experiment.remark(
        '"Over the training set" is the gradient over 5,000 samples. The gradient of a mini-batch is partly noise, and the '
        "noise stays where the gradient goes to zero: how far its norm falls depends on the batch size."
    )
    figure, (axis,) = make_figure(1)
    for (name, course), color in zip(courses.items(), (BLUE, ORANGE, GREY), strict=True):
        axis.plot(course.steps, course.norms, color=color, label=name)
    axis.set(xscale="symlog", yscale="log", xlabel="step", ylabel="norm of the mini-batch gradient")
    axis.legend(fontsize=8)
    return experiment, figure


if __name__ == "__main__":
    run(19, "Gradients vanish in convex problems only", carry_out)
