"""A picture that grew message by message is the picture that is drawn at once. Compared pixel by pixel."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("playwright")

from benchmarks import widget_browser

pytestmark = pytest.mark.browser


def take(browser: widget_browser.Browser, path: Path) -> np.ndarray:
    browser.page.mouse.move(2, 2)
    browser.page.wait_for_timeout(1200)  # the longest rest between two pictures
    # They go with the clock: the lamp beats, and on a slow machine the status says for how long there was no record.
    # A mask would show how long the words are.
    hidden = ".ck-lamp, .ck-status { visibility: hidden !important; }"
    before = np.zeros(0)
    for _ in range(8):  # a busy machine draws later: until two pictures in a row are the same
        shot = browser.page.locator("#cockpit").screenshot(style=hidden, path=path)
        now = np.asarray(Image.open(io.BytesIO(shot)).convert("RGB"), dtype=int)
        if now.shape == before.shape and (now == before).all():
            break
        before = now
        browser.page.wait_for_timeout(600)
    return now


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_live_picture_equals_the_one_drawn_at_once(theme: str, tmp_path: Path, browser: Any) -> None:
    training = widget_browser.Training(tmp_path / "lenet")
    parts = [training.send(20, 10), training.send(20, 3)]
    page = widget_browser.PAGE.replace('theme: "light"', f'theme: "{theme}"')
    server = widget_browser.Server()
    driven = widget_browser.Browser(browser, server)
    driven.server.files["/"] = page.encode()
    driven.open(widget_browser.PANELS, height=1600)
    driven.give(parts[0], "pour('messages', 1)")
    chart = driven.page.locator('[data-panel="loss"] .ck-chart')
    for place in (40, 90, 140):  # a cursor that moves has what rests drawn aside
        chart.hover(position={"x": place, "y": 60})
    driven.give(parts[1], "pour('messages', 1)")
    live = take(driven, tmp_path / "live.png")
    driven.close()
    driven.open(widget_browser.PANELS, height=1600)
    driven.give(b"".join(parts), "pour('messages', 1000)")
    once = take(driven, tmp_path / "once.png")
    driven.close()
    server.shutdown()
    server.server_close()
    difference = np.abs(live - once)
    assert live.std() > 10  # there is a picture
    assert difference.max() <= 2  # letters at the edge of a tile are rounded either way; a wrong line is not
