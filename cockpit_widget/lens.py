"""What a user's function makes of a sample's id, as the page can show it: words, a picture, or both.

The function is the user's: it may be slow, raise, or return anything. Whatever happens, the page gets an answer.
"""

from __future__ import annotations

import contextlib
import io
import random
import struct
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from cockpit_core.report.terminal import clean

LONGEST = 300  # characters
MOST_BYTES = 500_000  # of one picture
MOST_SAMPLES = 50  # in one answer
SIDE = 512  # pixels; a larger picture is thinned
SIGNATURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")  # PNG, JPEG
ShowSample = Callable[[int], Any]


class Shown(NamedTuple):
    text: str = ""
    picture: bytes = b""


def show(function: ShowSample, sample: int) -> Shown:
    """Never raises: what went wrong is the text."""
    try:
        with keeping_random_states():
            shown = convert(function(sample))
    except Exception as error:
        return Shown(clean(f"show_sample({sample}) failed: {type(error).__name__}: {error}")[:LONGEST])
    if len(shown.picture) > MOST_BYTES:
        return Shown(f"a picture of {len(shown.picture):,} bytes; at most {MOST_BYTES:,} are shown")
    return shown


@contextlib.contextmanager
def keeping_random_states() -> Iterator[None]:
    """A dataset that draws its augmentation must not move what training draws next.

    Only between cells: if training runs in another thread, restoring the state would undo its draws.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    torch = sys.modules.get("torch")
    states = random.getstate(), np.random.get_state(), None if torch is None else torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if torch is not None:
            torch.set_rng_state(states[2])


def convert(value: Any) -> Shown:
    """Text; PNG or JPEG bytes; a picture of PIL or matplotlib; an array [height, width] or [3, height, width]; a pair of
    those; whatever else as text."""
    if value is None:
        return Shown()
    if isinstance(value, tuple) and len(value) == 2 and not all(isinstance(part, (int, float)) for part in value):
        parts = [convert(part) for part in value]
        return Shown(" ".join(part.text for part in parts if part.text), parts[0].picture or parts[1].picture)
    if isinstance(value, str):
        return Shown(clean(value)[:LONGEST])
    if isinstance(value, bytes) and value.startswith(SIGNATURES):
        return Shown(picture=value)
    if hasattr(value, "savefig"):
        target = io.BytesIO()
        value.savefig(target, format="png", dpi=60, bbox_inches="tight")
        return Shown(picture=target.getvalue())
    if hasattr(value, "_repr_png_"):
        return Shown(picture=value._repr_png_() or b"")
    pixels = read_pixels(value)
    return Shown(clean(str(value))[:LONGEST]) if pixels is None else Shown(picture=write_png(pixels))


def read_pixels(value: Any) -> np.ndarray | None:
    """[height, width] or [height, width, 3] as bytes, stretched from the lowest to the highest value; None: no picture."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().float().numpy()  # a tensor
    if (
        not isinstance(value, np.ndarray)
        or value.ndim not in (2, 3)
        or not value.size
        or value.dtype.kind not in "buif"
    ):
        return None
    if value.ndim == 3 and value.shape[0] in (1, 3) and value.shape[2] not in (1, 3):
        value = np.moveaxis(value, 0, 2)
    if value.ndim == 3:
        if value.shape[2] not in (1, 3):
            return None
        value = value[:, :, 0] if value.shape[2] == 1 else value
    value = value[:: -(-value.shape[0] // SIDE), :: -(-value.shape[1] // SIDE)]
    if value.dtype == np.uint8:
        return np.ascontiguousarray(value)
    value = np.nan_to_num(value.astype(np.float64))
    low, high = value.min(), value.max()
    return np.ascontiguousarray((value - low) * (255.0 / (high - low or 1.0))).astype(np.uint8)


def write_png(pixels: np.ndarray) -> bytes:
    """Grey [height, width] or coloured [height, width, 3] bytes as a PNG file."""
    height, width = pixels.shape[:2]
    kind = 2 if pixels.ndim == 3 else 0
    rows = np.zeros((height, 1 + pixels[0].size), np.uint8)  # each row follows its filter, which is none
    rows[:, 1:] = pixels.reshape(height, -1)

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    return SIGNATURES[0] + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows.tobytes())) + chunk(b"IEND", b"")


def answer_samples(function: ShowSample | None, ids: Any) -> tuple[list[dict[str, Any]], list[bytes]]:
    """What was asked for, and the pictures that it refers to by number (-1: none)."""
    if function is None:
        raise ValueError("This cockpit was given no function that shows samples (show_sample=).")
    if not (isinstance(ids, Sequence) and not isinstance(ids, str) and all(type(one) is int for one in ids)):
        raise ValueError("Samples are asked for by a list of their ids, whole numbers.")
    described: list[dict[str, Any]] = []
    pictures: list[bytes] = []
    for one in ids[:MOST_SAMPLES]:
        shown = show(function, one)
        described.append({"id": one, "text": shown.text, "picture": len(pictures) if shown.picture else -1})
        if shown.picture:
            pictures.append(shown.picture)
    return described, pictures
