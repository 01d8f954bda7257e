"""The diagnoses: one file each, and the folder is the registry. Adding one means adding a file. No torch here."""

from __future__ import annotations

import importlib
import pkgutil

from cockpit_core.diagnoses.base import Diagnosis, Found, evidence

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def all_diagnoses() -> dict[str, type[Diagnosis]]:
    """Ours, and those that a user has defined: every subclass that has a name."""
    classes: dict[str, type[Diagnosis]] = {}
    waiting = list(Diagnosis.__subclasses__())
    while waiting:
        cls = waiting.pop(0)
        waiting += cls.__subclasses__()
        if cls.name:
            classes.setdefault(cls.name, cls)
    return dict(sorted(classes.items()))


__all__ = ["Diagnosis", "Found", "all_diagnoses", "evidence"]
