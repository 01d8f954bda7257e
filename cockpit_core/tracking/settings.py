"""What ``track`` was asked for, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cockpit_core.foundation.records import Finding
from cockpit_core.quantities import Quantity
from cockpit_core.schedules import Schedule, describe


@dataclass(frozen=True)
class Settings:
    """The options of ``track``, by their names; they are documented there. ``config`` is the name of the configuration."""

    quantities: list[Quantity]
    config: str
    schedule: Schedule
    budget: float | None
    layers: list[str] | None
    curvature: str
    curvature_samples: int | None
    batch_dim: int
    memory_budget: int
    on_error: str
    steps_per_epoch: float | None
    keep_start: int
    resume: bool
    step: int | None
    seed: int
    on_finding: Callable[[Finding], object] | None = None
    stop_on: str | None = None
    loan: float = 0.0
    """Seconds on credit for early steps, where nobody has named a budget."""

    def asks(self, need: str) -> bool:
        return any(need in quantity.needs for quantity in self.quantities)

    def describe(self, selected: Iterable[str]) -> str:
        """What several processes must have been told alike."""
        told = ([q.name for q in self.quantities], describe(self.schedule), self.curvature, sorted(selected))
        return f"{self.config}, {told}"
