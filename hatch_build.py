"""Builds the JavaScript bundles and the native kernels whenever the package is built or installed and they are not up to
date.

"Build only if missing" goes stale in a clone, so a hash of the sources and of what was built lies beside it.
``python hatch_build.py`` does the same by hand. The kernels are compiled by ``ziglang``, an ordinary package from PyPI that
holds a C compiler for every platform: for all of them in a wheel, for this machine's otherwise.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand, where hatchling need not be installed
    BuildHookInterface = object

ROOT = Path(__file__).resolve().parent
BUNDLES = ("cockpit_widget/static", "tb_plugin/static", "cockpit_core/report/static")
STAMP = "cockpit_widget/static/built_from.json"
SOURCES = ("package.json", "package-lock.json", "tsconfig*.json", "js/src/**/*", "js/scripts/**/*")
WRITTEN_BY_BUILD = "js/src/panels/index.ts"

NATIVE = "cockpit_core/kernels/native"
FLAGS = "-O3 -ffp-contract=off -fno-math-errno -fvisibility=hidden -fPIC -g0 -Wall -Werror -Wno-unused-command-line-argument"
X86 = {
    "plain": "-mcpu=x86_64 -DBYTES=16",
    "avx2": "-mcpu=x86_64_v3 -DBYTES=32",
    "avx512": "-mcpu=x86_64_v4 -mprefer-vector-width=512 -DBYTES=64",
}
ARM = {"neon": "-DBYTES=16 -mno-outline-atomics"}  # else they are functions of a library
PLATFORMS = {
    "x86_64-linux.so": ("x86_64-linux-gnu.2.17", X86),
    "aarch64-linux.so": ("aarch64-linux-gnu.2.17", ARM),
    "aarch64-macos.dylib": ("aarch64-macos", ARM),
    "x86_64-windows.dll": ("x86_64-windows-gnu", X86),
}
LINKED = {"x86_64-windows.dll": ["-rtlib=compiler-rt"]}  # brings the probing of large stack frames, and nothing else


class BuildError(RuntimeError):
    """Said in words: pip shows the last lines only."""


def list_sources() -> list[Path]:
    """What decides about the content of a bundle: no tests, nothing that the build itself writes."""
    found = {path for pattern in SOURCES for path in ROOT.glob(pattern) if path.is_file()}
    return sorted(path for path in found if ".test." not in path.name and path != ROOT / WRITTEN_BY_BUILD)


def list_bundles() -> list[Path]:
    folders = [ROOT / folder for folder in BUNDLES]
    return sorted(path for folder in folders for path in folder.glob("*") if path != ROOT / STAMP)


def hash_files(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def describe() -> dict[str, str]:
    return {"sources": hash_files(list_sources()), "bundles": hash_files(list_bundles())}


def has_bundles() -> bool:
    return all(any((ROOT / folder).glob("*.js")) for folder in BUNDLES)


def is_fresh() -> bool:
    try:
        return has_bundles() and json.loads((ROOT / STAMP).read_text()) == describe()
    except (OSError, ValueError):
        return False


def run_npm(npm: str, *arguments: str) -> None:
    result = subprocess.run(
        [npm, *arguments], cwd=ROOT, text=True, encoding="utf-8", stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if result.returncode:
        raise BuildError(f"`npm {' '.join(arguments)}` failed:\n{result.stdout}")


def is_installed() -> bool:
    """npm keeps its own copy of the lock file; if that is newer than ours, node_modules is what the lock file says."""
    installed, lock = ROOT / "node_modules" / ".package-lock.json", ROOT / "package-lock.json"
    return installed.exists() and installed.stat().st_mtime >= lock.stat().st_mtime


def build_bundles() -> None:
    """Leaves bundles that match the sources, or raises; without npm, bundles that exist are used as they are."""
    if is_fresh():
        return
    npm = shutil.which("npm")
    if npm is None:
        if has_bundles():
            print("cockpit: npm was not found; using the JavaScript bundles as they are", file=sys.stderr)
            return
        raise BuildError("the JavaScript bundles are missing and npm was not found; install Node 20 or newer")
    if not is_installed():
        run_npm(npm, "ci", "--no-fund", "--no-audit")
    run_npm(npm, "run", "build")
    if not has_bundles():
        raise BuildError("`npm run build` left no bundle in " + " and ".join(BUNDLES))
    (ROOT / STAMP).write_text(json.dumps(describe(), indent=1) + "\n")


# ---- native kernels ----------------------------------------------------------------------------------------------------


def name_library() -> str | None:
    """What this machine needs, if it is one that we build for."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    system = {"linux": "linux.so", "darwin": "macos.dylib", "win32": "windows.dll"}.get(sys.platform, sys.platform)
    return f"{machine}-{system}" if f"{machine}-{system}" in PLATFORMS else None


def hash_native() -> str:
    sources = sorted((ROOT / NATIVE / "source").glob("*.[ch]"))
    recipe = json.dumps([FLAGS, PLATFORMS, LINKED]).encode()
    return hashlib.sha256(recipe + hash_files(sources).encode()).hexdigest()


def read_stamps() -> dict[str, str]:
    try:
        return dict(json.loads((ROOT / NATIVE / "library" / "built_from.json").read_text()))
    except (OSError, ValueError):
        return {}


def run_zig(*arguments: str) -> None:
    command = [sys.executable, "-m", "ziglang", "cc", *arguments]
    result = subprocess.run(command, cwd=ROOT / NATIVE / "source", text=True, capture_output=True)
    if result.returncode:
        raise BuildError(f"`{' '.join(command[1:])}` failed:\n{result.stdout}{result.stderr}")


def compile_library(name: str) -> None:
    """One object for each instruction set, all in one library, which takes the place of an older one in one stroke."""
    target, levels = PLATFORMS[name]
    folder = ROOT / NATIVE / "library"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        common = ["-target", target, *FLAGS.split()]
        jobs = [("level.c", "level.o", [])]
        jobs += [("kernels.c", f"{level}.o", [f"-DLEVEL={level}", *flags.split()]) for level, flags in levels.items()]
        objects = [str(Path(scratch) / object_) for _, object_, _ in jobs]
        for (source, _, flags), object_ in zip(jobs, objects, strict=True):
            run_zig(*common, *flags, "-c", source, "-o", object_)
        built = Path(scratch) / name
        run_zig(*common, "-shared", "-nostdlib", *LINKED.get(name, []), "-s", "-o", str(built), *objects)
        built.replace(folder / name)


def build_native(names: list[str]) -> None:
    """Leaves libraries that match the sources. Without the compiler: what there is; the other paths need no library."""
    folder, wanted, stamps = ROOT / NATIVE / "library", hash_native(), read_stamps()
    stale = [name for name in names if stamps.get(name) != wanted or not (folder / name).exists()]
    if not stale:
        return
    if importlib.util.find_spec("ziglang") is None:
        print("cockpit: ziglang is not installed; native kernels are not built, tracking is slower", file=sys.stderr)
        return
    for name in stale:
        compile_library(name)
        stamps[name] = wanted
        (folder / "built_from.json").write_text(json.dumps(stamps, indent=1) + "\n")


def build_for_this_machine() -> None:
    name = name_library()
    build_native([name] if name else [])


class CockpitBuildHook(BuildHookInterface):  # type: ignore[misc]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        build_bundles()
        if self.target_name == "wheel":
            build_for_this_machine() if version == "editable" else build_native(list(PLATFORMS))


if __name__ == "__main__":
    try:
        build_bundles()
        build_for_this_machine()
    except BuildError as error:
        sys.exit(f"cockpit: {error}")
