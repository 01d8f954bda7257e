"""Shares of one piece of work in plain threads of our own: for loops that release the interpreter's lock."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
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


def deal(length: int, elements: int, alone: int, grain: int = 1) -> list[tuple[int, int]]:
    """As ``cut``, with all parts but the first in halves, at multiples of ``grain``. This thread begins at once. Another one
    may have to wait for a core on which a thread of torch still listens for work: it then does one half instead of two."""
    parts = len(cut(length // grain, elements, alone))
    marks = (0, *range(2, 2 * parts)) if parts > 1 else (0,)
    places = sorted({(length * mark + parts * grain) // (2 * parts * grain) * grain for mark in marks} | {length})
    return list(pairwise(places))


def share(run: Callable[[int, int], Result], bounds: list[tuple[int, int]]) -> list[Result]:
    """``run(start, stop)`` of each part, in their order. The first is done in this thread, the others by whoever is free; all
    have ended when one raises."""
    if len(bounds) == 1:
        return [run(*bounds[0])]
    left, results = deque(enumerate(bounds[1:], 1)), dict[int, Result]()

    def work() -> None:
        while left:
            try:
                place, own = left.popleft()
            except IndexError:  # another thread was faster
                return
            results[place] = run(*own)

    others = [_threads().submit(work) for _ in range(min(len(bounds), torch.get_num_threads()) - 1)]
    try:
        results[0] = run(*bounds[0])
        work()
    finally:
        for other in others:
            other.exception()
    for other in others:
        other.result()
    return [results[place] for place in range(len(bounds))]
