"""The arrows of the design, each held in a fresh interpreter: who imports what."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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


def test_core_imports_no_host_no_plotting_and_no_pandas() -> None:
    # The report serves both hosts' bundles and draws posters; it loads those only when it is asked for one.
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
    times = [float(subprocess.check_output(command, **options)) for _ in range(3)]
    assert min(times) < 0.3, times
