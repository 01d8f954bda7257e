"""Finds a Chromium that starts, and with ``--install`` gets one: the one on the PATH, Playwright's, or the system's.

Each way may fail (no network, no rights, missing system libraries) as long as another works; a browser counts only
after it has really shown a page.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
MAC_PATHS = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
PROBE = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom", "about:blank")


def starts(path: str) -> bool:
    """A download without its system libraries exists, and still shows nothing."""
    try:
        result = subprocess.run([path, *PROBE], capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.returncode == 0 and "<html" in result.stdout


def find_on_path() -> Iterator[str]:
    for name in NAMES:
        path = shutil.which(name)
        if path:
            yield path
    yield from (path for path in MAC_PATHS if os.path.exists(path))


def find_playwright() -> Iterator[str]:
    try:
        from playwright.sync_api import sync_playwright

        with sync_playwright() as playwright:
            path = playwright.chromium.executable_path
    except Exception as error:  # whatever is wrong with it, another way may work
        print(f"cockpit: Playwright does not answer: {error}", file=sys.stderr)
        return
    if os.path.exists(path):
        yield path


def find_browser() -> str | None:
    """The path of a browser that starts; ``COCKPIT_BROWSER`` overrides the search."""
    chosen = os.environ.get("COCKPIT_BROWSER")
    if chosen:
        return chosen if starts(chosen) else None
    for search in (find_on_path, find_playwright):
        for path in search():
            if starts(path):
                return path
    return None


def run(*command: str) -> bool:
    print("cockpit:", " ".join(command), file=sys.stderr)
    try:
        result = subprocess.run(command, stdout=sys.stderr, timeout=900, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"cockpit: that failed: {error}", file=sys.stderr)
        return False
    return result.returncode == 0


def is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def install_browser() -> str | None:
    """Tries one way after the other until a browser starts."""
    playwright = (sys.executable, "-m", "playwright")
    ways: list[list[tuple[str, ...]]] = [[(*playwright, "install", "chromium")]]
    if is_root() and shutil.which("apt-get"):
        ways.append([(*playwright, "install-deps", "chromium")])
        ways.append([("apt-get", "update", "-qq"), ("apt-get", "install", "-y", "-qq", "chromium")])
    for commands in ways:
        for command in commands:
            run(*command)  # even after a failure: "update" may complain about one source and work for the others
        path = find_browser()
        if path:
            return path
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--install", action="store_true", help="install a browser if none is found")
    arguments = parser.parse_args()
    path = find_browser() or (install_browser() if arguments.install else None)
    if path is None:
        print(
            "cockpit: no browser that starts was found. Put chromium or google-chrome on the PATH, "
            "or name one: COCKPIT_BROWSER=/path/to/chromium",
            file=sys.stderr,
        )
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
