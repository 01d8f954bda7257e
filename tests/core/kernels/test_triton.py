"""The GPU kernel, without a GPU: its counts under Triton's interpreter, and what the compiler makes of it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not published for this system"
)


def run_python(code: str, **environment: str) -> str:
    # Ignored warnings: the interpreter computes with numpy, which warns when a product overflows, as it should.
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        capture_output=True, text=True, timeout=600, env={**os.environ, **environment},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_the_triton_kernel_gives_the_plain_counts(dtype: str) -> None:
    code = f"""
        import torch
        from cockpit_core.kernels import gpu
        from tests.core.kernels.cases import LOGARITHMIC, find_differences, make_cases
        # The interpreter's time goes by operations, not elements: few large programs, but several tiles and groups.
        gpu.TILE, gpu.ROWS = 512, 8
        cases = [case for case in make_cases(torch.{dtype}) if len(case.b) < 100]
        assert max(case.parameter.numel() for case in cases) > gpu.TILE
        assert max(len(case.b) for case in cases) > gpu.ROWS
        broken = ("NaN and infinity", "underflow", "deep underflow", "overflow", "typical")
        cases += [case._replace(spec=LOGARITHMIC) for case in cases if case.name in broken]
        print(len(cases), [line for case in cases for line in find_differences(case, "triton")])
    """
    number, differences = run_python(code, TRITON_INTERPRET="1").split(" ", 1)
    assert int(number) >= 22
    assert differences == "[]"


COMPILE = """
    import re, sys
    import triton, triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from cockpit_core.kernels import gpu

    for gradient in ("fp32", "fp64", "bf16", "fp16"):
        for outer, parameters, per_octave in ((True, 53, 0), (False, 1, 0), (True, 1, 2)):
            wide = "fp64" if gradient == "fp64" else "fp32"
            pointers = dict(left=gradient, right=gradient, parameter="u8", constants=wide, limits="i64", hottest="i32", table="i64")
            signature = {name: "*" + kind for name, kind in pointers.items()}
            signature |= dict.fromkeys(["samples", "elements", "inner", "categories"], "i32")
            options = dict(OUTER=outer, WIDE=tl.float64 if wide == "fp64" else tl.float32, PARAMETERS=parameters)
            options |= dict(PER_OCTAVE=per_octave)
            options |= dict(TILE=gpu.TILE, ROWS=gpu.ROWS, COPIES=gpu.COPIES, HOT=gpu.HOT)
            signature |= dict.fromkeys(options, "constexpr")
            source = ASTSource(gpu._count, signature, options)
            fusion = {"enable_fp_fusion": FUSION}
            text = triton.compile(source, target=GPUTarget("cuda", 80, 32), options=fusion).asm["ptx"]
            print(gradient, outer, len(re.findall(r"fma[.]rn", text)), text.count(".ftz"))
"""


def test_the_compiled_kernel_rounds_each_operation_and_keeps_subnormals(tmp_path: object) -> None:
    lines = run_python(COMPILE.replace("FUSION", "False"), TRITON_CACHE_DIR=str(tmp_path)).splitlines()
    assert len(lines) == 12
    assert [line for line in lines if not line.endswith(" 0 0")] == []


def test_with_fusion_the_compiler_would_merge_the_product_into_the_subtraction(tmp_path: object) -> None:
    """So the test above can fail, and ``enable_fp_fusion=False`` is not there for show."""
    lines = run_python(COMPILE.replace("FUSION", "True"), TRITON_CACHE_DIR=str(tmp_path)).splitlines()
    assert any(line.startswith("fp32 True") and not line.endswith(" 0 0") for line in lines)
