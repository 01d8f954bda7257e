"""The NEON kernels, without such a processor: compiled here, run by an emulator, compared with the plain path."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from cockpit_core.kernels import AnyBins, Bins, Counts, LogBins, Spec, count_outer, count_values, native
from cockpit_core.kernels.native import convolving, reducing
from tests.core.kernels.test_native import make_patches

EMULATOR = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
SOURCES = Path(native.__file__).parent / "source"
SCALES = [Bins(-2, 2, 100), LogBins(2)]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(EMULATOR is None, reason="no qemu-user"),
    pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="no ziglang"),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("arm") / "check"
    flags = "-target aarch64-linux-gnu -O3 -ffp-contract=off -fno-math-errno -nostdlib -static".split()
    command = [sys.executable, "-m", "ziglang", "cc", *flags, f"-I{SOURCES}", "-o", str(made)]
    subprocess.run([*command, str(Path(__file__).parent / "arm_check.c")], check=True, capture_output=True)
    return made


def run(program: Path, header: list[int], bins: AnyBins, *arrays: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    rule = torch.zeros(32, dtype=torch.float64)
    described = reducing.describe_rule(bins, False)
    rule[: len(described)] = described
    numbers = np.array([*header, *[0] * (16 - len(header))], np.int64)
    data = b"".join(part.tobytes() for part in (numbers, rule.numpy(), *arrays))
    found = subprocess.run(
        [str(EMULATOR), str(program)], input=data, capture_output=True, check=True, timeout=120
    ).stdout
    size, samples = header[5], header[1]
    table = torch.frombuffer(bytearray(found[: 32 * size]), dtype=torch.int64).view(4, size).sum(0)
    rest = torch.frombuffer(bytearray(found[32 * size :]), dtype=torch.float64)
    return table, rest[:samples], rest[samples:].view(samples, 2)


@pytest.mark.parametrize("bins", SCALES, ids=["linear", "log"])
def test_a_block_is_reduced(program: Path, bins: AnyBins) -> None:
    torch.manual_seed(0)
    G, V = 0.02 * torch.randn(5, 1003), torch.randn(2, 1003)
    G[1, 7], G[2, 1002] = float("nan"), -float("inf")
    table, norms, dots = run(program, [0, 5, 1003, 0, 0, bins.count + 5], bins, G.numpy(), V.numpy())
    counts = Counts.zeros(Spec(bins))
    count_values(3 * G, None, Spec(bins), counts, path="plain")
    assert torch.equal(table, counts.table1d)
    torch.testing.assert_close(norms[3:], (3 * G[3:].double()).square().sum(1), rtol=1e-5, atol=0)
    torch.testing.assert_close(dots[3:], 3 * G[3:].double() @ V.double().T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("bins", SCALES, ids=["linear", "log"])
def test_products_are_counted(program: Path, bins: AnyBins, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    b, a = (0.05 * torch.randn(4, 60)).to(dtype), torch.randn(4, 700).relu().to(dtype)
    b[0, 3], a[1, 2] = float("inf"), float("nan")
    kind = {torch.bfloat16: 1, torch.float16: 2}.get(dtype, 0)
    table, *_ = run(program, [1, 4, 60, 700, kind, bins.count + 5], bins, b.float().numpy(), a.float().numpy())
    counts = Counts.zeros(Spec(bins))
    count_outer(b, a, None, Spec(bins), counts, path="plain")
    assert torch.equal(table, counts.table1d)


@pytest.mark.parametrize("name", ["three by three", "wide", "seven by seven"])
def test_a_convolution_is_walked_over(program: Path, name: str) -> None:
    part, directions = make_patches(name, torch.float32)
    kernel, space, out = part.geometry[0], tuple(part.image.shape[2:]), tuple(part.left.shape[2:])
    places, starts, rows = convolving.lay_out(part.geometry, space, out, part.image.shape[1])
    image, along = (
        convolving.move_channels(part.image, 1),
        convolving.move_directions(directions, tuple(part.shape), torch.float32),
    )
    assert along is not None
    each = part.image[0].numel()
    sizes = [1, part.left.shape[1], each, len(places), len(starts), *rows]
    bins, numbers = Bins(-2, 2, 100), part.shape.numel()
    header = [2, part.samples, part.left.shape[1], numbers, 0, bins.count + 5, len(image), *sizes]
    arrays = (image.numpy(), part.left.numpy(), along.numpy(), places, starts)
    table, norms, dots = run(program, header, bins, *arrays)
    G = part.form(0, part.samples).flatten(1).double()
    assert len(kernel) == 2
    assert int(table.sum()) == G.numel()
    torch.testing.assert_close(norms, G.square().sum(1), rtol=1e-5, atol=0)
    expected = G @ torch.stack([d.flatten() for d in directions]).double().T
    torch.testing.assert_close(dots, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
