"""A quantity of your own: how many weights are (almost) zero, in the network and in each layer."""

from cockpit_core.quantities import Quantity, Value


class WeightSparsity(Quantity):
    """Share of parameters with an absolute value below ``threshold``."""

    needs = ("parameters",)
    layerwise = True
    description = "Share of weights that are almost zero."

    def __init__(self, threshold=1e-2, **options):
        super().__init__(**options)
        self.threshold = threshold

    def measure(self, statistics):
        small = {name: (p.abs() < self.threshold).double().mean().item() for name, p in statistics.parameters.items()}
        sizes = {name: p.numel() for name, p in statistics.parameters.items()}
        return Value(sum(small[n] * sizes[n] for n in small) / sum(sizes.values()), small)
