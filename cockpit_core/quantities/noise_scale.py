from __future__ import annotations

import math

from cockpit_core.quantities.base import Quantity, Statistics, Value, check_window
from cockpit_core.quantities.signal_and_noise import NOISE, SIGNAL, SIGNAL_VAR, Averages, Window


class NoiseScale(Quantity):
    """Up to which batch size do larger batches pay? The simple gradient noise scale, in samples.

    ``mean tr(Sigma) / mean ||G||^2`` (McCandlish et al. 2018, arXiv 1812.06162, equation 2.9), both without bias from the
    individual gradients of one batch (``signal_and_noise``), averaged over the last ``window`` tracked steps before
    dividing; per network and layer (a layer's own share of both). Training to a given loss takes about ``1 + scale / B``
    times the fewest steps and ``1 + B / scale`` times the fewest samples: well below the scale doubling the batch halves
    the steps, well above it is a waste. An estimate, with the standard error of a jackknife over samples.
    It misleads where the curvature is far from the same in all directions (the simple scale ignores it), and while it
    changes faster than the window passes by. No value while no signal can be told from the noise.
    """

    needs = ("norms", "dots")
    layerwise = True
    unit = "samples"
    description = "Batch size up to which a larger batch pays: noise of individual gradients over their signal."
    question = "up to which batch size do larger batches pay?"
    formula = "`mean tr(Sigma) / mean ||G||^2` samples, an estimate with its error"
    cost = "next to nothing"

    def __init__(self, *, window: int = 200, schedule=None):
        super().__init__(schedule=schedule)
        self.window = check_window(window)
        self._seen = Window(self.window)

    def measure(self, statistics: Statistics) -> Value:
        averages = self._seen.add(statistics)
        layers = {
            name: averages.noise_over_signal(row).value
            for row, name in enumerate(averages.names, 1)
            if averages.rows[row, SIGNAL] > 0
        }
        if averages.rows[0, SIGNAL] <= 0:
            return Value(None, layers, reason=explain_no_signal(averages, statistics.batch_size))
        scale = averages.noise_over_signal()
        return Value(scale.value, layers, scale.error, f"mean of {averages.steps} tracked steps, jackknife")


def explain_no_signal(averages: Averages, B: int) -> str:
    noise, signal, variance = (float(averages.rows[0, column]) for column in (NOISE, SIGNAL, SIGNAL_VAR))
    seen = f"{averages.steps} tracked step{'s' if averages.steps > 1 else ''} of {B} samples"
    if noise == 0 and signal == 0:
        return "the gradient is zero"
    largest = signal + 2 * math.sqrt(variance) if variance == variance else 0.0
    bound = f"; it is probably above {float(f'{noise / largest:.2g}'):,.0f} samples" if largest > 0 else ""
    return f"no signal can be told from the noise in {seen} yet{bound}"
