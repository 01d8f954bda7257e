from __future__ import annotations

from cockpit_core.quantities.base import Quantity, Statistics


class Time(Quantity):
    """How long has it taken? Seconds since the run began, by a monotonic clock."""

    unit = "s"
    description = "Seconds since the run began."
    formula = "seconds since the run began"

    def measure(self, statistics: Statistics) -> float:
        return statistics.time
