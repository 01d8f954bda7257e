"""What the browser may ask for, only ever because the user did something: stop, a histogram, layers, a stretch that was
thinned, everything again, samples as the user's own function shows them.

While a cell is busy a request may arrive minutes late, or on a thread of its own. So nothing here touches training
except one flag, and everything that arrives is checked: a page is not trusted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cockpit_core.events.heavy import check_shown
from cockpit_core.schema import wire
from cockpit_widget.feed import Feed, join_frames
from cockpit_widget.fitting import HISTORY, encode_histograms, encode_layers, encode_stretch
from cockpit_widget.lens import ShowSample, answer_samples
from cockpit_widget.sources import Source

Reply = Callable[[dict[str, Any], list[bytes]], None]
ANSWER_BYTES = 8_000_000  # the user waits for it, and it is sent once


def answer(feed: Feed, content: Any, reply: Reply, show_sample: ShowSample | None = None) -> None:
    """Answer one request; one that makes no sense gets an error as its answer, never an exception."""
    if not isinstance(content, dict):
        return
    try:
        if content.get("op") == "stop":  # before anything that may have to wait
            find_source(feed, content.get("run")).request_stop()
        if content.get("op") == "samples":  # the user's own code: nobody waits for it
            described, pictures = answer_samples(show_sample, content.get("ids"))
            feed.guard(lambda: reply({"op": "samples", "reply": content, "samples": described}, pictures))
            return
        with feed.exclusively(5.0):
            frames = make_frames(feed, content)
            message = {"op": "batch", "reply": content, "status": feed.status()}
        feed.guard(lambda: reply(message, [frames]))
    except (KeyError, ValueError, TypeError, TimeoutError) as error:
        text = str(error.args[0]) if error.args else type(error).__name__
        feed.guard(lambda: reply({"op": "error", "reply": content, "message": text}, []))
    except Exception as error:
        feed.note(error)


def make_frames(feed: Feed, content: dict[str, Any]) -> bytes:
    op = content.get("op")
    if op == "stop":
        return b""
    feed.refresh()
    if op == "resync":
        limit = ANSWER_BYTES // len(feed.sources)
        return join_frames(source.encode(since=0, limit=limit, histograms=HISTORY) for source in feed.sources)
    source = find_source(feed, content.get("run"))
    if source.data is None:
        raise ValueError("This run has no records yet.")
    if op == "histogram":
        quantity, step, layer = read_place(content)
        blob = source.data.histogram_bytes(quantity, step, layer or None)
        check_shown(blob)  # one that is too large to be drawn is not sent
        histogram = wire.decode_histogram(blob)
        return join_frames([[encode_histograms(source.data, source.key, [histogram])]])
    if op == "layers":
        names, layers = read_texts(content.get("names")), read_texts(content.get("layers"))
        return join_frames([[encode_layers(source.data, source.key, names, layers, ANSWER_BYTES)]])
    if op == "detail":
        since, until, points = read_stretch(content)
        return join_frames([[encode_stretch(source.data, source.key, since, until, points, ANSWER_BYTES)]])
    raise ValueError(f"Unknown request {op!r:.40}.")


def find_source(feed: Feed, key: Any) -> Source:
    for source in feed.sources:
        if source.key == key or (key is None and len(feed.sources) == 1):
            return source
    raise ValueError(f"There is no run {key!r:.200} in this cockpit.")


def read_place(content: dict[str, Any]) -> tuple[str, int, str]:
    quantity, step, layer = content.get("quantity"), content.get("step"), content.get("layer") or ""
    if not (isinstance(quantity, str) and isinstance(step, int) and isinstance(layer, str)):
        raise ValueError("A histogram is asked for by quantity, step and layer.")
    return quantity, step, layer


def read_stretch(content: dict[str, Any]) -> tuple[int, int, int]:
    numbers = [content.get(name) for name in ("from", "to", "points")]
    since, until, points = (number if type(number) is int and 0 <= number < 2**32 else -1 for number in numbers)
    if min(since, until, points) < 0 or since >= until:
        raise ValueError("A stretch is asked for by its first record, the one after its last, and a number of points.")
    return since, until, max(points, 2)


def read_texts(value: Any) -> list[str] | None:
    if value is None or value == []:
        return None
    if not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        raise ValueError("Names are asked for as a list of texts.")
    return value
