"""What the widget needs from the kernel around it, and what it keeps the kernel from doing."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


def silence(comm: Any) -> None:
    """Handle the browser's messages without IPython's post_execute, which would close the user's half-drawn figure.

    A comm fires it around every message, on ipykernel 7 even while a cell runs, and matplotlib's inline backend
    answers by showing and closing all figures.
    """
    if comm is None or not hasattr(comm, "_msg_callback") or not hasattr(comm, "handle_msg"):
        return
    weak = weakref.ref(comm)

    def handle(msg: Any) -> None:
        comm = weak()
        if comm is not None and comm._msg_callback is not None:
            comm._msg_callback(msg)

    comm.handle_msg = handle


def after_each_cell(call: Callable[[], bool]) -> Callable[[], None] | None:
    """Call after every cell that was run; returns how to end it, or None where there are no cells."""
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    shell = get_ipython()
    if shell is None:
        return None

    def after(*_: Any) -> None:
        call()

    shell.events.register("post_run_cell", after)

    def unregister() -> None:
        try:
            shell.events.unregister("post_run_cell", after)
        except ValueError:
            pass  # somebody reset the events

    return unregister


def find_cell() -> str:
    """The id of the cell that is running, where the notebook tells; "" elsewhere."""
    try:
        from IPython import get_ipython

        metadata = get_ipython().get_parent()["metadata"]
        return str(metadata.get("cellId") or "")
    except (ImportError, AttributeError, KeyError, TypeError, LookupError):
        return ""
