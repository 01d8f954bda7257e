"""Figure 3: pixels from 0 to 255 instead of 0 to 1 look the same in a picture, and not in the gradients."""

from __future__ import annotations

import numpy as np
import torch

from cockpit_core import problems
from cockpit_core.problems.cifar import scale
from experiments.first_step import FirstStep, measure
from experiments.report import Arguments, Experiment, make_figure, run

AUTHORS = {
    "raw, outermost bins": 10.2,
    "raw, centre": 71.5,
    "scaled, centre": 99.97,
}  # percent, from their stored results
ROOM = 2.5  # points


def take_first_step(arguments: Arguments, data: problems.Data, factor: float, seed: int) -> FirstStep:
    model, loss_fn = problems.find("cifar10_3c3d").build(seed)
    index = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(seed))[:128]
    assert data.train.targets is not None
    batch = scale(data.train.inputs[index]) * factor, data.train.targets[index]
    return measure(
        model, loss_fn, batch, arguments.logdir / f"{factor:g}-{seed}",
        gradients=(-1.5, 1.5), parameters=(-0.2, 0.2), bins=(40, 50),
    )  # fmt: skip


def carry_out(arguments: Arguments) -> tuple[Experiment, object]:
    seeds = range(1 if arguments.quick else 3)
    settings = f"cifar10_3c3d at step 0, batch 128, 40 x 50 bins on (-1.5, 1.5) x (-0.2, 0.2), {len(seeds)} seeds"
    experiment = Experiment(3, "Raw pixels show in the gradients", settings, arguments.quick)
    data = problems.find("cifar10_3c3d").load(arguments.data)
    raw = [take_first_step(arguments, data, 255.0, seed) for seed in seeds]
    scaled = [take_first_step(arguments, data, 1.0, seed) for seed in seeds]
    found = {
        "raw, outermost bins": [100 * step.share_outside() for step in raw],
        "raw, centre": [100 * step.share_center() for step in raw],
        "scaled, centre": [100 * step.share_center() for step in scaled],
    }
    for name, values in found.items():
        holds = abs(float(np.median(values)) - AUTHORS[name]) <= ROOM
        shown = ", ".join(f"{value:.2f}" for value in values)
        if len(values) > 1:
            shown = f"median {np.median(values):.2f} ({shown})"
        text = f"Share of gradient elements: {name}, within {ROOM} points"
        experiment.claim(text, f"{AUTHORS[name]} %", f"{shown} %", holds)
    return experiment, draw(scaled[0], raw[0])


def draw(scaled: FirstStep, raw: FirstStep) -> object:
    figure, axes = make_figure(2)
    for axis, step, title in zip(axes, (scaled, raw), ("pixels in [0, 1]", "pixels in [0, 255]"), strict=True):
        axis.stairs(step.counts.sum(1), step.edges, fill=True)
        axis.set(yscale="log", xlabel="element of an individual gradient", ylabel="count", title=title)
    return figure


if __name__ == "__main__":
    run(3, "Raw pixels show in the gradients", carry_out)
