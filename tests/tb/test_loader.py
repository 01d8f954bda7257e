"""TensorBoard must start for everybody, whatever is wrong with us."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from tb_plugin.loader import CockpitLoader

ROOT = Path(__file__).resolve().parents[2]


def parse(*argv: str) -> argparse.Namespace:
    """TensorBoard's own parser and order: flags of the core first, then ours."""
    from tensorboard import program
    from tensorboard.plugins.core import core_plugin

    board = program.TensorBoard([core_plugin.CorePluginLoader(), CockpitLoader()])
    board.configure(["tensorboard", "--logdir", "somewhere", *argv])
    return board.flags


def test_all_records_are_kept_by_default() -> None:
    assert parse().samples_per_plugin == {"cockpit": 0}


def test_the_flag_of_the_user_limits_the_records() -> None:
    assert parse("--cockpit_samples", "7").samples_per_plugin == {"cockpit": 7}


def test_tensorboards_own_flag_goes_before_ours() -> None:
    flags = parse("--samples_per_plugin", "cockpit=5,images=3", "--cockpit_samples", "7")
    assert flags.samples_per_plugin == {"cockpit": 5, "images": 3}


def test_no_other_plugin_is_touched() -> None:
    assert parse("--samples_per_plugin", "scalars=9").samples_per_plugin == {"scalars": 9, "cockpit": 0}


def test_several_files_in_a_run_directory_are_followed() -> None:
    assert parse().reload_multifile is True


def test_the_user_may_refuse_to_follow_several_files() -> None:
    assert parse("--reload_multifile", "false").reload_multifile is False


@pytest.mark.parametrize("flags", [argparse.Namespace(), None, argparse.Namespace(samples_per_plugin=3)])
def test_unexpected_flags_are_a_warning_and_no_error(flags: object, caplog: pytest.LogCaptureFixture) -> None:
    CockpitLoader().fix_flags(flags)  # type: ignore[arg-type]
    assert "could not ask TensorBoard to keep all records" in caplog.text


def test_a_flag_that_is_taken_is_a_warning_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cockpit_samples")
    CockpitLoader().define_flags(parser)
    assert "--cockpit_samples" in caplog.text


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r} or name.startswith({name!r} + "."):
            raise RuntimeError("broken on purpose: " + name)
sys.meta_path.insert(0, Block())
"""


def our_modules() -> list[str]:
    """Every module that may be imported between TensorBoard's start and an open tab, except the loader."""
    plugin = [f"tb_plugin.{path.stem}" for path in sorted((ROOT / "tb_plugin").glob("*.py"))]
    core = ["cockpit_core", "cockpit_core.events", "cockpit_core.schema", "cockpit_core.foundation.records"]
    return [name for name in plugin if name not in ("tb_plugin.__init__", "tb_plugin.loader")] + core


def test_the_list_of_modules_is_the_folder() -> None:
    assert {"tb_plugin.plugin", "tb_plugin.cache", "tb_plugin.provider", "tb_plugin.assets"} <= set(our_modules())


@pytest.mark.parametrize("module", our_modules())
def test_a_module_that_raises_on_import_only_switches_the_tab_off(module: str) -> None:
    code = BLOCK.format(name=module) + (
        "from tb_plugin.loader import CockpitLoader\n"
        "from tensorboard.plugins.base_plugin import TBContext\n"
        "assert CockpitLoader().load(TBContext(data_provider=object())) is None\n"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert "is switched off in this TensorBoard" in done.stderr
    assert "broken on purpose" in done.stderr


def test_the_plugin_loads_where_nothing_is_broken() -> None:
    done = run_python(
        BLOCK.format(name="no_such_module")
        + "from tb_plugin.loader import CockpitLoader\n"
        + "from tensorboard.plugins.base_plugin import TBContext\n"
        + "assert CockpitLoader().load(TBContext(data_provider=object())).plugin_name == 'cockpit'\n"
    )
    assert done.returncode == 0, done.stderr


def test_the_loader_imports_nothing_of_ours_and_nothing_heavy() -> None:
    done = run_python(
        "import tb_plugin.loader, sys\n"
        "ours = [m for m in sys.modules if m.split('.')[0] in ('cockpit_core', 'cockpit_widget', 'tb_plugin')]\n"
        "assert sorted(ours) == ['tb_plugin', 'tb_plugin.loader'], ours\n"
        "assert not {'torch', 'numpy', 'google.protobuf'} & set(sys.modules)\n"
    )
    assert done.returncode == 0, done.stderr


def test_the_plugin_needs_no_torch() -> None:
    done = run_python(BLOCK.format(name="torch") + "import tb_plugin.plugin, sys\nassert 'torch' not in sys.modules\n")
    assert done.returncode == 0, done.stderr


def test_the_blocker_of_these_tests_blocks() -> None:
    done = run_python(BLOCK.format(name="torch") + "import torch\n")
    assert done.returncode != 0
    assert "broken on purpose: torch" in done.stderr
