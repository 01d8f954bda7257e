"""The native kernels: C, compiled for this platform when the package was built, chosen for this processor at run time.

The library is loaded with ctypes and works on raw pointers: nothing of torch's C++ interface is in it, so that it survives
torch's releases, and the interpreter's lock is released while it runs. Where it is missing, ``find_library`` gives
None and the other paths are used.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).parent / "library"
LEVELS = {"x86_64": ("plain", "avx2", "avx512"), "aarch64": ("neon",)}
SYSTEMS = {"linux": ("linux", "so"), "darwin": ("macos", "dylib"), "win32": ("windows", "dll")}
TYPES = {torch.float32: "f32", torch.float64: "f64"}
SWITCH = "COCKPIT_NATIVE"  # "0": as if there were no library; a level's name: that one

_POINTER, _LONG, _INT, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_double
_COUNTED = [_POINTER, _POINTER, _LONG]  # the rule, the table and its size
_COMPARED = [_POINTER, _POINTER, _LONG, _POINTER]  # norms and dots, how many samples are compared, and where to
ARGUMENTS: dict[str, tuple[Any, list[Any]]] = {
    "reduce_block": (
        None,
        [_POINTER, _LONG, _LONG, _LONG, _REAL, _POINTER, _LONG, _INT, *_COUNTED, _POINTER, _POINTER],
    ),
    "reduce_blocks": (None, [_POINTER, _POINTER, _LONG, *_COUNTED, _POINTER, _POINTER]),
    "reduce_convolution": (
        _INT,
        [_POINTER, _POINTER, _LONG, _POINTER, _POINTER, _POINTER, _REAL, _POINTER, _LONG, _INT, *_COUNTED]
        + [_POINTER] * 4,
    ),
    "reduce_dense": (
        None,
        [*[_POINTER] * 2, _LONG, *[_POINTER] * 4, _REAL, _POINTER, _LONG, _INT, *_COUNTED, *_COMPARED],
    ),
    "compare_blocks": (None, [_POINTER, _POINTER, _LONG, _POINTER]),
    "move_channels": (None, [_POINTER, _POINTER, _LONG, _POINTER, _POINTER]),
    "find_moments": (None, [_POINTER, _LONG, _LONG, _LONG, _INT, _POINTER, _POINTER]),
    "sum_normalised": (None, [_POINTER, _POINTER, *[_LONG] * 4, _INT, *[_POINTER] * 4]),
    "square_convolution": (_INT, [*[_POINTER] * 3, _LONG, _INT, *[_POINTER] * 10]),
    "gather_convolution": (None, [*[_POINTER] * 3, _LONG, *[_POINTER] * 4]),
    "send_convolution": (None, [_POINTER, _POINTER, _LONG, _INT, *[_POINTER] * 9]),
    "count_outer": (None, [_POINTER, _POINTER, _LONG, _LONG, _LONG, _INT, *_COUNTED, *[_POINTER] * 3]),
    "describe_products": (_LONG, [_POINTER, _INT, _POINTER]),
    "count_pairs": (None, [_POINTER, _LONG, _LONG, _LONG, _POINTER, *_COUNTED]),
    "count_outer_pairs": (
        None,
        [_POINTER, _POINTER, _LONG, _LONG, _LONG, _INT, _POINTER, *_COUNTED, _LONG, _LONG, _POINTER],
    ),
    "sum_shares": (None, [_POINTER, _POINTER, _LONG, _POINTER]),
    "reduce_outer": (None, [_POINTER, _POINTER, _LONG, _LONG, _LONG, *[_POINTER] * 4]),
    "walk_apart": (None, [_POINTER, _LONG, _POINTER]),
    "describe_vectors": (None, [_POINTER, _LONG, _POINTER]),
    "walk_along": (None, [_POINTER, _POINTER, _LONG, _POINTER]),
    "describe_rows": (_LONG, [_POINTER, _LONG, _LONG, _POINTER]),
    "look_at_matrices": (None, [_POINTER, _LONG, _POINTER]),
    "reduce_grams": (None, [_POINTER, *[_LONG] * 3, _POINTER, _POINTER]),
    "fill_cells": (None, [_POINTER, _POINTER, *[_LONG] * 3]),
    "walk_convolutions": (None, [_POINTER]),
    "walk_normalised": (None, [_POINTER]),
    "walk_grams": (None, [_POINTER]),
    "walk_positions": (None, [_POINTER]),
    "walk_outer": (None, [_POINTER]),
    "step_back": (None, [*[_POINTER] * 4, _LONG, *[_POINTER] * 2, *[_LONG] * 4]),
}


def name_library(system: str = sys.platform, machine: str = "") -> str | None:
    """The file for this platform: ``x86_64-linux.so``; None where nobody builds one."""
    machine = (machine or platform.machine()).lower()
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    known = SYSTEMS.get(system)
    return f"{machine}-{known[0]}.{known[1]}" if known and machine in LEVELS else None


class Library:
    """One instruction set of the loaded library; ``function("reduce_block", torch.float32)`` is ready to be called."""

    def __init__(self, handle: ctypes.CDLL, level: str):
        self.handle, self.level = handle, level
        self._ready: dict[tuple[str, torch.dtype], Any] = {}

    def function(self, name: str, dtype: torch.dtype) -> Any:
        function = self._ready.get((name, dtype))
        if function is None:
            function = getattr(self.handle, f"{name}_{TYPES[dtype]}_{self.level}")
            function.restype, function.argtypes = ARGUMENTS[name]
            self._ready[name, dtype] = function
        return function


def list_levels() -> tuple[str, ...]:
    """What this processor can run, the fastest last; nothing without the library."""
    name = name_library()
    handle = None if name is None else _load(FOLDER / name)
    if name is None or handle is None:
        return ()
    return LEVELS[name.split("-")[0]][: 1 + int(handle.cockpit_level())]


@lru_cache
def _load(path: Path) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(str(path)) if path.exists() else None
    except OSError:  # built for another system: an old C library, a stricter linker
        return None


@lru_cache
def open_level(level: str) -> Library:
    name = name_library()
    handle = None if name is None else _load(FOLDER / name)
    if handle is None:
        raise RuntimeError("the native kernels were not built for this platform: reinstall, or use another path")
    return Library(handle, level)


@lru_cache
def find_library() -> Library | None:
    """The fastest kernels that this processor can run; None where the library is missing or switched off."""
    levels, wanted = list_levels(), os.environ.get(SWITCH, "")
    if not levels or wanted == "0":
        return None
    return open_level(wanted if wanted in levels else levels[-1])
