"""What is shipped: the bundles are rebuilt exactly when they must be, and whoever installs needs no Node."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
NATIVE = "cockpit_core/kernels/native/library"
BUNDLES = {"cockpit_widget/static/widget.js", "cockpit_core/report/static/report.js", "tb_plugin/static/index.js"}


def load_script(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, Path, list[str]]:
    """The build hook on a small tree of its own, with npm replaced by something that writes bundles."""
    hook = load_script("hatch_build.py")
    calls: list[str] = []

    def run_npm(npm: str, *arguments: str) -> None:
        calls.append(" ".join(arguments[:2]))
        if arguments[0] == "run":
            for name in sorted(BUNDLES):
                (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / name).write_text((tmp_path / "js/src/panel.ts").read_text())

    for name in ("package.json", "package-lock.json", "js/src/panel.ts"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    monkeypatch.setattr(hook, "ROOT", tmp_path)
    monkeypatch.setattr(hook, "run_npm", run_npm)
    monkeypatch.setattr(hook.shutil, "which", lambda name: f"/usr/bin/{name}")
    return hook, tmp_path, calls


def test_bundles_are_built_once_and_again_when_a_source_changes(tree: tuple[ModuleType, Path, list[str]]) -> None:
    hook, root, calls = tree
    hook.build_bundles()
    hook.build_bundles()
    assert calls == ["ci --no-fund", "run build"]
    (root / "js/src/panel.ts").write_text("2")
    hook.build_bundles()
    assert calls[2:] == ["ci --no-fund", "run build"]
    assert (root / "tb_plugin/static/index.js").read_text() == "2"


def test_a_bundle_changed_by_other_hands_is_built_again(tree: tuple[ModuleType, Path, list[str]]) -> None:
    hook, root, _ = tree
    hook.build_bundles()
    (root / "tb_plugin/static/index.js").write_text("built by hand from something else")
    assert not hook.is_fresh()
    hook.build_bundles()
    assert (root / "tb_plugin/static/index.js").read_text() == "1"


def test_a_test_of_a_panel_does_not_count_as_a_source(tree: tuple[ModuleType, Path, list[str]]) -> None:
    hook, root, _ = tree
    hook.build_bundles()
    (root / "js/src/panel.test.ts").write_text("new")
    assert hook.is_fresh()


def test_without_npm_existing_bundles_are_used(
    tree: tuple[ModuleType, Path, list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hook, root, calls = tree
    hook.build_bundles()
    (root / "js/src/panel.ts").write_text("2")
    monkeypatch.setattr(hook.shutil, "which", lambda name: None)
    hook.build_bundles()
    assert len(calls) == 2
    assert "npm was not found" in capsys.readouterr().err


def test_without_npm_and_bundles_the_error_says_what_to_install(
    tree: tuple[ModuleType, Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    hook, _, _ = tree
    monkeypatch.setattr(hook.shutil, "which", lambda name: None)
    with pytest.raises(hook.BuildError, match="install Node 20"):
        hook.build_bundles()


def test_a_failing_build_shows_what_npm_said(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = load_script("hatch_build.py")
    with pytest.raises(hook.BuildError, match="no such panel"):
        hook.run_npm(sys.executable, "-c", "import sys; print('no such panel'); sys.exit(3)")


def test_without_the_compiler_the_native_kernels_are_left_out(
    tree: tuple[ModuleType, Path, list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hook, root, _ = tree
    (root / hook.NATIVE / "source").mkdir(parents=True)
    monkeypatch.setattr(hook.importlib.util, "find_spec", lambda name: None)
    hook.build_native(["x86_64-linux.so"])
    assert "ziglang is not installed" in capsys.readouterr().err
    assert not (root / hook.NATIVE / "library").exists()


def test_native_kernels_are_compiled_once_and_again_when_a_source_changes(
    tree: tuple[ModuleType, Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    hook, root, _ = tree
    source, compiled = root / hook.NATIVE / "source/kernels.c", list[str]()
    source.parent.mkdir(parents=True)
    source.write_text("int one;")

    def run_zig(*arguments: str) -> None:
        Path(arguments[arguments.index("-o") + 1]).write_text("")
        if "-shared" in arguments:
            compiled.append(arguments[arguments.index("-target") + 1])

    monkeypatch.setattr(hook, "run_zig", run_zig)
    monkeypatch.setattr(hook.importlib.util, "find_spec", lambda name: name)
    hook.build_native(["aarch64-linux.so"])
    hook.build_native(["aarch64-linux.so"])
    assert compiled == ["aarch64-linux-gnu.2.17"]
    hook.build_native(["aarch64-linux.so", "aarch64-macos.dylib"])
    assert compiled[1:] == ["aarch64-macos"]
    source.write_text("int two;")
    hook.build_native(["aarch64-linux.so", "aarch64-macos.dylib"])
    assert len(compiled) == 4


def build(target: str, source: Path, folder: Path, **environment: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    result = subprocess.run(
        command, cwd=source, capture_output=True, text=True, timeout=300, env={**os.environ, **environment}
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return next(folder.iterdir())


@pytest.mark.slow
def test_wheel_and_sdist_hold_everything_and_the_sdist_needs_no_node(tmp_path: Path) -> None:
    wheel = zipfile.ZipFile(build("wheel", ROOT, tmp_path / "wheel"))
    names = set(wheel.namelist())
    needed = BUNDLES | {
        "cockpit_core/schema/cockpit.proto",
        "cockpit_core/schema/cockpit_pb2.py",
        "cockpit_core/commands/cli.py",
        "tb_plugin/loader.py",
        *(f"{NATIVE}/{name}" for name in load_script("hatch_build.py").PLATFORMS),
    }
    assert needed <= names
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {
        "cockpit_core",
        "cockpit_widget",
        "tb_plugin",
    }
    entry_points = wheel.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    assert "cockpit = cockpit_core.commands.cli:main" in entry_points
    assert "[tensorboard_plugins]\ncockpit = tb_plugin.loader:CockpitLoader" in entry_points

    with tarfile.open(build("sdist", ROOT, tmp_path / "sdist")) as sdist:
        sdist.extractall(tmp_path / "source", filter="data")
    source = next((tmp_path / "source").iterdir())
    stamp = json.loads((source / "cockpit_widget/static/built_from.json").read_text())
    assert set(stamp) == {"sources", "bundles"}
    take_kernels_of_other_platforms(source)
    again = zipfile.ZipFile(build("wheel", source, tmp_path / "again", PATH=""))
    for name in (*BUNDLES, f"{NATIVE}/{this_machine()}"):
        assert again.read(name) == wheel.read(name), name


def this_machine() -> str:
    return str(load_script("hatch_build.py").name_library())


def take_kernels_of_other_platforms(source: Path) -> None:
    """They were compiled a moment ago; from the sources of the sdist only this machine's are compiled again."""
    (source / NATIVE).mkdir()
    stamps = json.loads((ROOT / NATIVE / "built_from.json").read_text())
    del stamps[this_machine()]
    (source / NATIVE / "built_from.json").write_text(json.dumps(stamps))
    for name in stamps:
        shutil.copy(ROOT / NATIVE / name, source / NATIVE / name)


def test_a_browser_that_does_not_start_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    finder = load_script("scripts/find_browser.py")
    monkeypatch.delenv("COCKPIT_BROWSER", raising=False)
    monkeypatch.setattr(finder, "find_on_path", lambda: iter(["/bin/broken"]))
    monkeypatch.setattr(finder, "find_playwright", lambda: iter(["/cache/chromium"]))
    monkeypatch.setattr(finder, "starts", lambda path: path == "/cache/chromium")
    assert finder.find_browser() == "/cache/chromium"


def test_when_playwright_cannot_download_the_system_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    finder = load_script("scripts/find_browser.py")
    commands: list[tuple[str, ...]] = []

    def run(*command: str) -> bool:
        commands.append(command)
        return command[0] == "apt-get"

    monkeypatch.setattr(finder, "run", run)
    monkeypatch.setattr(finder, "is_root", lambda: True)
    monkeypatch.setattr(finder.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(finder, "find_browser", lambda: "/usr/bin/chromium" if commands[-1][0] == "apt-get" else None)
    assert finder.install_browser() == "/usr/bin/chromium"
    assert commands[-1] == ("apt-get", "install", "-y", "-qq", "chromium")
