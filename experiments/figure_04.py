"""Figure 4: ReLU against sigmoid. Over the whole network the gradients look alike; layer by layer only one is alive."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import torch
from torch import nn

from cockpit_core import problems
from cockpit_core.problems.cifar import make_3c3d
from experiments.first_step import FirstStep, measure
from experiments.report import BLUE, ORANGE, Arguments, Experiment, make_figure, run


def take_first_step(arguments: Arguments, data: problems.Data, activation: type[nn.Module], seed: int) -> FirstStep:
    problem = dataclasses.replace(problems.find("cifar10_3c3d"), make_model=functools.partial(make_3c3d, activation))
    model, loss_fn = problem.build(seed)
    index = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(seed))[:128]
    return measure(
        model, loss_fn, data.train.take(index), arguments.logdir / f"{activation.__name__}-{seed}",
        gradients=(-1.1, 1.1), parameters=(-0.2, 0.2), bins=(20, 25),
    )  # fmt: skip


def find_ratio(step: FirstStep) -> float:
    """The smallest over the largest gradient norm of the six weights."""
    norms = [value for name, value in step.norms.items() if name.endswith("weight")]
    return min(norms) / max(norms)


def carry_out(arguments: Arguments) -> tuple[Experiment, object]:
    seeds = range(1 if arguments.quick else 3)
    settings = f"cifar10_3c3d at step 0, batch 128, ReLU against sigmoid, {len(seeds)} seeds"
    experiment = Experiment(4, "Dead layers show layer by layer", settings, arguments.quick)
    data = problems.find("cifar10_3c3d").load(arguments.data)
    relu = [take_first_step(arguments, data, nn.ReLU, seed) for seed in seeds]
    sigmoid = [take_first_step(arguments, data, nn.Sigmoid, seed) for seed in seeds]
    whole = [float(np.median([100 * step.share_center() for step in steps])) for steps in (relu, sigmoid)]
    text = "Over the whole network both look alike (share in the centre)"
    experiment.claim(text, "by eye", f"{whole[0]:.2f} % (ReLU), {whole[1]:.2f} % (sigmoid)", min(whole) > 95)
    ratios = [float(np.median([find_ratio(step) for step in steps])) for steps in (relu, sigmoid)]
    words = f"smallest over largest layer gradient: {ratios[0]:.2g} (ReLU), {ratios[1]:.2g} (sigmoid)"
    experiment.claim(
        "Only the layers near the output are alive with sigmoid", "by eye", words, ratios[1] < 0.01 < 0.1 < ratios[0]
    )
    return experiment, draw(relu[0], sigmoid[0])


def draw(relu: FirstStep, sigmoid: FirstStep) -> object:
    figure, (left, right) = make_figure(2)
    for step, color, label in ((relu, BLUE, "ReLU"), (sigmoid, ORANGE, "sigmoid")):
        left.stairs(step.counts.sum(1), step.edges, color=color, label=label)
        norms = [value for name, value in step.norms.items() if name.endswith("weight")]
        right.plot(range(1, len(norms) + 1), norms, "o-", color=color, label=label)
    left.set(yscale="log", xlabel="element of an individual gradient", ylabel="count", title="whole network")
    right.set(yscale="log", xlabel="weight, from input to output", ylabel="gradient norm", title="layer by layer")
    left.legend()
    return figure


if __name__ == "__main__":
    run(4, "Dead layers show layer by layer", carry_out)
