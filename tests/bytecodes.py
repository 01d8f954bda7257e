"""How much Python a function runs, counted instead of timed: the same on every machine, however busy it is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, TypeVar

from torch.utils._python_dispatch import TorchDispatchMode

Training = TypeVar("Training")
INSTRUCTIONS_OF_20_MICROSECONDS = 600
"""An instruction took 30 to 35 ns where promises of microseconds were measured (Python 3.11, calls into C included;
`python -m benchmarks.idle` times them)."""


def instructions(function: Callable[[], object]) -> int:
    """Instructions of the interpreter that a call runs, in all frames of this thread."""
    count = 0

    def inside(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "opcode"
        return inside

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes = True
        return inside

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


class Operators(TorchDispatchMode):
    """Counts the operators of torch that run inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operators(function: Callable[[], object]) -> int:
    with Operators() as seen:
        function()
    return seen.count


def assert_next_to_nothing(
    step: Callable[[Training], object],
    make: Callable[[], Training],
    track: Callable[[Training], AbstractContextManager[object]],
) -> None:
    """What steps that are not scheduled run beside those of an untracked twin. Some things are done every twentieth step."""
    plain, tracked = make(), make()
    step(plain)
    alone = instructions(lambda: step(plain)), operators(lambda: step(plain))
    with track(tracked):
        for _ in range(20):
            step(tracked)
        ours = [instructions(lambda: step(tracked)) for _ in range(40)]
        run = [operators(lambda: step(tracked)) for _ in range(20)]
    assert 0 < sum(ours) / len(ours) - alone[0] < INSTRUCTIONS_OF_20_MICROSECONDS
    assert sum(run) / len(run) - alone[1] < 2  # the loss is copied
