"""The cockpit in a notebook: ``CockpitWidget(run)``, or ``CockpitWidget("runs/lenet")`` for a run of another process.

Importing this package imports neither torch nor the notebook libraries; those come with the first use of the class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cockpit_widget.widget import CockpitWidget as CockpitWidget

__all__ = ["CockpitWidget"]


def __getattr__(name: str) -> Any:
    if name == "CockpitWidget":
        from cockpit_widget.widget import CockpitWidget

        return CockpitWidget
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
