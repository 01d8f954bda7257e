"""Code that one can read at a glance: no file over 350 lines, no function over 50."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINES, BODY = 350, 50
GENERATED = ("cockpit_pb2.py", "cockpit_pb2.pyi", "cockpit_pb.ts")
TOO_LONG: set[str] = set()
"""Still to be divided. A file that is no longer too long must go from here."""


def our_files(*kinds: str) -> list[Path]:
    try:
        listed = subprocess.check_output(["git", "ls-files", *kinds], cwd=ROOT, text=True).split("\n")
    except (OSError, subprocess.CalledProcessError):  # an unpacked source distribution
        listed = [str(p.relative_to(ROOT)) for kind in kinds for p in (ROOT / "cockpit_core").rglob(kind)]
    return [ROOT / name for name in listed if name and Path(name).name not in GENERATED and (ROOT / name).exists()]


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """From behind the signature to the end, without the docstring."""
    first = node.body[1] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body[0]
    return (node.end_lineno or first.lineno) - first.lineno + 1


def long_functions(code: str) -> list[str]:
    nodes = [n for n in ast.walk(ast.parse(code)) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return [node.name for node in nodes if body_lines(node) > BODY]


def test_no_file_is_long() -> None:
    files = our_files("*.py", "*.ts", "*.mjs")
    long = {str(f.relative_to(ROOT)) for f in files if f.read_text().count("\n") > LINES}
    assert long == TOO_LONG & {str(f.relative_to(ROOT)) for f in files}


def test_no_function_is_long() -> None:
    """But for the loops of strangers: people write a training program in one piece."""
    ours = [f for f in our_files("*.py") if "elsewhere" not in f.parts]
    found = {str(f.relative_to(ROOT)): long_functions(f.read_text()) for f in ours}
    assert {name: functions for name, functions in found.items() if functions} == {}


def test_a_long_function_would_be_seen() -> None:
    short = 'def f():\n    """' + "\n" * 60 + '"""\n    return 1\n'
    assert long_functions(short) == []
    assert long_functions("def f():\n" + "    x = 1\n" * 51) == ["f"]
