"""Builds the JavaScript bundles whenever a wheel, an sdist or an editable install is made and they are not up to date.

"Build only if missing" goes stale in a clone, so a hash of the sources and of the bundles themselves lies beside them.
``python hatch_build.py`` does the same by hand.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand, where hatchling need not be installed
    BuildHookInterface = object

ROOT = Path(__file__).resolve().parent
BUNDLES = ("cockpit_widget/static", "tb_plugin/static")
STAMP = "cockpit_widget/static/built_from.json"
SOURCES = ("package.json", "package-lock.json", "tsconfig*.json", "js/src/**/*", "js/scripts/**/*")
WRITTEN_BY_BUILD = "js/src/panels/index.ts"


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


class CockpitBuildHook(BuildHookInterface):  # type: ignore[misc]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        build_bundles()


if __name__ == "__main__":
    try:
        build_bundles()
    except BuildError as error:
        sys.exit(f"cockpit: {error}")
