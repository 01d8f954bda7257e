"""Cockpit: a debugger for training neural networks in PyTorch.

``track`` measures a training loop, ``load`` reads a run back, ``diagnose`` says what is wrong with it. Names are
imported when they are first used, so reading a log needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cockpit_core._version import __version__

if TYPE_CHECKING:
    from cockpit_core import problems, quantities, schedules
    from cockpit_core.comparing import compare
    from cockpit_core.datasets.with_ids import WithIds
    from cockpit_core.diagnosis.replay import diagnose
    from cockpit_core.events.data import RunData, load
    from cockpit_core.foundation.records import Evidence, Finding
    from cockpit_core.tracking.run import Run
    from cockpit_core.tracking.track import track

__all__ = [
    "Evidence",
    "Finding",
    "Run",
    "RunData",
    "WithIds",
    "__version__",
    "compare",
    "diagnose",
    "load",
    "problems",
    "quantities",
    "schedules",
    "track",
]

_HOMES = {
    "track": "tracking.track",
    "Run": "tracking.run",
    "load": "events.data",
    "RunData": "events.data",
    "compare": "comparing",
    "WithIds": "datasets.with_ids",
    "diagnose": "diagnosis.replay",
    "Finding": "foundation.records",
    "Evidence": "foundation.records",
}
_MODULES = ("problems", "quantities", "schedules")


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f"cockpit_core.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return import_module(f"cockpit_core.{name}")
    raise AttributeError(f"module 'cockpit_core' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
