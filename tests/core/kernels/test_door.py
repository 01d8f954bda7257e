"""Which path is taken, and what is particular to loops in threads of our own: forks, memory, and going on without them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
import torch

from cockpit_core.kernels import Counts, count_outer, count_values, prepare_parameter, threads
from cockpit_core.kernels import door as count
from cockpit_core.kernels.native import counting, list_levels, reducing
from tests.core.kernels.cases import DEFAULT, find_differences, make_cases

pytestmark = pytest.mark.skipif(not list_levels(), reason="the native kernels were not built: python hatch_build.py")


def run_python(code: str, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, timeout=300, env={**os.environ, **environment},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_cpu_tensors_take_the_native_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    assert count.choose_path(torch.device("cpu")) == "native"
    assert count.choose_path(torch.device("cuda")) == ("triton" if count.is_there("triton") else "plain")
    assert count.choose_path(torch.device("mps")) == "plain"
    monkeypatch.setattr(count, "find_library", lambda: None)
    assert count.choose_path(torch.device("cpu")) == "plain"


def test_threads_do_not_change_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "ALONE", 1)
    monkeypatch.setattr(reducing, "ALONE", 1)
    torch.set_num_threads(3)
    started = set()
    make = threads._threads

    def remember() -> object:
        pool = make()
        started.add(pool)
        return pool

    monkeypatch.setattr(threads, "_threads", remember)
    assert [line for case in make_cases(torch.float32) for line in find_differences(case, "native")] == []
    assert started, "no second thread was used, so nothing was tested"


def test_blocks_of_samples_do_not_change_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "BLOCK", 5)
    for dtype in (torch.float32, torch.bfloat16):
        assert [line for case in make_cases(dtype) for line in find_differences(case, "native")] == []


def test_one_thread_starts_no_thread() -> None:
    code = """
        import threading, torch
        from cockpit_core.kernels import Counts, count_values, prepare_parameter
        from tests.core.kernels.cases import DEFAULT
        torch.set_num_threads(1)
        counts = Counts.zeros(DEFAULT)
        count_values(torch.randn(4, 50000), prepare_parameter(torch.randn(50000), DEFAULT), DEFAULT, counts)
        print(counts.counts1d.sum(), [t.name for t in threading.enumerate() if t.name.startswith("cockpit")])
    """
    assert run_python(code) == "200000 []"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_worker_can_count_too() -> None:
    """Story: OpenMP aborts a forked data-loading worker that counts in threads; ours must survive."""
    code = """
        import os, torch
        from cockpit_core.kernels import Counts, count_values, prepare_parameter, threads
        from cockpit_core.kernels.native import counting
        from tests.core.kernels.cases import DEFAULT
        torch.set_num_threads(2)
        counting.ALONE = 1
        values, bins = torch.randn(4, 5000), prepare_parameter(torch.randn(5000), DEFAULT)

        def measure():
            counts = Counts.zeros(DEFAULT)
            count_values(values, bins, DEFAULT, counts, path="native")
            return counts.counts2d

        before = measure()
        child = os.fork()
        if child == 0:
            os._exit(0 if threads._pool is None and (measure() == before).all() else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), (measure() == before).all())
    """
    assert run_python(code) == "0 True"


def test_without_the_library_the_plain_path_gives_the_same_counts() -> None:
    code = """
        import sys
        sys.modules["triton"] = None
        import torch
        from cockpit_core.kernels import Counts, count_values, prepare_parameter
        from cockpit_core.kernels import door as count
        from tests.core.kernels.cases import DEFAULT
        torch.manual_seed(0)
        counts = Counts.zeros(DEFAULT)
        count_values(torch.randn(4, 5000), prepare_parameter(torch.randn(5000), DEFAULT), DEFAULT, counts)
        print(count.choose_path(torch.device("cpu")), count.choose_path(torch.device("cuda")), counts.counts2d.tolist())
    """
    torch.manual_seed(0)
    counts = Counts.zeros(DEFAULT)
    count_values(torch.randn(4, 5000), prepare_parameter(torch.randn(5000), DEFAULT), DEFAULT, counts, path="native")
    assert run_python(code, COCKPIT_NATIVE="0") == f"plain plain {counts.counts2d.tolist()}"


def test_importing_the_kernels_imports_no_compiler() -> None:
    code = "import sys, cockpit_core.kernels; print(sorted({'triton'} & set(sys.modules)))"
    assert run_python(code) == "[]"


def test_a_path_that_breaks_is_replaced_once_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(count, "_failed", set())

    def fill_the_disk(values: object, parameter: object, bins: object, table: torch.Tensor) -> None:
        table += 1
        raise OSError("no space left for the cache")

    monkeypatch.setattr(counting, "count_values", fill_the_disk)
    bins = prepare_parameter(torch.zeros(50), DEFAULT)
    counts = Counts.zeros(DEFAULT)
    with pytest.warns(RuntimeWarning, match="no space left") as warned:
        count_values(torch.zeros(3, 50), bins, DEFAULT, counts)
    assert len(warned) == 1
    count_values(torch.zeros(3, 50), bins, DEFAULT, counts)  # a second warning would be an error here
    assert counts.counts1d.sum() == counts.counts2d.sum() == 300
    with pytest.raises(OSError, match="no space"):
        count_values(torch.zeros(3, 50), bins, DEFAULT, counts, path="native")


@pytest.mark.parametrize("path", ["plain", "native"])
def test_the_products_are_never_stored(path: str) -> None:
    """16 million products would take 64 MB; the whole count must do with a small part of that."""
    code = f"""
        import torch
        from cockpit_core.kernels import Counts, count_outer, prepare_parameter
        from tests.core.kernels.cases import DEFAULT
        from tests.peak_memory import megabytes
        torch.set_num_threads(1)
        parameter = torch.randn(500, 1000)
        bins = prepare_parameter(parameter, DEFAULT)
        count_outer(torch.randn(2, 500), torch.randn(2, 1000), bins, DEFAULT, Counts.zeros(DEFAULT), path={path!r})
        before = megabytes()
        counts = Counts.zeros(DEFAULT)
        count_outer(0.1 * torch.randn(32, 500), torch.randn(32, 1000), bins, DEFAULT, counts, path={path!r})
        print(counts.counts1d.sum(), megabytes() - before)
    """
    total, grown = run_python(code).split()
    assert int(total) == 16_000_000
    assert float(grown) < 24, f"peak memory grew by {grown} MB"


def test_two_threads_of_the_user_may_count_at_once() -> None:
    torch.manual_seed(0)
    b, a, parameter = 0.1 * torch.randn(16, 80), torch.randn(16, 90), torch.randn(80, 90)
    bins = prepare_parameter(parameter, DEFAULT)

    def measure(into: list[np.ndarray]) -> None:
        for _ in range(20):
            counts = Counts.zeros(DEFAULT)
            count_outer(b, a, bins, DEFAULT, counts, path="native")
            into.append(counts.counts2d)

    found: list[np.ndarray] = []
    threads = [threading.Thread(target=measure, args=(found,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40
    assert all((one == found[0]).all() for one in found)
