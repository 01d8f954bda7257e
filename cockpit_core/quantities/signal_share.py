from __future__ import annotations

from cockpit_core.quantities.base import NoValue, Quantity, Statistics, Value, check_window
from cockpit_core.quantities.signal_and_noise import Window


class SignalShare(Quantity):
    """How much of the batch gradient is signal? 1 is all of it, 0 is nothing but noise.

    ``mean ||G||^2 / mean ||g||^2`` with the signal ``||G||^2 = (B ||g||^2 - m) / (B - 1)``, ``m = (1/B) sum_n ||g_n||^2``,
    both averaged over the last ``window`` tracked steps; with one step it is ``1 - NormTest^2``. Per network and layer.
    An estimate, with the standard error of a jackknife over samples. It may fall below 0 where there is no signal to be
    found. It misleads where samples of a batch are not drawn independently (sorted data, several views of a picture).
    """

    needs = ("norms", "dots")
    layerwise = True
    description = "Share of signal in the batch gradient: 1 is all signal, 0 all noise."
    question = "how much of the gradient is signal?"
    formula = "`mean ||G||^2 / mean ||g||^2`, an estimate with its error"
    cost = "next to nothing"

    def __init__(self, *, window: int = 200, schedule=None):
        super().__init__(schedule=schedule)
        self.window = check_window(window)
        self._seen = Window(self.window)

    def measure(self, statistics: Statistics) -> Value:
        averages = self._seen.add(statistics)
        if averages.rows[0, 2] == 0:
            raise NoValue("the gradient is zero")
        share = averages.signal_over_squared()
        layers = {
            name: averages.signal_over_squared(row).value
            for row, name in enumerate(averages.names, 1)
            if averages.rows[row, 2] > 0
        }
        return Value(share.value, layers, share.error, f"mean of {averages.steps} tracked steps, jackknife")
