"""The arrows of the design, each held in a fresh interpreter: who imports what."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOSTS = ("cockpit_widget", "tb_plugin")
HEAVY = ("torch", "backpack", "matplotlib", "pandas", "sklearn", "tensorboard", "anywidget", "ipywidgets", "numba")


def list_modules(folder: str) -> list[str]:
    """Every module of a package, by name."""
    files = sorted((ROOT / folder).rglob("*.py"))
    names = [file.relative_to(ROOT).with_suffix("").parts for file in files]
    return [".".join(name[:-1] if name[-1] == "__init__" else name) for name in names]


def find_imported(code: str, watched: tuple[str, ...]) -> list[str]:
    """Which of the watched packages a fresh interpreter has loaded after running ``code``."""
    probe = (
        f"{code}\nimport json, sys\nprint()\nprint(json.dumps([name for name in {watched!r} if name in sys.modules]))"
    )
    result = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def is_inside_function(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    while node in parents:
        node = parents[node]
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return True
    return False


def read_imports(code: str, known: Collection[str]) -> set[str]:
    """Modules that this one needs to be read, those under ``TYPE_CHECKING`` included; not what a function opens later."""
    tree = ast.parse(code)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    found = set()
    for node in ast.walk(tree):
        if is_inside_function(node, parents):
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in known else node.module for name in names}
    return found & set(known)


def find_cycles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Groups of names that can each be reached from the others."""
    reach = {name: set(ends) for name, ends in arrows.items()}
    for middle in reach:
        for name in reach:
            if middle in reach[name]:
                reach[name] |= reach[middle]
    groups = {tuple(sorted({name} | {o for o in reach[name] if name in reach.get(o, ())})) for name in reach}
    return sorted([list(group) for group in groups if len(group) > 1])


def read_arrows() -> dict[str, set[str]]:
    names = list_modules("cockpit_core")
    files = {name: ROOT / name.replace(".", "/") for name in names}
    codes = {name: (f / "__init__.py" if f.is_dir() else f.with_suffix(".py")).read_text() for name, f in files.items()}
    return {name: read_imports(code, names) - {name} for name, code in codes.items()}


def test_no_module_needs_itself_to_be_read() -> None:
    """In circles, types included: what knows what can be drawn with arrows that point one way."""
    assert find_cycles(read_arrows()) == []


def arrows_of_packages(arrows: dict[str, set[str]]) -> dict[str, set[str]]:
    """Between the folders of the core; single files beside them are no folder, but have arrows too."""
    found: dict[str, set[str]] = {}
    for name, ends in arrows.items():
        own = ".".join(name.split(".")[:2])
        found.setdefault(own, set()).update(".".join(end.split(".")[:2]) for end in ends)
    return {name: ends - {name} for name, ends in found.items()}


def test_no_package_needs_itself_to_be_read() -> None:
    assert find_cycles(arrows_of_packages(read_arrows())) == []


def test_engine_asks_nothing_of_those_who_use_it() -> None:
    users = ("recording", "tracking", "signals", "report", "commands", "diagnosis", "integrations")
    arrows = read_arrows()
    for room, others in {
        "engine": users,
        "distributed": (*users, "engine", "quantities"),
        "curvature": (*users, "engine", "quantities", "distributed"),
        "layers": (*users, "engine", "quantities", "distributed", "curvature"),
        "foundation": (*users, "engine", "quantities", "distributed", "curvature", "layers", "kernels", "events"),
    }.items():
        own = {name: ends for name, ends in arrows.items() if name.startswith(f"cockpit_core.{room}")}
        taken = [(name, end) for name, ends in own.items() for end in ends if end.split(".")[1] in others]
        assert taken == [], room


def test_only_the_centre_of_the_engine_holds_all_of_it() -> None:
    """Every other part of the engine, and of what joins processes, takes what it needs and returns a value."""
    for folder in ("engine", "distributed"):
        for file in (ROOT / "cockpit_core" / folder).rglob("*.py"):
            arguments = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.arg)]
            assert not {"engine", "run"} & {node.arg for node in arguments}, file


def find_questions(code: str) -> list[str]:
    """Where code asks a group whether it is alone, instead of asking what it may do."""
    asked = []
    for node in ast.walk(ast.parse(code)):
        known = (
            node.attr if isinstance(node, ast.Attribute) else "",
            getattr(node, "id", ""),
            getattr(node, "name", ""),
        )
        compared = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        compared += [node.test] if isinstance(node, (ast.If, ast.IfExp)) else []
        ends = {".".join(ast.unparse(part).split(".")[-2:]).removeprefix("self.") for part in compared}
        if {"is_joint", "Processes", "get_world_size"} & set(known) or {"group", "group.size"} & ends:
            asked.append(ast.unparse(node).splitlines()[0])
    return asked


def test_only_the_room_of_processes_asks_whether_there_are_several() -> None:
    """Being alone is a group of one: everybody else takes the same way, and the group decides what differs."""
    for room in ("curvature", "engine", "kernels", "layers", "quantities", "recording", "tracking"):
        for file in (ROOT / "cockpit_core" / room).rglob("*.py"):
            assert find_questions(file.read_text()) == [], file


