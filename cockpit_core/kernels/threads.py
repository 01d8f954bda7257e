"""Shares of one piece of work in plain threads of our own: for loops that release the interpreter's lock."""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")

_pool: ThreadPoolExecutor | None = None
_pool_size = 0


_forked = False


def _forget_pool() -> None:
    global _pool, _forked
    _pool, _forked = None, True


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
    """``run(start, stop)`` of each part, in their order, by whoever is free; all have ended when one raises."""
    if len(bounds) == 1:
        return [run(*bounds[0])]
    left, results = deque(enumerate(bounds)), dict[int, Result]()

    def work() -> None:
        while left:
            try:
                place, own = left.popleft()
            except IndexError:  # another thread was faster
                return
            results[place] = run(*own)

    wanted, team = torch.get_num_threads(), _find_team_here()
    if team is not None and len(bounds) >= wanted:  # a smaller team would send its other threads away
        errors = _work_in_team(work, team, wanted)
    else:
        errors = _work_in_pool(work, min(len(bounds), wanted))
    if errors:
        raise errors[0]
    return [results[place] for place in range(len(bounds))]


def _work_in_pool(work: Callable[[], None], number: int) -> list[BaseException]:
    others = [_threads().submit(work) for _ in range(number - 1)]
    errors = list[BaseException | None]()
    try:
        work()
    except BaseException as error:
        errors.append(error)
    errors += [other.exception() for other in others]
    return [error for error in errors if error is not None]


def _work_in_team(work: Callable[[], None], team: Any, number: int) -> list[BaseException]:
    errors = list[BaseException]()

    def one(_: Any) -> None:
        try:
            work()
        except BaseException as error:  # an error must not leave a function that C has called
            errors.append(error)

    team(ctypes.cast(_CALLED(one), ctypes.c_void_p), None, number, 0)
    return errors


_CALLED = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _find_team_here() -> Any:
    return None if _forked else find_team()  # it does not survive a fork


@lru_cache
def find_team() -> Any:
    """How torch wakes its own threads, where they are those of OpenMP; else None.

    After a loop of torch they listen for the next one for a while, each on a core of its own. Another thread has to wait for
    one of these cores, but they begin at once."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        function = ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_NOW).GOMP_parallel
    except (OSError, AttributeError):  # another system, or another way to share work
        return None
    function.restype = None
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    return function


def work_together(kernel: Any, work: int, threads: int) -> None:
    """``kernel(work)``, a native function, in so many threads at once: each takes items of the work until none is left. Fewer
    may come."""
    if threads <= 1:
        kernel(work)
        return
    team = _find_team_here()
    if team is not None:
        team(ctypes.cast(kernel, ctypes.c_void_p), work, threads, 0)
    else:
        share(lambda low, high: kernel(work), [(k, k + 1) for k in range(threads)])
