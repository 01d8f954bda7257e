"""Errors of ours must not reach the user's training: warn once, put it on record, go on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Faults:
    """``note`` gets what was caught: where, and the error as text."""

    def __init__(self, on_error: str, note: Callable[[str, str], None]):
        self.on_error, self.note = on_error, note
        self.warned: set[str] = set()

    @contextmanager
    def guard(self, where: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if self.on_error == "raise":
                raise
            self.take(where, error)

    def take(self, where: str, error: Exception) -> None:
        message = f"{type(error).__name__}: {error}"
        self.note(where, message)
        self.warn(f"error {where}", f"Cockpit: {where} failed and is skipped ({message}); training goes on.")

    def warn(self, key: str, message: str) -> None:
        """Once per key. Never as an error: with ``python -W error`` a warning of ours would end the training."""
        if key not in self.warned:
            self.warned.add(key)
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                warnings.warn(message, stacklevel=4)
