"""Shares of one piece of work in plain threads of our own: for loops that release the interpreter's lock."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Result = TypeVar("Result")

_pool: ThreadPoolExecutor | None = None
_pool_size = 0


def _forget_pool() -> None:
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):  # the threads do not survive a fork; the child makes its own
    os.register_at_fork(after_in_child=_forget_pool)


def _threads() -> ThreadPoolExecutor:
    global _pool, _pool_size
    wanted = torch.get_num_threads()
    if _pool is None or _pool_size < wanted:
        _pool, _pool_size = ThreadPoolExecutor(wanted, thread_name_prefix="cockpit-histogram"), wanted
    return _pool


def cut(length: int, elements: int, alone: int) -> list[tuple[int, int]]:
    """``range(length)`` in as many parts as torch has threads; fewer where one has less than ``alone`` elements to do."""
    parts = max(1, min(torch.get_num_threads(), length, elements // alone))
    return [(length * k // parts, length * (k + 1) // parts) for k in range(parts)]


def share(run: Callable[[int, int], Result], bounds: list[tuple[int, int]]) -> list[Result]:
    """``run(start, stop)`` of each part, the first in this thread; all have ended when one raises."""
    others = [_threads().submit(run, start, stop) for start, stop in bounds[1:]]
    try:
        first = run(*bounds[0])
    finally:
        for other in others:
            other.exception()
    return [first, *(other.result() for other in others)]
