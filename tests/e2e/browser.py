"""The browser of the end-to-end tests: the system's chromium where there is one, else the one Playwright installed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_executable() -> str | None:
    """None lets Playwright take its own."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def open_browser(**options: Any) -> Iterator[Browser]:
    # Containers run tests as root, where chromium refuses its sandbox; the pages are our own.
    arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--force-color-profile=srgb", "--disable-lcd-text"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_executable(), args=arguments, **options)
        try:
            yield browser
        finally:
            browser.close()
