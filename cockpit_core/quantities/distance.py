from __future__ import annotations

import torch

from cockpit_core.quantities.base import Quantity, Statistics, Value
from cockpit_core.quantities.norms import measure_norms, norm_value


class Distance(Quantity):
    """How far has training come? ``||theta_t - theta_0||_2``. Growth like sqrt(t) is diffusion, faster is progress."""

    needs = ("parameters", "start")
    configurations = ("economy", "business", "full")
    layerwise = True
    description = "Distance of the parameters from where the run began."
    formula = "length of `theta_t - theta_0`"
    headline = True

    def measure(self, statistics: Statistics) -> Value:
        names = [name for name in statistics.parameters if name in statistics.start]
        now, then = [statistics.parameters[n] for n in names], [statistics.start[n] for n in names]
        return norm_value(measure_norms(dict(zip(names, torch._foreach_sub(now, then), strict=True))) if names else {})
