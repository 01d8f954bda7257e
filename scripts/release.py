"""Builds sdist and wheel, installs the wheel into an empty environment, and runs the demo there.

``python scripts/release.py [--dist dist] [--extras fast]``. What is published is what was tried: the wheel is built from the
unpacked sdist, without Node, so a file that the sdist lacks is noticed here. Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECK = """
import sys
from pathlib import Path
import cockpit_core, cockpit_widget, tb_plugin
from importlib.metadata import entry_points, version
home = Path(sys.prefix).resolve()
for package in (cockpit_core, cockpit_widget, tb_plugin):
    assert home in Path(package.__file__).resolve().parents, f"{package.__name__} comes from {package.__file__}"
assert version("torch-cockpit") == cockpit_core.__version__, "two versions"
assert [e.name for e in entry_points(group="tensorboard_plugins") if e.value.startswith("tb_plugin")] == ["cockpit"]
run = cockpit_core.load(sys.argv[1])
assert run.status == "finished" and len(run.scalars("Loss")[0]) > 0, "the demo has left no finished run"
"""


def say(text: str) -> None:
    print(f"cockpit: {text}", flush=True)


def call(*command: str | Path, folder: Path, **environment: str) -> None:
    """Shows what a command said only if it failed."""
    began = time.monotonic()
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [str(part) for part in command], cwd=folder, env={**inherited, **environment}, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise SystemExit(f"cockpit: {' '.join(map(str, command))} failed\n{done.stdout}{done.stderr}")
    if time.monotonic() - began > 2:
        say(f"  {time.monotonic() - began:.0f} s")


def build(python: str, dist: Path, scratch: Path) -> tuple[Path, Path]:
    """The sdist from this folder, the wheel from the sdist; every older file in ``dist`` goes."""
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir(parents=True)
    say("building the sdist")
    call(python, "-m", "hatchling", "build", "-t", "sdist", "-d", dist, folder=ROOT)
    sdist = only(dist, "*.tar.gz")
    with tarfile.open(sdist) as packed:
        packed.extractall(scratch / "source", filter="data")
    say("building the wheel from the sdist, without Node")
    source = only(scratch / "source", "*")
    call(python, "-m", "hatchling", "build", "-t", "wheel", "-d", dist, folder=source, PATH="")
    return sdist, only(dist, "*.whl")


def only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise SystemExit(f"cockpit: expected one {pattern} in {folder}, found {[path.name for path in found]}")
    return found[0]


def try_wheel(wheel: Path, extras: str, scratch: Path) -> None:
    """In an environment that holds nothing else, and outside the clone, so that nothing is found here by accident."""
    say("making an empty environment")
    venv.create(scratch / "empty", with_pip=True)
    folder = scratch / "empty" / ("Scripts" if os.name == "nt" else "bin")
    python = folder / "python"
    say("installing the wheel and what it needs (some minutes, 2 GB)")
    wanted = f"{wheel}[{extras}]" if extras else str(wheel)
    call(python, "-m", "pip", "install", "-q", wanted, "-c", ROOT / "constraints.txt", folder=scratch)
    say("running the demo there")
    call(folder / "cockpit", "demo", "--logdir", scratch / "demo", folder=scratch)
    call(python, "-c", CHECK, scratch / "demo", folder=scratch)
    call(folder / "cockpit", "report", scratch / "demo", "-o", scratch / "demo.html", folder=scratch)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where sdist and wheel go (emptied first)")
    parser.add_argument("--extras", default="", help="extras to install with the wheel, such as fast")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        sdist, wheel = build(sys.executable, options.dist.resolve(), Path(scratch))
        try_wheel(wheel, options.extras, Path(scratch))
    say(f"{sdist.name} and {wheel.name} work; upload them with: twine upload {options.dist}/*")
    return 0


if __name__ == "__main__":
    sys.exit(main())
