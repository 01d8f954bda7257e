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
            made = triton.compile(source, target=GPUTarget(TARGET), options=fusion).asm
            text = made.get("ptx") or made["amdgcn"]
            kept = text.count(".ftz") if "ptx" in made else 2 - len(re.findall(r"denorm_mode_(?:32|16_64) 3", text))
            fused = len(re.findall(r"fma[.]rn|v_(?:pk_)?fma", text))
            print(gradient, outer, bool(made.get("cubin") or made.get("hsaco")), fused, kept)
"""
TARGETS = {"sm_80": '"cuda", 80, 32', "sm_90": '"cuda", 90, 32', "gfx942": '"hip", "gfx942", 64'}


def compile_for(target: str, fusion: bool, cache: object) -> list[list[str]]:
    """Of each variant: type, outer, is there code for the machine, operations that were merged, subnormals that are lost."""
    code = COMPILE.replace("FUSION", str(fusion)).replace("TARGET", TARGETS[target])
    return [line.split() for line in run_python(code, TRITON_CACHE_DIR=str(cache)).splitlines()]


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_the_compiled_kernel_rounds_each_operation_and_keeps_subnormals(target: str, tmp_path: object) -> None:
    found = compile_for(target, False, tmp_path)
    assert len(found) == 12
    assert [line for line in found if line[2:] != ["True", "0", "0"]] == []


def test_with_fusion_the_compiler_would_merge_the_product_into_the_subtraction(tmp_path: object) -> None:
    """So the test above can fail, and ``enable_fp_fusion=False`` is not there for show."""
    found = compile_for("sm_80", True, tmp_path)
    assert any(line[:2] == ["fp32", "True"] and line[3] != "0" for line in found)


def test_the_kernel_compiled_for_amd_keeps_subnormals_and_merges_no_more_than_it_must(tmp_path: object) -> None:
    """Dividing whole numbers takes merged operations there, always the same ones: with fusion there are more."""
    found, fused = (compile_for("gfx942", fusion, tmp_path) for fusion in (False, True))
    assert len(found) == 12
    assert [line for line in found if (line[2], line[4]) != ("True", "0")] == []
    assert all(int(own[3]) <= int(other[3]) for own, other in zip(found, fused, strict=True))
    assert any(int(own[3]) < int(other[3]) for own, other in zip(found, fused, strict=True))
