from __future__ import annotations

import numpy as np

from cockpit_core.foundation.records import Histogram
from cockpit_core.foundation.sharded import whole
from cockpit_core.quantities.base import Quantity, Statistics, Value


class Parameters(Quantity):
    """Where is the network? The parameters ``theta_t`` themselves, stored like histograms: heavy, only on request.

    ``run.data.parameters(step)`` gives them back. Keep the schedule sparse: each record holds the whole network.
    """

    needs = ("snapshot",)
    kind = "parameters"
    description = "The parameters themselves; only on request."
    formula = "`theta_t` itself, on request: `run.data.parameters(step)`"

    def measure(self, statistics: Statistics) -> Value:
        nothing = np.zeros(0)
        layers = {
            name: Histogram(self.name, statistics.step, whole(p.detach()).cpu().numpy().copy(), nothing, layer=name)
            for name, p in statistics.parameters.items()  # copied: the optimizer is about to overwrite them
        }
        return Value(histograms=(Histogram(self.name, statistics.step, nothing, nothing), layers))
