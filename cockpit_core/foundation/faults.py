"""Errors of ours must not reach the user's training: warn once, put it on record, go on."""

from __future__ import annotations

import signal
import sys
import warnings
from asyncio import CancelledError
from collections.abc import Callable
from types import CodeType, FrameType

MEANT_FOR_THE_USER = (KeyboardInterrupt, SystemExit, GeneratorExit, CancelledError)
"""Never an error of ours, wherever they are raised."""
LONGEST_TEXT = 2_000
OURS = ("cockpit_core", "torch", "contextlib")


class Explained(Exception):
    """One of ours: its message is the reason that the user reads."""


class Faults:
    """``note`` is told what was caught: where, and the error as text."""

    def __init__(self, on_error: str, note: Callable[[str, str], None]):
        self.on_error, self.note = on_error, note
        self.warned: set[str] = set()

    def guard(self, where: str) -> Guard:
        return Guard(self, where)

    def take(self, where: str, error: BaseException) -> None:
        message = describe_error(error)
        self.note(where, message)
        self.warn(f"error {where}", f"Cockpit: {where} failed and is skipped ({message}); training goes on.")

    def warn(self, key: str, message: str) -> None:
        """Once per key."""
        if key not in self.warned:
            self.warned.add(key)
            say(message)


class Guard:
    """``with faults.guard("where"):`` by hand, because a tracked step has dozens of them."""

    __slots__ = ("faults", "where")

    def __init__(self, faults: Faults, where: str):
        self.faults, self.where = faults, where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if error is None:
            return False
        if self.faults.on_error == "raise" or is_interruption(error):
            return False
        self.faults.take(self.where, error)  # a panic in compiled code is not an Exception
        return True


def say(message: str) -> None:
    """A warning that never becomes an error: with ``python -W error`` one of ours would end the training. Nor may
    whatever shows warnings end it (``warnings.showwarning``, a closed terminal)."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        try:
            warnings.warn(message, stacklevel=find_caller())
        except BaseException as error:
            if is_interruption(error):
                raise


def find_caller() -> int:
    """How far up the stack the user's own line is: behind ours and torch's, which called us."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).split(".")[0] not in OURS:
            return level
        frame, level = frame.f_back, level + 1
    return 2


def describe_error(error: BaseException) -> str:
    """``Type: text``, even where there is no text: an exception's own ``__str__`` may raise."""
    return f"{type(error).__name__}: {text_of(error)}"


def text_of(error: BaseException) -> str:
    """``str(error)``, or why there is none. What cannot be written to a file as UTF-8 is replaced."""
    for show in (str, repr):
        try:
            text = show(error)
            return text[:LONGEST_TEXT].encode("utf-8", "replace").decode("utf-8")
        except BaseException as other:
            if is_interruption(other):
                raise
    return "(this error cannot be shown: its __str__ and __repr__ raise)"


def is_interruption(error: BaseException) -> bool:
    """Somebody wants the program to stop: Ctrl-C, an exit, or the user's handler for a signal (an alarm, a scheduler's
    notice before it ends a job) that happened to run while we worked."""
    return isinstance(error, MEANT_FOR_THE_USER) or was_raised_by_signal(error)


def was_raised_by_signal(error: BaseException) -> bool:
    handlers = find_signal_handlers()
    trace = error.__traceback__
    while trace is not None and handlers:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def find_signal_handlers() -> set[CodeType]:
    """The code of every handler that is written in Python."""
    codes = set()
    for number in signal.valid_signals():
        try:
            handler = signal.getsignal(number)
        except (ValueError, OSError):
            continue
        handler = getattr(handler, "func", handler)  # a partial function
        handler = getattr(handler, "__func__", handler)  # a bound method
        if not hasattr(handler, "__code__"):  # an object that can be called
            handler = vars(type(handler)).get("__call__")
        code = getattr(handler, "__code__", None)
        if isinstance(code, CodeType):
            codes.add(code)
    return codes
