"""A quantity of the 2021 Cockpit, ported: the Takeuchi information criterion from two BackPACK extensions.

``python examples/backpack_quantity.py`` trains on scikit-learn's digits. The extensions run in a pass of their own at the
steps at which the quantity is due; the model is not extended, and nothing stays on it.
"""

import sys

import torch
from backpack.extensions import DiagGGNExact, SumGradSquared
from torch import nn

import cockpit_core
from cockpit_core.quantities import Quantity, Value, configuration


class TakeuchiOfGGN(Quantity):
    """tr(C / diag(GGN)): how much individual gradients scatter, measured by the curvature; it goes with overfitting.

    C_j = (1/B) sum_n g_nj^2. BackPACK's individual gradients are those of the mean, g_n / B: hence the factor B.
    """

    needs = (DiagGGNExact(), SumGradSquared())
    layerwise = True
    description = "Scatter of individual gradients over the Gauss-Newton curvature."

    def __init__(self, damping=1e-7, **options):
        super().__init__(**options)
        self.damping = damping

    def measure(self, statistics):
        squares, curvature = statistics.backpack["sum_grad_squared"], statistics.backpack["diag_ggn_exact"]
        B = statistics.batch_size
        layers = {n: (B * squares[n] / (curvature[n] + self.damping)).double().sum().item() for n in squares}
        return Value(sum(layers.values()), layers)


def main(logdir="runs/backpack"):
    from sklearn.datasets import load_digits

    pictures, labels = load_digits(return_X_y=True)
    pictures, labels = torch.tensor(pictures / 16, dtype=torch.float32), torch.tensor(labels)
    torch.manual_seed(0)
    model, loss_fn = nn.Sequential(nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, 10)), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    config = [*configuration("economy"), TakeuchiOfGGN(schedule=10)]
    with cockpit_core.track(model, loss_fn, optimizer, logdir, config=config) as run:
        for batch in torch.randperm(len(labels))[:1280].split(64):
            optimizer.zero_grad()
            loss_fn(model(pictures[batch]), labels[batch]).backward()
            optimizer.step()
    for step, value in zip(*run.data.scalars("TakeuchiOfGGN"), strict=True):
        print(f"step {step}: {value:.1f}")
    return run


if __name__ == "__main__":
    main(*sys.argv[1:])
