"""Builds and loads the stand-in device, once: ``torch.device("standin")``.

Loading it changes torch for the whole process (there is an accelerator now), so tests on it run in one of their own:
see ``test_stand_in.py``.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

HERE = Path(__file__).parent
SOURCES = [HERE / name for name in ("stand_in.cpp", "call.h", "device.h")]
NAME = "standin"
Heard = Callable[[str, str], None]
LISTENER = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)


def why_not() -> str:
    """Why there can be no stand-in here; empty if there can."""
    if not sys.platform.startswith("linux"):
        return "the stand-in device is built on Linux only"
    if compiler() is None:
        return "there is no C++ compiler"
    return "" if headers() else "this torch came without its headers"


def compiler() -> str | None:
    return shutil.which(os.environ.get("CXX", "g++")) or shutil.which("c++")


def headers() -> list[Path]:
    root = Path(torch.__file__).parent / "include"
    return [root, root / "torch" / "csrc" / "api" / "include"] if (root / "ATen" / "ATen.h").exists() else []


def build() -> Path:
    """The library; under ``build/``, named by what it was made of."""
    text = b"".join(path.read_bytes() for path in SOURCES) + torch.__version__.encode()
    folder = HERE.parents[1] / "build" / "stand_in"
    library = folder / f"stand_in_{hashlib.sha256(text).hexdigest()[:16]}.so"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # several processes of one test run want it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            compile_into(library)
    return library


def compile_into(library: Path) -> None:
    partial = library.with_suffix(".partial")
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    torch_libraries = Path(torch.__file__).parent / "lib"
    command = [
        str(compiler()), "-std=c++20", "-O0", "-fPIC", "-shared", "-w", f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
        *(f"-I{folder}" for folder in headers()), str(SOURCES[0]), "-o", str(partial),
        f"-L{torch_libraries}", "-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{torch_libraries}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the stand-in device does not build:\n{done.stderr[-6000:]}")
    partial.rename(library)


@cache
def load() -> StandIn:
    library = ctypes.CDLL(str(build()))
    library.stand_in_begin()
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, make_module(library))
    return StandIn(library)


class StandIn:
    """What tests set and count."""

    def __init__(self, library: ctypes.CDLL):
        self.library = library
        for name in ("waits", "uploads", "operations"):
            getattr(library, f"stand_in_{name}").restype = ctypes.c_int64
        for name in ("ahead", "time"):
            getattr(library, f"stand_in_{name}").restype = ctypes.c_double
        self.device = torch.device(NAME, 0)
        self._heard: object = None

    @property
    def waits(self) -> int:
        return self.library.stand_in_waits()

    @property
    def uploads(self) -> int:
        return self.library.stand_in_uploads()

    @property
    def operations(self) -> int:
        return self.library.stand_in_operations()

    @property
    def ahead(self) -> float:
        """Seconds of work that the device has not done yet."""
        return self.library.stand_in_ahead()

    @property
    def time(self) -> float:
        """By the host's made-up clock, which goes on when it waits."""
        return self.library.stand_in_time()

    def host_works(self, seconds: float) -> None:
        self.library.stand_in_host_works(ctypes.c_double(seconds))

    def compute(self, seconds: float) -> None:
        """Keep the device busy; nobody waits for it."""
        self.library.stand_in_compute(ctypes.c_double(seconds))

    @contextmanager
    def each_takes(self, seconds: float) -> Iterator[None]:
        """So long for every operation."""
        self.library.stand_in_set_time_of_each(ctypes.c_double(seconds))
        try:
            yield
        finally:
            self.library.stand_in_set_time_of_each(ctypes.c_double(0.0))

    @contextmanager
    def heard_by(self, heard: Heard) -> Iterator[None]:
        """``heard(kind, operation)`` for every wait and every upload."""
        self._heard = LISTENER(lambda kind, operation: heard(kind.decode(), operation.decode()))
        self.library.stand_in_listen(self._heard)
        try:
            yield
        finally:
            self.library.stand_in_listen(LISTENER(0))


def make_module(library: ctypes.CDLL) -> types.ModuleType:
    """``torch.standin``, with what torch asks such a module for."""
    library.stand_in_state_size.restype = ctypes.c_int64
    size = library.stand_in_state_size()

    def get_rng_state(device: object = None) -> torch.Tensor:
        state = torch.empty(size, dtype=torch.uint8)
        library.stand_in_get_state(ctypes.c_void_p(state.data_ptr()))
        return state

    def set_rng_state(state: torch.Tensor, device: object = None) -> None:
        library.stand_in_set_state(ctypes.c_void_p(state.contiguous().data_ptr()))

    def manual_seed(seed: int) -> None:
        library.stand_in_seed(ctypes.c_uint64(seed % 2**64))

    module = types.ModuleType(f"torch.{NAME}")
    vars(module).update(
        get_rng_state=get_rng_state, set_rng_state=set_rng_state, manual_seed=manual_seed, manual_seed_all=manual_seed,
        device_count=lambda: 1, is_available=lambda: True, current_device=lambda: 0, set_device=lambda device: None,
        _is_in_bad_fork=lambda: False, _lazy_init=lambda: None, is_initialized=lambda: True,
        get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
        current_stream=lambda device=None: torch.accelerator.current_stream(),
        synchronize=lambda device=None: torch.accelerator.synchronize(),
    )  # fmt: skip
    return module
