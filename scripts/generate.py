"""Generates Python and TypeScript from the schema, or with ``--check`` says whether what is committed is up to date.

grpcio-tools 1.63.2 (protoc 26.1) writes Python that imports under protobuf 5.26 to 7.x. It cannot share an environment
with TensorBoard 2.21, so it gets one of its own: ``.venv-generate``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = "grpcio-tools==1.63.2"
PYTHONS = ((3, 10), (3, 12))  # the versions for which those tools exist in binary form
ENVIRONMENT = ROOT / ".venv-generate"
PROTO = Path("cockpit_core/schema/cockpit.proto")
PYTHON_FILES = (PROTO.with_name("cockpit_pb2.py"), PROTO.with_name("cockpit_pb2.pyi"))
TYPESCRIPT_FILE = Path("js/src/gen/cockpit_pb.ts")


def find_protoc() -> list[str]:
    """The command that runs protoc; makes its environment on first use."""
    python = ENVIRONMENT / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    stamp = ENVIRONMENT / TOOLS
    if not stamp.exists():
        if not PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
            raise SystemExit(f"cockpit: {TOOLS} needs Python 3.10 to 3.12; this is {sys.version.split()[0]}")
        print(f"cockpit: installing {TOOLS} into {ENVIRONMENT.name}", flush=True)
        venv.create(ENVIRONMENT, clear=True, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "-q", TOOLS, "setuptools<81"], check=True)
        stamp.touch()
    # Without the warning, grpc_tools complains about pkg_resources, which it still uses.
    return [str(python), "-W", "ignore", "-m", "grpc_tools.protoc"]


def generate(target: Path) -> None:
    """Writes all generated files below ``target``, at the places they have in the repository."""
    protoc = find_protoc()
    plugin = ROOT / "node_modules" / ".bin" / "protoc-gen-es"
    if not plugin.exists():
        raise SystemExit("cockpit: protoc-gen-es is missing; run `npm ci` first")
    typescript = target / TYPESCRIPT_FILE.parent
    typescript.mkdir(parents=True, exist_ok=True)
    # The path from the root becomes the name in protobuf's process-wide pool, where "cockpit.proto" could clash.
    subprocess.run(
        [*protoc, "-I.", f"--python_out={target}", f"--pyi_out={target}", PROTO.as_posix()], cwd=ROOT, check=True
    )
    subprocess.run(
        [
            *protoc,
            f"-I{PROTO.parent}",
            f"--plugin=protoc-gen-es={plugin}",
            f"--es_out={typescript}",
            "--es_opt=target=ts",
            PROTO.name,
        ],
        cwd=ROOT,
        check=True,
    )


def find_stale() -> list[Path]:
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        files = (*PYTHON_FILES, TYPESCRIPT_FILE)
        return [file for file in files if not same(ROOT / file, Path(folder) / file)]


def same(one: Path, other: Path) -> bool:
    return one.exists() and one.read_bytes() == other.read_bytes()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if something is out of date")
    if not parser.parse_args().check:
        generate(ROOT)
        return 0
    stale = find_stale()
    for file in stale:
        print(f"cockpit: {file} is not what the schema generates; run `make generate`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
