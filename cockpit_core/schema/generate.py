"""Regenerate what is made from cockpit.proto: ``python cockpit_core/schema/generate.py [--check]``.

The generator is pinned and lives in an environment of its own (``.venv-generate``): code from 1.63.2 imports under
protobuf 5.26 to 7.x, but the generator itself cannot be installed beside a current TensorBoard. TypeScript is made
only where ``npm ci`` has put ``protoc-gen-es``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROTO = "cockpit_core/schema/cockpit.proto"  # also the name in the descriptor pool: must be unique among packages
ENVIRONMENT = ROOT / ".venv-generate"
PACKAGES = ["grpcio-tools==1.63.2", "setuptools<81"]  # the generator imports pkg_resources, gone in setuptools 81
TYPESCRIPT = "js/src/gen"


def make_environment() -> Path:
    """The Python of the generator's environment, which is made where it is missing."""
    python = ENVIRONMENT / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    works = python.exists() and subprocess.run([python, "-c", "import grpc_tools.protoc"], capture_output=True)
    if not works or works.returncode:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *PACKAGES], check=True)
    return python


def find_typescript_plugin() -> Path | None:
    name = "protoc-gen-es.cmd" if os.name == "nt" else "protoc-gen-es"
    plugin = ROOT / "node_modules" / ".bin" / name
    return plugin if plugin.exists() else None


def generate(target: Path) -> list[str]:
    """Write all generated files below ``target`` and return their paths relative to it."""
    command: list[str | Path] = [make_environment(), "-m", "grpc_tools.protoc", f"-I{ROOT}"]
    command += [f"--python_out={target}", f"--pyi_out={target}"]
    plugin = find_typescript_plugin()
    if plugin:
        (target / TYPESCRIPT).mkdir(parents=True, exist_ok=True)
        command += [f"--plugin=protoc-gen-es={plugin}", f"--es_out={target / TYPESCRIPT}", "--es_opt=target=ts"]
    subprocess.run([*command, PROTO], cwd=ROOT, check=True)
    return sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    with tempfile.TemporaryDirectory() as folder:
        stale = []
        for name in generate(Path(folder)):
            new = (Path(folder) / name).read_bytes()
            committed = ROOT / name
            if committed.exists() and committed.read_bytes() == new:
                continue
            stale.append(name)
            if not check:
                committed.parent.mkdir(parents=True, exist_ok=True)
                committed.write_bytes(new)
    if find_typescript_plugin() is None:
        print("no node_modules/.bin/protoc-gen-es: TypeScript was left out")
    print("\n".join(f"{'differs' if check else 'written'}: {name}" for name in stale) or "everything is up to date")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
