"""The JupyterLab tests with other versions of ipykernel: ``python -m tests.e2e.try_kernels [6.31.0 7.3.0 ...]``

They differ in what a busy kernel hears, and in where it sends its answers. Each version gets an environment of its own
that sees the packages of this one, so that nothing else differs and nothing is installed twice.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

VERSIONS = ("6.31.0", "7.3.0", "7.4.0")
TEST = "tests/e2e/test_jupyter.py::test_cockpit_lives_while_the_cell_is_busy_and_afterwards"


def make_environment(folder: Path, version: str) -> str:
    """The path of a Python with this ipykernel, and everything else from here."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    own = subprocess.check_output([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True)
    (Path(own.strip()) / "beside.pth").write_text(sysconfig.get_path("purelib") + "\n")
    packages = [f"ipykernel=={version}", "nest-asyncio"]  # 6 asks for the latter, and newer ones do not bring it
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", *packages], check=True)
    found = subprocess.check_output([python, "-c", "import ipykernel; print(ipykernel.__version__)"], text=True)
    assert found.strip() == version
    return python


def main() -> int:
    failed = []
    for version in sys.argv[1:] or VERSIONS:
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "COCKPIT_KERNEL_PYTHON": make_environment(Path(folder), version)}
            code = subprocess.run([sys.executable, "-m", "pytest", "-q", "-x", TEST], env=environment).returncode
        print(f"ipykernel {version}: {'failed' if code else 'passed'}", flush=True)
        failed += [version] * bool(code)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
