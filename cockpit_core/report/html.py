"""The report as one HTML file that contains the panels, their data and their program, and loads nothing.

The page's own content security policy forbids every connection; what it shows is in it. Names reach it as JSON and as
protobuf, never as markup.
"""

from __future__ import annotations

import base64
import html
import json
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from cockpit_core.events.batch import make_batch
from cockpit_core.events.data import RunData, get_values
from cockpit_core.events.heavy import Room
from cockpit_core.foundation import records
from cockpit_core.report.findings import known_findings
from cockpit_core.schema import batches, wire

POINTS = (None, 20_000, 8_000, 4_000, 2_000, 1_000, 500, 250, 100, 40, 12)  # per curve, the most that fits is taken
SHARE_OF_CURVES = 0.6  # share of the room beside the program; histograms get the rest
LARGEST_RATIO = 20  # of what histograms take one by one to what they take together
MOST_FAILURES = 100_000  # after this many unreadable histograms no more are tried
MOST_NAMED = 5  # runs that have the same left out
PROGRAM = Path(__file__).parent / "static" / "report.js"
LONGEST_TITLE = 300  # characters
LONGEST_WORDS = 10_000

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>
body {{ margin: 0; font: 14px/1.5 system-ui, sans-serif; }}
footer, noscript {{ display: block; padding: 8px 16px; opacity: .75; font-size: 12px; }}
td, th {{ padding: 2px 12px 2px 0; text-align: left; }}
#cockpit-profiles {{ padding: 8px 16px; max-width: 92ch; }}
#cockpit-profiles h2 {{ font-size: 14px; margin: 8px 0 0; }}
#cockpit-profiles svg {{ max-width: 100%; font-size: 11px; fill: currentColor; }}
#cockpit-profiles i {{ display: inline-block; width: 9px; height: 9px; border-radius: 2px; margin-right: 6px; }}
@page {{ size: A4; margin: 10mm; }}
@media print {{
  body {{ background: #fff !important; }}
  #cockpit .ck-title > span:first-child {{ white-space: normal; }}
}}
</style>
</head>
<body>
<main id="cockpit"></main>
<noscript><p>The panels need JavaScript. The last values:</p>{table}</noscript>
{below}
<footer id="cockpit-footer">{footer}</footer>
<script type="application/json" id="cockpit-options">{options}</script>
{batches}
<script type="module">{program}</script>
</body>
</html>
"""


def make_html(runs: dict[str, RunData], max_bytes: int, below: str = "") -> tuple[bytes, str]:
    """The page, and a sentence about what was left out of it ("" = nothing). ``below``: markup under the panels."""
    program = read_program()
    table = _write_table(runs)
    spare = max_bytes - len(program.encode()) - len(_PAGE) - len((table + below).encode()) - 4_000
    if spare < 100_000:
        raise ValueError(f"A report needs at least {max_bytes - spare + 100_000:,} bytes; max_bytes is {max_bytes:,}.")
    while True:
        room = int(spare * 0.74)  # base64 makes three bytes four
        packed = {key: pack_run(key, data, room // len(runs)) for key, data in runs.items()}
        _check_size(packed, room, max_bytes)
        left_out = _summarise({key: words for key, (_, words) in packed.items() if words})
        page = _write_page(packed, program, (table, below), left_out)
        if len(page) <= max_bytes:
            return page, left_out
        spare -= len(page) - max_bytes + 1_000  # hundreds of runs, or names of great length


def _write_page(packed: dict[str, tuple[bytes, str]], program: str, plain: tuple[str, str], left_out: str) -> bytes:
    title = _shorten("Cockpit: " + ", ".join(packed), LONGEST_TITLE)
    named = [{"key": key, "name": key} for key in packed]
    options = {"title": title, "theme": "auto", "panels": [], "left_out": left_out, "runs": named}
    written = time.strftime("%Y-%m-%d %H:%M")
    page = _PAGE.format(
        policy=_POLICY,
        title=html.escape(title),
        table=plain[0],
        below=plain[1],
        footer=html.escape(f"Written by Cockpit on {written}. {left_out or 'Complete: nothing was left out.'}"),
        options=json.dumps(options).replace("<", "\\u003c"),
        batches="\n".join(_embed(blob) for blob, _ in packed.values()),
        program=program.replace("</script", "<\\/script").replace("<!--", "<\\!--"),
    )
    return page.encode("utf-8", "replace")


def _check_size(packed: dict[str, tuple[bytes, str]], room: int, max_bytes: int) -> None:
    """Some runs take less than their share, and a run that cannot be made smaller may have what they leave."""
    size = sum(len(blob) for blob, _ in packed.values())
    if size > room:
        need = max_bytes + int((size - room) / 0.74) + 1
        least = f"{need / 1e6:.1f} MB ({need:,} bytes)"
        who = f"{len(packed)} runs need" if len(packed) > 1 else "This run needs"
        raise ValueError(f"{who} about {least} even with everything thinned. Allow that much, or show fewer runs.")


def _shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 4] + " ..."


def _summarise(left_out: dict[str, str]) -> str:
    """Run by run; where many runs say the same, once."""
    by_words: dict[str, list[str]] = {}
    for key, words in left_out.items():
        by_words.setdefault(words, []).append(key)
    parts = []
    for words, keys in by_words.items():
        who = (
            ", ".join(keys)
            if len(keys) <= MOST_NAMED
            else f"{', '.join(keys[:MOST_NAMED])} and {len(keys) - MOST_NAMED} more"
        )
        parts.append(f"{who}: {words}")
    return _shorten(" ".join(parts), LONGEST_WORDS)


def read_program() -> str:
    if not PROGRAM.is_file():
        raise FileNotFoundError("The report's JavaScript was not built: run `npm ci && npm run build` in the clone.")
    return PROGRAM.read_text(encoding="utf-8")


def _embed(blob: bytes) -> str:
    text = base64.b64encode(blob).decode("ascii")
    size = len(zlib.decompress(blob))
    kind = f'type="application/octet-stream" data-size="{size}" class="cockpit-batch" data-codec="deflate"'
    return f"<script {kind}>{text}</script>"


def pack_run(key: str, data: RunData, limit: int) -> tuple[bytes, str]:
    """All of one run that fits, compressed: curves first, then histograms, the most telling ones first."""
    batch, points, size = _fit_curves(key, data, int(limit * SHARE_OF_CURVES))
    chosen, total = _fit_histograms(data, limit - size)
    blob = _compress(batch, chosen)
    while len(blob) > limit and chosen:  # the sum was an estimate: both parts compress a little differently together
        chosen = chosen[: len(chosen) * 9 // 10]
        blob = _compress(batch, chosen)
    return blob, _describe_left_out(points, len(chosen), total, batch, data)


def _compress(batch: records.Batch, chosen: list[records.Histogram]) -> bytes:
    """The bytes of a run with these histograms, the most telling ones last: caches keep those."""
    batch.histograms = chosen[::-1]
    batch.heavy = {
        name: sorted({h.step for h in batch.histograms if h.quantity == name and not h.layer}) for name in batch.heavy
    }
    encoded = batches.encode_batch(batch)
    return zlib.compress(struct.pack("<I", len(encoded)) + encoded, 9)


def _fit_curves(key: str, data: RunData, limit: int) -> tuple[records.Batch, int | None, int]:
    """The batch with the most points per curve that fits, that number, and its size."""
    choices: list[list[str] | None] = [None, []]
    tried: list[tuple[records.Batch, int | None, int]] = []
    for layers in choices:
        for points in POINTS:
            if points is not None and points >= len(data.table):
                continue
            batch = make_batch(data, run=key, max_points=points, layers=layers)
            size = len(zlib.compress(batches.encode_batch(batch), 6))
            tried = [(batch, points, size)]
            if size <= limit:
                break
        if tried[0][2] <= limit:
            break
    return tried[0]  # the smallest, even if it is too large: the sum over all runs shows whether that fits


def _fit_histograms(data: RunData, limit: int) -> tuple[list[records.Histogram], int]:
    """Histograms in order of their worth until the room is used up, and how many there are in all.

    What counts is what they take compressed, all together: their edges are alike, and are stored once.
    """
    chosen: list[records.Histogram] = []
    packer = zlib.compressobj(6)
    room, left, failures = Room(LARGEST_RATIO * limit), limit, 0
    for quantity, step, layer in order_histograms(data):
        if left <= 0 or room.is_full or failures > MOST_FAILURES:
            break
        try:
            blob = data.histogram_bytes(quantity, step, layer)
            left -= len(packer.compress(blob))
            if room.take(blob) and left > 0:
                chosen.append(wire.decode_histogram(blob))
        except (KeyError, ValueError, OSError):
            failures += 1  # this layer has none, or it is damaged
    there = sum(len(data.histogram_steps(name)) for name in data.histogram_names) * (1 + len(data.layers))
    return chosen, there - failures


def order_histograms(data: RunData) -> Iterator[tuple[str, int, str | None]]:
    """The last step with all layers, then the network over time (ends first, then halves), then layers over time."""
    names = data.histogram_names
    order = {name: spread(data.histogram_steps(name)) for name in names}
    for name in names:
        yield from ((name, order[name][0], layer) for layer in (None, *data.layers))
    for name in names:
        yield from ((name, step, None) for step in order[name][1:])
    longest = max((len(steps) for steps in order.values()), default=0)
    for number in range(1, longest):
        for name in names:
            if number < len(order[name]):
                yield from ((name, order[name][number], layer) for layer in data.layers)


def spread(steps: list[int]) -> list[int]:
    """The last, the first, the middle, the quarters, ...: any beginning of this list covers the whole run."""
    chosen = dict.fromkeys([*steps[-1:], *steps[:1]])
    parts = 2
    while len(chosen) < len(steps):
        for index in np.linspace(0, len(steps) - 1, parts + 1).round().astype(int):
            chosen.setdefault(steps[index])
        parts *= 2
    return list(chosen)


def _describe_left_out(points: int | None, kept: int, total: int, batch: records.Batch, data: RunData) -> str:
    words = []
    if points is not None:
        words.append(f"curves are thinned to about {points:,} points each, with every extreme.")
    if not any(column.layer for column in batch.columns) and any(data.table.layer_columns.values()):
        words.append("layer-wise curves are left out.")
    if kept < total:
        which = "; ".join(_describe_kept(name, batch.histograms, data) for name in data.histogram_names[:20])
        words.append(f"{total - kept:,} of {total:,} histograms are left out: {which}.")
    return " ".join(words)


def _describe_kept(name: str, histograms: list[records.Histogram], data: RunData) -> str:
    """Which histograms of one kind are inside: "GradHist1d is kept at all 50 steps, single layers at 7 of them"."""
    own = [histogram for histogram in histograms if histogram.quantity == name]
    there, network = len(data.histogram_steps(name)), len({h.step for h in own if not h.layer})
    words = f"{name} is kept at {'all' if network == there else f'{network:,} of'} {there:,} steps"
    layered = sorted({h.step for h in own if h.layer})
    if not data.layers or len(layered) == there:
        return words
    few = f" ({', '.join(map(str, layered))})" if 0 < len(layered) <= 5 else ""
    return f"{words}, single layers at {len(layered):,} of them{few}"


def _write_findings(runs: dict[str, RunData]) -> str:
    """What is wrong, as a list, for readers without JavaScript."""
    lines = []
    for key, data in runs.items():
        for finding in known_findings(data)[:50]:
            state = "retracted" if finding.retracted else finding.severity
            text = f"{key}: {state} since step {finding.since}: {finding.text} Try: {finding.remedy}"
            lines.append(f"<li>{html.escape(text[:2000])}</li>")
    return f"<ul>{''.join(lines)}</ul>" if lines else ""


def _write_table(runs: dict[str, RunData]) -> str:
    """Findings and the last values as plain text, for readers without JavaScript."""
    rows = []
    for key, data in runs.items():
        for name in data.names:
            if data.histogram_steps(name):
                continue
            steps, values = get_values(data, name)  # a layer-wise name may have no value of the network
            if len(steps):
                cells = (key, name, f"{int(steps[-1])}", f"{values[-1]:.6g}")
                rows.append("<tr>" + "".join(f"<td>{html.escape(cell[:200])}</td>" for cell in cells) + "</tr>")
    head = "<tr><th>run</th><th>quantity</th><th>step</th><th>value</th></tr>"
    return f"{_write_findings(runs)}<table>{head}{''.join(rows[:400])}</table>"
