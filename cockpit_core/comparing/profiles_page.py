"""Performance profiles in the report, where it shows runs of several problems: a picture and a table that need no
script."""

from __future__ import annotations

import html
import math

from cockpit_core.comparing.comparison import compare
from cockpit_core.comparing.profiles import FACTORS, Profiles
from cockpit_core.events.data import RunData

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")  # told apart by all eyes
DASHES = ("", "6 3", "2 2")  # where there are more contestants than colours
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 420, 210, 40, 24, 44
FARTHEST = 8.0  # times the fewest steps
MOST = 20  # contestants
WORDS = (
    "For each optimizer, at its best setting: the share of problems on which it reaches the target within so many times the "
    "fewest steps (Dolan and Moré 2002). Where a line ends at the right is the share on which it reaches the target soon enough."
)


def write_profiles(runs: dict[str, RunData]) -> str:
    """Markup; nothing for a single problem, or for runs that cannot be compared."""
    problems = {data.header.options.get("problem", "") for data in runs.values() if data.header is not None}
    if len(problems - {""}) < 2:
        return ""
    try:
        profiles = compare(list(runs.values()), group="optimizer").profiles
    except ValueError:  # no metric in common, no optimizer on record
        return ""
    if profiles is None:
        return ""
    head = f"<h2>Performance profiles over {len(profiles.problems)} problems</h2><p>{WORDS}</p>"
    return f'<section id="cockpit-profiles">{head}{draw(profiles)}{tabulate(profiles)}</section>'


def order(profiles: Profiles) -> list[str]:
    """Who is the fastest most often comes first."""
    return sorted(profiles.ratios, key=lambda name: [-profiles.share_within(name, factor) for factor in FACTORS])[:MOST]


def place(ratio: float, share: float) -> tuple[float, float]:
    x = LEFT + (WIDTH - LEFT - 10) * math.log2(ratio) / math.log2(FARTHEST)
    return x, TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)


def draw(profiles: Profiles) -> str:
    middle = (LEFT + WIDTH) / 2
    parts = ['<text x="4" y="12">share of problems</text>']
    parts.append(f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">times the fewest steps</text>')
    for share in (0.0, 0.5, 1.0):
        (x, y), (end, _) = place(1, share), place(FARTHEST, share)
        parts.append(f'<path d="M{x:.1f} {y:.1f}H{end:.1f}" stroke="#8884"/>')
        parts.append(f'<text x="{x - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    for factor in (1, 2, 4, 8):
        x, y = place(factor, 0)
        parts.append(f'<text x="{x:.1f}" y="{y + 16:.1f}" text-anchor="middle">{factor}×</text>')
    for number, name in enumerate(order(profiles)):
        path = "M{:.1f} {:.1f}".format(*place(1, profiles.share_within(name, 1)))
        for ratio in sorted({own for own in profiles.ratios[name].values() if 1 < own <= FARTHEST}):
            path += "H{:.1f}V{:.1f}".format(*place(ratio, profiles.share_within(name, ratio)))
        path += f"H{place(FARTHEST, 0)[0]:.1f}"
        dash = DASHES[number // len(COLORS) % len(DASHES)]
        parts.append(
            f'<path d="{path}" fill="none" stroke="{color_of(number)}" stroke-width="2" stroke-dasharray="{dash}"/>'
        )
    label = "Share of problems against times the fewest steps"
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def color_of(number: int) -> str:
    return COLORS[number % len(COLORS)]


def tabulate(profiles: Profiles) -> str:
    titles = ("optimizer", *(f"{name} ({profiles.targets[name]})" for name in profiles.problems))
    rows = [f"<tr>{''.join(f'<th>{html.escape(title[:200])}</th>' for title in titles)}</tr>"]
    for number, name in enumerate(order(profiles)):
        cells = [f'<td><i style="background:{color_of(number)}"></i>{html.escape(name[:200])}</td>']
        for problem in profiles.problems:
            ratio = profiles.ratios[name][problem]
            words = "fastest" if ratio <= 1 else f"{ratio:.3g} times" if math.isfinite(ratio) else "not reached"
            cells.append(f"<td>{words}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table>{''.join(rows)}</table>"
