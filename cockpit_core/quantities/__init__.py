"""The quantities: one file each, and the folder is the registry. Adding one means adding a file."""

from __future__ import annotations

import importlib
import pkgutil

from cockpit_core.quantities.base import NoValue, Quantity, Statistics, Value

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

ALL: dict[str, type[Quantity]] = {
    cls.__name__: cls
    for cls in sorted(Quantity.__subclasses__(), key=lambda c: c.__name__)
    if cls.__module__.startswith(__name__)
}
globals().update(ALL)

HEADLINES = (*(name for name, cls in ALL.items() if cls.headline), "LearningRate")
"""Written as plain scalars too; the learning rate is no quantity, but comes with every step."""

CONFIGURATIONS = ("economy", "business", "full")

__all__ = [
    "ALL",
    "CONFIGURATIONS",
    "HEADLINES",
    "NoValue",
    "Quantity",
    "Statistics",
    "Value",
    "configuration",
    "everything",
    "named",
    *ALL,
]


def configuration(name: str) -> list[Quantity]:
    """The quantities of "economy", "business" or "full", with their defaults."""
    if name not in CONFIGURATIONS:
        raise ValueError(f"config must be one of {', '.join(CONFIGURATIONS)} or a list of quantities, got {name!r}")
    return [cls() for cls in ALL.values() if name in cls.configurations]


def everything() -> list[Quantity]:
    """Those of "full", and the instruments beyond the paper: what a budget chooses from."""
    return [cls() for cls in ALL.values() if "full" in cls.configurations or cls.question]


def named(name: str) -> Quantity:
    """The quantity of that name, with its defaults."""
    if name not in ALL:
        raise ValueError(f"there is no quantity {name!r}; there are {', '.join(ALL)}")
    return ALL[name]()
