"""What the tests of the tab share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.e2e.tensorboard_tab import WHOLE


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport=WHOLE, accept_downloads=True)
    yield context.new_page()
    context.close()
