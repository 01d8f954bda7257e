from __future__ import annotations

from cockpit_core.quantities.base import NoValue, Quantity, Statistics, Value


class Coherence(Quantity):
    """How far do samples agree? ``||g||^2 / ((1/B) sum_n ||g_n||^2)``: mean product of two gradients over mean square.

    1 where all individual gradients are the same, ``1/B`` where they are orthogonal, 0 where they cancel (Chatterjee and
    Zielinski 2020, arXiv 2008.01217, call B times this number m-coherence: how many samples profit from one sample).
    Per
    network and layer. It falls in training, as what is common is learned first; noise labels keep it low from the
    beginning. It depends on the batch size: compare runs of the same one, or use SignalShare.
    """

    needs = ("norms", "dots")
    layerwise = True
    description = "Agreement of individual gradients: 1 all the same, 1/B orthogonal, 0 they cancel."
    question = "how far do samples agree?"
    formula = "`||g||^2 / ((1/B) sum_n ||g_n||^2)`"
    cost = "nothing"

    def measure(self, statistics: Statistics) -> Value:
        names, B = [n for n in statistics.norms if n in statistics.dots], statistics.batch_size
        if not names:
            raise NoValue(statistics.reason("individual", "no layer has individual gradients"))
        means = {name: float(statistics.norms[name].sum()) / B for name in names}
        squares = {name: statistics.gradient_norms[name] ** 2 for name in names}
        if sum(means.values()) == 0:
            raise NoValue("the gradient is zero")
        layers = {name: squares[name] / means[name] for name in names if means[name] != 0}
        return Value(sum(squares.values()) / sum(means.values()), layers)
