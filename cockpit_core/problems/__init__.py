"""Training problems by name: one function each, and the folder is the registry.

Your own problem is one function too, in a module of your own: ``cockpit sweep mypackage:my_problem``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from cockpit_core.problems.base import Data, Problem, Split

__all__ = ["Data", "Problem", "Split", "UnknownName", "find", "find_object", "names"]


class UnknownName(ValueError):
    """A problem or an optimizer that does not exist; the message lists those that do."""


def _collect() -> dict[str, Callable[[], Problem]]:
    """Functions that are annotated to return a Problem, in order of their names."""
    makers: dict[str, Callable[[], Problem]] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for name, value in vars(module).items():
            annotations = getattr(value, "__annotations__", {})
            public = (
                callable(value) and not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
            )
            if public and annotations == {"return": "Problem"}:
                makers[name] = value
    return dict(sorted(makers.items()))


def names() -> list[str]:
    return list(_collect())


def find(name: str) -> Problem:
    """The problem of that name, or the user's own ``module:function``."""
    if ":" in name:
        value = find_object(name, "problem")
        problem = value() if callable(value) else value
    else:
        known = _collect()
        if name not in known:
            raise UnknownName(
                f"there is no problem {name!r}; there are {', '.join(known)}, and module:function of your own"
            )
        problem = known[name]()
    if not isinstance(problem, Problem):
        raise UnknownName(f"{name} gives a {type(problem).__name__}, not a cockpit_core.problems.Problem")
    return problem


def find_object(name: str, what: str) -> Any:
    """``module:name`` from a module of the user; an error names both parts."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # the user's module may raise anything at import
        reason = f"{type(error).__name__}: {error}"
        raise UnknownName(f"the {what} {attribute!r} cannot be loaded from the module {module!r} ({reason})") from error
