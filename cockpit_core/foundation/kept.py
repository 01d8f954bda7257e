"""``functools.cached_property`` without its lock: a judgement asks for a hundred of them, at each tracked step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class kept(Generic[T]):  # noqa: N801  (a decorator)
    """A property that is computed when it is first asked for. Of one thread's objects."""

    def __init__(self, function: Callable[[Any], T]):
        self.function, self.name, self.__doc__ = function, function.__name__, function.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> kept[T]: ...
    @overload
    def __get__(self, owner: object, kind: type) -> T: ...
    def __get__(self, owner: object | None, kind: type) -> kept[T] | T:
        if owner is None:
            return self
        value = owner.__dict__[self.name] = self.function(owner)
        return value
