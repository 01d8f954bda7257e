"""The user's own function shows samples: text, pictures, and whatever else it returns or raises."""

from __future__ import annotations

import io
import random
import zlib
from collections.abc import Callable

import numpy as np
import pytest
import torch

from cockpit_widget import CockpitWidget
from cockpit_widget.lens import LONGEST, MOST_BYTES, convert, read_pixels, show, write_png
from tests.widget.fakes import FakeRun
from tests.widget.test_stream import comm_of

Make = Callable[..., CockpitWidget]


def read_png(picture: bytes) -> np.ndarray:
    """The pixels again, by another program."""
    image = pytest.importorskip("PIL.Image").open(io.BytesIO(picture))
    return np.asarray(image)


@pytest.mark.parametrize("shape", [(8, 8), (5, 9), (1, 3), (6, 4, 3)])
def test_picture_has_the_pixels_of_the_array(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    np.testing.assert_array_equal(read_png(write_png(pixels)), pixels)


def test_numbers_are_stretched_from_black_to_white() -> None:
    pixels = read_pixels(np.array([[-1.0, 0.0], [1.0, np.nan]]))
    assert pixels is not None
    np.testing.assert_array_equal(pixels, [[0, 127], [255, 127]])
    assert read_pixels(np.zeros((2, 2))).max() == 0  # type: ignore[union-attr]
    assert read_pixels(torch.rand(3, 8, 6)).shape == (8, 6, 3)  # type: ignore[union-attr]
    assert read_pixels(torch.rand(1, 8, 8)).shape == (8, 8)  # type: ignore[union-attr]
    assert max(read_pixels(np.zeros((3000, 20))).shape) <= 512  # type: ignore[union-attr]
    assert read_pixels(np.zeros(5)) is None
    assert read_pixels(np.zeros((2, 2, 7))) is None


def test_whatever_a_function_returns_is_shown() -> None:
    assert convert("a seven").text == "a seven"
    assert convert(7).text == "7"
    assert convert(None) == ("", b"")
    assert convert("x" * 999).text == "x" * LONGEST
    pair = convert(("a seven", np.eye(8)))
    assert pair.text == "a seven" and pair.picture.startswith(b"\x89PNG")
    assert convert(b"\xff\xd8\xff and so on").picture
    assert "not a picture" in convert(b"not a picture").text


def test_what_goes_wrong_is_said_and_not_raised() -> None:
    assert "KeyError" in show({}.__getitem__, 3).text
    large = np.random.default_rng(0).integers(0, 256, (512, 512, 3), dtype=np.uint8)
    assert len(zlib.compress(large.tobytes())) > MOST_BYTES
    assert "at most" in show(lambda _: large, 0).text


def test_random_states_are_as_they_were() -> None:
    def draw(sample: int) -> str:
        return f"{random.random()} {np.random.rand()} {torch.rand(1)}"

    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    show(draw, 0)
    assert states == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())


def test_page_gets_what_it_asks_for(run: FakeRun, make_widget: Make) -> None:
    widget = make_widget(run, show_sample=lambda sample: (f"number {sample}", np.eye(4)) if sample else "none")
    assert widget._meta["shows_samples"]
    comm_of(widget).ask({"op": "samples", "ids": [0, 17], "id": 5})
    content, buffers = comm_of(widget).messages[-1]
    assert content["op"] == "samples" and content["reply"]["id"] == 5
    assert content["samples"] == [
        {"id": 0, "text": "none", "picture": -1},
        {"id": 17, "text": "number 17", "picture": 0},
    ]
    assert read_png(buffers[0]).shape == (4, 4)


def test_page_without_a_function_is_told_so(run: FakeRun, make_widget: Make) -> None:
    widget = make_widget(run)
    assert not widget._meta["shows_samples"]
    for ids, words in (([1], "show_sample="), ("no", "show_sample=")):
        comm_of(widget).ask({"op": "samples", "ids": ids})
        assert words in comm_of(widget).messages[-1][0]["message"]
    asked = make_widget(run, show_sample=str)
    for ids in ("17", [1.5], [True], None):
        comm_of(asked).ask({"op": "samples", "ids": ids})
        assert "list of their ids" in comm_of(asked).messages[-1][0]["message"]


def test_bad_function_is_refused(run: FakeRun, make_widget: Make) -> None:
    with pytest.raises(TypeError, match="show_sample"):
        make_widget(run, show_sample="no function")
