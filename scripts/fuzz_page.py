"""Fuzzed messages through the decoder, the store and all panels in a real browser: ``fuzz_page.py FOLDER --minutes 40``.

Needs Playwright and Chromium. Messages are mutated as bytes and as fields; whatever raises in the page, fails in a panel
or takes long is kept in ``FOLDER``, one message (or pair of messages) for each kind of failure.
"""

from __future__ import annotations

import argparse
import base64
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from playwright.sync_api import sync_playwright  # noqa: E402

from cockpit_core.schema import cockpit_pb2 as pb  # noqa: E402
from scripts.mutations import mutate_bytes, mutate_field, mutate_values  # noqa: E402

SLOW = 5000.0  # ms
PATIENCE = 20_000.0  # ms


def make_page(folder: Path) -> Path:
    script = folder / "fuzz.js"
    options = ["--bundle", "--format=iife", "--loader:.css=text", f"--outfile={script}"]
    subprocess.run(["npx", "esbuild", "js/dev/fuzz.ts", *options], cwd=ROOT, check=True)
    page = folder / "fuzz.html"
    page.write_text('<!doctype html><meta charset="utf-8"><body><script src="fuzz.js"></script>')
    return page


def mutate(seeds: list[bytes], chance: random.Random) -> bytes:
    seed = chance.choice(seeds)
    if chance.random() < 0.25:
        return mutate_bytes(seed, chance)
    message = pb.Batch.FromString(seed)
    for _ in range(chance.choice([1, 1, 2, 4, 12])):
        if chance.random() < 0.5:
            mutate_field(message, chance)
        else:
            mutate_values(message, chance)
    return message.SerializeToString()


class Browser:
    """A page, and a new browser whenever it has crashed or hangs."""

    def __init__(self, chromium: Any, page: Path) -> None:
        self.chromium, self.path = chromium, page
        self.open()

    def open(self) -> None:
        self.browser = self.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        self.page = self.browser.new_page()
        self.page.goto(self.path.as_uri())

    def try_messages(self, messages: list[bytes]) -> dict[str, Any]:
        encoded = [base64.b64encode(message).decode() for message in messages]
        start = "messages => void setTimeout(async () => { window.answer = await tryMessages(messages) }, 0)"
        try:
            self.page.evaluate("window.answer = null")
            self.page.evaluate(start, encoded)
            self.page.wait_for_function("window.answer", timeout=PATIENCE)
            return self.page.evaluate("window.answer")
        except Exception as error:
            self.browser.close()
            self.open()
            return {"read": False, "failures": [f"the page hangs or is gone: {str(error)[:100]}"], "ms": 0.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    seeds = [path.read_bytes() for path in sorted((ROOT / "js/tests/fixtures").glob("*.bin"))]
    chance, seen = random.Random(arguments.seed), set[str]()
    end, count, read = time.monotonic() + 60 * arguments.minutes, 0, 0
    with sync_playwright() as playwright:
        browser = Browser(playwright.chromium, make_page(arguments.folder))
        while time.monotonic() < end:
            messages = [mutate(seeds, chance) for _ in range(chance.choice([1, 1, 2]))]
            if chance.random() < 0.3:
                messages.insert(0, chance.choice(seeds))
            answer = browser.try_messages(messages)
            count, read = count + 1, read + answer["read"]
            failures = answer["failures"] + ([f"slow: {answer['ms']:.0f} ms"] if answer["ms"] > SLOW else [])
            for failure in failures:
                key = re.sub(r"\d+", "#", failure)[:120]
                if key not in seen:
                    seen.add(key)
                    place = arguments.folder / f"{len(seen):03d}"
                    place.with_suffix(".txt").write_text(failure)
                    for number, message in enumerate(messages):
                        Path(f"{place}.{number}.bin").write_bytes(message)
            if count % 200 == 0:
                print(f"{count} tries, {read} of them read, {len(seen)} kinds of failures", flush=True)
        browser.browser.close()
    print(f"{count} tries, {read} of them read, {len(seen)} kinds of failures")


if __name__ == "__main__":
    main()
