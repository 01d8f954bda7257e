from __future__ import annotations

from cockpit_core.quantities.base import NoValue, Quantity, Statistics, check_positive


class EarlyStopping(Quantity):
    """Is the gradient still more than noise? Evidence-based criterion (Mahsereci et al. 2017), stop when above 0:

    ``1 - (B/D) sum_j [g]_j^2 / ( ( sum_n [g_n]_j^2 - B [g]_j^2 )/(B-1) + eps )``. Derived for plain SGD.
    """

    needs = ("squares", "gradients")
    defined_for_sgd = True
    description = "Evidence-based criterion: above 0 the gradient is indistinguishable from noise."
    formula = "`1 - (B/D) sum_j g_j^2 / ( (sum_n g_nj^2 - B g_j^2)/(B-1) + eps )`; stop above 0"

    def __init__(self, *, epsilon: float = 1e-5, schedule=None):
        super().__init__(schedule=schedule)
        self.epsilon = check_positive("epsilon", epsilon)

    def measure(self, statistics: Statistics) -> float:
        B = statistics.batch_size
        if not statistics.squares:
            raise NoValue(statistics.reason("individual", "no layer has individual gradients"))
        if B < 2:
            raise NoValue("a batch of one sample has no variance")
        total, elements = 0.0, 0
        for name, squares in statistics.squares.items():
            g2 = statistics.gradients[name].double().square()
            variance = (squares.double() - B * g2) / (B - 1)
            total += float((g2 / (variance + self.epsilon)).sum())
            elements += g2.numel()
        return 1 - B / elements * total
