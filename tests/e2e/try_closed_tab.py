"""What a closed tab costs the Jupyter server: ``python -m tests.e2e.try_closed_tab [seconds]``

A cell trains with the widget, the only page that shows it is closed, and the server's memory is watched: it keeps what
the kernel sends, for a page that may come back.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import psutil
from playwright.sync_api import sync_playwright

from scripts.find_browser import find_browser
from tests.e2e.jupyter_server import Lab, start_jupyter, write_notebook
from tests.e2e.test_jupyter import SETUP, TRAIN


def find_server() -> psutil.Process:
    named = ((p, " ".join(p.cmdline())) for p in psutil.Process().children(recursive=True))
    return next(process for process, words in named if "jupyter-lab" in words or "jupyter lab" in words)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    with tempfile.TemporaryDirectory() as name, start_jupyter(Path(name)) as url, sync_playwright() as playwright:
        train = TRAIN.replace("monotonic() + 45", f"monotonic() + {seconds + 40}")
        notebook = write_notebook(Path(name) / "closed.ipynb", SETUP, train)
        browser = playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        lab = Lab(page, url, notebook, "closed")
        lab.run_and_wait(0)
        lab.run_cell(1)
        lab.cockpits().first.wait_for()
        page.wait_for_timeout(5000)
        server = find_server()
        page.close()
        time.sleep(5)  # the server notices
        before, began = server.memory_info().rss, time.monotonic()
        while time.monotonic() - began < seconds:
            time.sleep(5)
            print(f"{time.monotonic() - began:5.0f} s: {(server.memory_info().rss - before) / 1e6:+.1f} MB", flush=True)
        rate = (server.memory_info().rss - before) / (time.monotonic() - began)
        print(f"{rate / 1e3:.1f} kB per second, {3600 * rate / 1e6:.0f} MB an hour", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
