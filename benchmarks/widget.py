"""What the notebook widget costs: ``python -m benchmarks.widget``, about 12 minutes on two cores.

Training: what showing adds to a tracked run, in a real kernel. Browser: load, memory and frames, in a real Chromium.
Writes ``benchmarks/results/widget.json``. ``--parts`` measures only some of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import results, widget_browser, widget_kernel

LIMITS = {"added to training": 0.02, "share of one core": 0.25}


def measure_training(quick: bool) -> dict[str, Any]:
    cases = list(widget_kernel.CASES)
    return widget_kernel.measure_in_kernel(cases[:1] if quick else cases, 0.5 if quick else 6.0, 1 if quick else 8)


def in_browser(measure: Callable[..., dict[str, Any]], small: float, whole: float) -> Callable[[bool], dict[str, Any]]:
    def run(quick: bool) -> dict[str, Any]:
        with widget_browser.start_browser() as browser:
            return measure(browser, small if quick else whole)

    return run


PARTS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "training": measure_training,
    "load": in_browser(widget_browser.measure_load, 2, 20),
    "memory": in_browser(widget_browser.measure_memory, 80, 18_000),
    "million": in_browser(widget_browser.measure_million, 20_000, 1_000_000),
}


def tell(name: str, found: dict[str, Any]) -> None:
    if name == "training":
        for case, row in found.items():
            if isinstance(row, dict):
                shares = ", ".join(
                    f"{clock} {100 * a['mean']:+.2f} ± {100 * a['error']:.2f} %" for clock, a in row["added"].items()
                )
                print(f"  {case:44s} {row['steps_per_second']:5.0f} steps/s  {shares}  (limit 2 %)", flush=True)
    else:
        print("  " + ", ".join(f"{key} {results.shorten(value)}" for key, value in found.items()), flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = results.make_parser(__doc__, 4)
    parser.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    options = results.parse(parser, arguments)
    content: dict[str, Any] = {"limits": LIMITS}
    for name in options.parts:
        print(f"{name} ...", flush=True)
        content[name] = PARTS[name](options.quick)
        tell(name, content[name])
        results.write_results("widget", content, options)


if __name__ == "__main__":
    main()