@pytest.mark.parametrize(
    "code",
    [
        "x = 0 if self.group.is_joint else 1",
        "if group is not None: pass",
        "if self.group: pass",
        "several = group.size > 1",
        "from cockpit_core.distributed.group import Processes",
        "isinstance(group, Processes)",
    ],
)
def test_the_question_would_be_seen(code: str) -> None:
    assert find_questions(code)


def test_what_a_group_may_do_is_no_question() -> None:
    assert find_questions("x = job.size / self.group.size\nif group.reduces_late: pass\ny = self.group.broken") == []


def test_a_circle_would_be_seen() -> None:
    code = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a.b import C\ndef f():\n    import a.d"
    assert read_imports(code, {"a.b", "a.d"}) == {"a.b"}
    assert find_cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    packages = arrows_of_packages({"core.a.x": {"core.b.y"}, "core.a.z": set(), "core.b.w": {"core.a.z"}})
    assert find_cycles(packages) == [["core.a", "core.b"]]


def test_core_imports_no_host_no_plotting_and_no_pandas() -> None:
    # The report draws posters; it loads matplotlib only when it is asked for one.
    # An integration imports the library that it is for, which may bring anything; nothing else imports the integration.
    names = [name for name in list_modules("cockpit_core") if not name.startswith("cockpit_core.integrations.")]
    code = "\n".join(f"import {name}" for name in names)
    libraries = ("lightning", "transformers", "accelerate")
    assert (
        find_imported(code, (*HOSTS, *libraries, "matplotlib", "pandas", "anywidget", "ipywidgets", "tensorboard"))
        == []
    )


def test_importing_the_core_loads_nothing_heavy() -> None:
    assert find_imported("import cockpit_core", (*HOSTS, *HEAVY)) == []


def test_diagnosing_a_log_loads_no_torch() -> None:
    code = "import cockpit_core, cockpit_core.diagnosis.live, cockpit_core.commands.diagnose\ncockpit_core.diagnose"
    assert find_imported(code, HEAVY) == []


def test_tensorboard_starts_without_torch() -> None:
    code = "import tb_plugin.loader"
    assert find_imported(code, ("torch", "backpack", "matplotlib", "pandas", "cockpit_widget", "anywidget")) == []


def test_tensorboard_plugin_serves_without_torch() -> None:
    code = "\n".join(f"import {name}" for name in list_modules("tb_plugin"))
    assert find_imported(code, ("torch", "backpack", "matplotlib", "pandas", "cockpit_widget", "anywidget")) == []


def test_widget_imports_neither_torch_nor_plotting() -> None:
    code = "\n".join(f"import {name}" for name in list_modules("cockpit_widget"))
    assert find_imported(code, ("torch", "backpack", "matplotlib", "pandas", "tensorboard", "tb_plugin")) == []


def test_reading_a_log_does_not_import_torch(tmp_path: Path) -> None:
    code = (
        "import cockpit_core\n"
        "from cockpit_core.events.writer import EventWriter\n"
        "from cockpit_core.foundation.records import Header, Record\n"
        f"writer = EventWriter({str(tmp_path / 'run')!r})\n"
        "writer.write_header(Header(run_id='1', name='run', created=0.0))\n"
        "writer.write_record(Record(kind='step', step=0, wall_time=0.0, time=0.0, scalars={'Loss': 1.0}))\n"
        "writer.close()\n"
        f"data = cockpit_core.load({str(tmp_path / 'run')!r})\n"
        "assert data.scalars('Loss')[1].tolist() == [1.0]"
    )
    assert find_imported(code, (*HOSTS, *HEAVY)) == []


def test_looking_at_runs_in_the_terminal_does_not_import_torch(tmp_path: Path) -> None:
    code = f"from cockpit_core.commands.cli import main\nassert main(['ls', {str(tmp_path)!r}]) == 1"
    assert find_imported(code, (*HOSTS, *HEAVY)) == []


def test_a_forbidden_import_would_be_seen() -> None:
    assert find_imported("import cockpit_core.report.terminal, ipywidgets", HEAVY) == ["ipywidgets"]


def test_a_module_that_cannot_be_imported_would_be_seen() -> None:
    with pytest.raises(AssertionError, match="no_such_module"):
        find_imported("import cockpit_core.no_such_module", HEAVY)


def test_importing_the_core_is_quick_beyond_torch(tmp_path: Path) -> None:
    """The promise is 0.3 s, compiled before. In processor time, because other programs run on the machine too."""
    code = (
        "import time, torch\nbegan = time.process_time()\nimport cockpit_core\ncockpit_core.track\n"
        "print(time.process_time() - began)"
    )
    command = [sys.executable, "-c", code]
    cached = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    cached["PYTHONPYCACHEPREFIX"] = str(tmp_path)
    options = {"cwd": ROOT, "text": True, "timeout": 120, "env": cached}
    times = [1.0]
    while (
        min(times) >= 0.3 and len(times) < 9
    ):  # the first one compiles; caches that others empty slow any of them down
        times.append(float(subprocess.check_output(command, **options)))
    assert min(times) < 0.3, times
