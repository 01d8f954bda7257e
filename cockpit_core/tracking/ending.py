"""A script that forgets ``run.close()`` still leaves a finished log; one that fails leaves its error."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from typing import Protocol


class Ends(Protocol):
    def end(self, error: BaseException | None) -> None: ...


class Ending:
    def __init__(self, tracker: Ends):
        self.tracker = weakref.ref(tracker)
        self.process = os.getpid()
        atexit.register(self.at_exit)

    def done(self) -> None:
        atexit.unregister(self.at_exit)

    def at_exit(self) -> None:
        tracker = self.tracker()
        if tracker is None or os.getpid() != self.process:  # a fork of the training ends, not the training
            return
        tracker.end(getattr(sys, "last_value", None))
