"""The tags under which a run is stored in an event file. They are written here once, and everyone reads them from
here."""

from __future__ import annotations

PREFIX = "cockpit/"
"""Also the prefix of headline scalars, here and in the loggers of training libraries."""
HEADER = f"{PREFIX}header"
RECORDS = f"{PREFIX}records/"
HEAVY = f"{PREFIX}heavy/"


def records_tag(segment: int) -> str:
    return f"{RECORDS}{segment:06d}"


def heavy_tag(quantity: str, generation: int) -> str:
    """Each generation has tags of its own: where a resumed run repeats a step, TensorBoard's Python backend would show
    the earlier of the two."""
    return f"{HEAVY}{quantity}" + (f"@{generation}" if generation else "")


def heavy_quantity(tag: str) -> str:
    return tag.removeprefix(HEAVY).partition("@")[0]
