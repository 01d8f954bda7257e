"""A script that forgets ``run.close()`` still leaves a finished log; one that fails leaves its error."""

from __future__ import annotations

import atexit
import sys
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cockpit_core.run import Run


class Ending:
    def __init__(self, run: Run):
        self.run = weakref.ref(run)
        atexit.register(self.at_exit)

    def done(self) -> None:
        atexit.unregister(self.at_exit)

    def at_exit(self) -> None:
        run = self.run()
        if run is None:
            return
        error = getattr(sys, "last_value", None)
        run.__exit__(type(error), error, None)
