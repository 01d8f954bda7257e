"""Words with one meaning each: what stands in CONTRIBUTING about rules, groups, rows and what was found."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("cockpit_core", "tb_plugin", "cockpit_widget")
TYPES = {
    "Rule": "cockpit_core/layers/registry.py",
    "Rows": "cockpit_core/layers/contribution.py",
    "Group": "cockpit_core/distributed/group.py",
    "Found": "cockpit_core/diagnosis/contract.py",
}
JUDGES = ("cockpit_core/diagnosis/", "cockpit_core/commands/diagnose.py", "cockpit_core/report/findings.py")
"""Where ``found`` is what a diagnosis has found."""


def names_in(code: str) -> set[str]:
    """All that is bound or read by name, arguments and attributes included."""
    nodes = list(ast.walk(ast.parse(code)))
    plain = {node.id for node in nodes if isinstance(node, ast.Name)}
    return (
        plain
        | {n.arg for n in nodes if isinstance(n, ast.arg)}
        | {n.attr for n in nodes if isinstance(n, ast.Attribute)}
    )


def types_in(code: str) -> set[str]:
    """Classes and aliases at the top of a module."""
    body = ast.parse(code).body
    aliases = {t.id for n in body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    return aliases | {node.name for node in body if isinstance(node, ast.ClassDef)}


def sources() -> dict[str, str]:
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in files}


def test_found_is_a_word_of_the_diagnosis() -> None:
    wrong = [name for name, code in sources().items() if "found" in names_in(code) and not name.startswith(JUDGES)]
    assert wrong == [], "say what it is: a layer, a match, a reason, numbers ..."


@pytest.mark.parametrize("word", TYPES)
def test_a_type_is_defined_once(word: str) -> None:
    assert [name for name, code in sources().items() if word in types_in(code)] == [TYPES[word]]


def test_a_second_meaning_would_be_seen() -> None:
    assert "found" in names_in("def f(found): return found") and "found" in names_in("self.found = 1")
    assert "found" not in names_in('"""was found"""')
    assert types_in("class Rows: ...\nRule = int") == {"Rows", "Rule"}
