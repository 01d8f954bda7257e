"""Alpha on the step's own batch tells learning rates apart where the paper's does not: MNIST, four rates.

``python examples/own_batch_alpha.py`` trains 784-1000-500-100-10 with SGD at learning rates 0.05, 0.1, 0.5 and 1 (MNIST is
fetched once, or lies in ``--data FOLDER``), and draws both alphas over the run. ``--steps 1200`` for a longer look.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

import cockpit_core
from cockpit_core import problems, quantities

RATES = (0.05, 0.1, 0.5, 1.0)


def train(rate, steps, every, logdir, data=None, name="mnist_mlp"):
    problem = problems.find(name)
    loaded, (model, loss_fn) = problem.load(data), problem.build(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    generator, step = torch.Generator().manual_seed(0), 0
    config = [quantities.Loss(), quantities.Alpha(), quantities.AlphaOwnBatch(), quantities.BatchSharpness()]
    with cockpit_core.track(model, loss_fn, optimizer, logdir / f"lr{rate:g}", config=config, schedule=every) as run:
        while step < steps:
            for inputs, targets in loaded.train.shuffle(problem.batch_size, generator):
                if step == steps:
                    break
                optimizer.zero_grad()
                loss_fn(model(inputs), targets).backward()
                optimizer.step()
                step += 1
    return run.data


def late(data, name):
    """Median over the second half of the run: at the beginning all networks are alike."""
    steps, values = data.scalars(name)
    return float(np.median(values[steps >= steps.max() / 2])) if len(steps) else float("nan")


def draw(found, path):
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained", sharey=True)
    for axis, name, title in zip(
        axes, ("Alpha", "AlphaOwnBatch"), ("as in the paper: two batches", "on the step's own batch"), strict=True
    ):
        for rate, data in found.items():
            steps, values = data.scalars(name)
            width = max(1, len(values) // 20)
            smooth = np.convolve(values, np.ones(width) / width, "valid")
            axis.plot(steps[len(steps) - len(smooth) :], smooth, label=f"lr {rate:g}")
        axis.axhline(0, color="grey", lw=0.5)
        axis.set(xlabel="step", title=title, ylim=(-1.1, 1.6))
    axes[0].set_ylabel("alpha (running mean)")
    axes[1].legend(fontsize=8)
    figure.savefig(path, dpi=80)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--logdir", type=Path, default=Path("runs/own_batch_alpha"))
    parser.add_argument("--data", metavar="FOLDER", help="your MNIST, as torchvision stores it")
    parser.add_argument("--picture", type=Path, default=Path("own_batch_alpha.png"))
    parser.add_argument("--problem", default="mnist_mlp")
    given = parser.parse_args(arguments)
    found = {}
    for rate in RATES:
        found[rate] = train(rate, given.steps, given.every, given.logdir, given.data, given.problem)
        own, paper = late(found[rate], "AlphaOwnBatch"), late(found[rate], "Alpha")
        edge = late(found[rate], "BatchSharpness") * rate / 2
        print(
            f"lr {rate:<5g} own batch {own:+.2f}   paper's {paper:+.2f}   batch sharpness x lr / 2: {edge:.2f}",
            flush=True,
        )
    draw(found, given.picture)
    own = [late(data, "AlphaOwnBatch") for data in found.values()]
    print(f"own-batch alpha {'orders' if np.all(np.diff(own) > -0.1) else 'DOES NOT order'} the rates; {given.picture}")
    return found


if __name__ == "__main__":
    main()
