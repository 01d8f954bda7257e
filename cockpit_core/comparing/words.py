"""A comparison as text, for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from cockpit_core.comparing.comparison import Comparison, Pair, Section
from cockpit_core.comparing.first import CELLS, Difference
from cockpit_core.comparing.metrics import NEAR_LOSS, NEAR_SHARE, Metric
from cockpit_core.comparing.profiles import FACTORS, Profiles
from cockpit_core.report.terminal import clean, format_number, format_table

PAIRS = 4  # in words; the rest is in JSON
ALIKE = 8
COLUMNS = 6  # settings side by side


def describe(comparison: Comparison) -> Iterator[str]:
    for number, section in enumerate(comparison.sections):
        if number:
            yield ""
        yield from map(clean, describe_section(section))
    if comparison.profiles is not None:
        yield ""
        yield from map(clean, list_profiles(comparison.profiles))
    if comparison.notes:
        yield ""
        yield from (clean(f"Note: {note}.") for note in comparison.notes)


def describe_section(section: Section) -> Iterator[str]:
    metric, runs = section.metric, sum(len(setting.entries) for setting in section.settings)
    better = "less" if metric.less_is_better else "more"
    head = f"{section.problem}: " if section.problem else ""
    yield f"{head}{count(runs, 'run')}, {count(len(section.settings), 'setting')}; {metric.name}, {better} is better"
    yield ""
    yield from list_settings(section)
    if section.sensitivity:
        yield ""
        yield from list_sensitivity(section)
    if section.level is not None:
        yield ""
        yield from list_level(section)
    for pair in section.pairs[:PAIRS]:
        yield ""
        yield from list_differences(pair, metric)
    if len(section.pairs) > PAIRS:
        yield ""
        yield f"First differences of {len(section.pairs) - PAIRS} more settings: --json"
    if section.notes:
        yield ""
        yield "What cannot be compared, or only with care"
        yield from (f"  {note}" for note in section.notes)


def list_profiles(profiles: Profiles) -> Iterator[str]:
    """One row per contestant. Those that are fastest most often come first."""
    problems = f"Performance profiles over {len(profiles.problems)} problems"
    yield f"{problems}: on how many the steps to the target are within a factor of the fewest"
    rows = [["", "fastest", *(f"within {factor:g}" for factor in FACTORS[1:]), "reached"]]
    shares = {name: [profiles.share_within(name, factor) for factor in FACTORS] for name in profiles.ratios}
    reached = {name: np.mean([math.isfinite(r) for r in own.values()]) for name, own in profiles.ratios.items()}
    rows += [
        [name, *(f"{share:.0%}" for share in shares[name]), f"{reached[name]:.0%}"]
        for name in sorted(shares, key=lambda name: [-share for share in shares[name]])
    ]
    yield from format_table(rows, "<" + ">" * (len(rows[0]) - 1))
    yield "  targets: " + ", ".join(f"{problem} {target}" for problem, target in profiles.targets.items())


def count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def list_settings(section: Section) -> Iterator[str]:
    target = section.metric.target
    head = ["setting", "seeds", "final (range)", "best", "at step", "seconds"]
    if target is not None:
        head += [f"steps to {target:g}", "seconds to it", "reached by"]
    rows = [head]
    for setting in section.settings:
        scores = section.scores[setting.name]
        name = setting.name + (f" (best of {setting.chosen_from})" if setting.chosen_from > 1 else "")
        row = [name, str(len(scores)), show_range([s.final for s in scores])]
        row += [show(float(np.median([s.best for s in scores]))), f"{np.median([s.best_step for s in scores]):.0f}"]
        row.append(f"{np.median([s.seconds for s in scores]):.0f}")
        if target is not None:
            steps = [s.steps_to_target for s in scores]
            reached = sum(map(math.isfinite, steps))
            row += [show_median(steps, max(s.last_step for s in scores))]
            row += [show_median([s.seconds_to_target for s in scores], math.nan), f"{reached} of {len(scores)}"]
        rows.append(row)
    yield from format_table(rows, "<" + ">" * (len(head) - 1))


def show(value: float) -> str:
    return "-" if not math.isfinite(value) else format_number(value)


def show_range(values: Sequence[float]) -> str:
    if not any(map(math.isfinite, values)):
        return "none"
    middle = show(float(np.median(values)))
    return middle if len(values) == 1 else f"{middle} ({show(min(values))} to {show(max(values))})"


def show_median(values: Sequence[float], last: float) -> str:
    middle = float(np.median(values)) if all(map(math.isfinite, values)) else sorted(values)[len(values) // 2]
    if math.isfinite(middle):
        return f"{middle:.0f}" if middle >= 10 else f"{middle:.3g}"
    return f"> {last:.0f}" if math.isfinite(last) else "-"


def list_sensitivity(section: Section) -> Iterator[str]:
    metric = section.metric
    near = f"{NEAR_LOSS:.0%}" if metric.less_is_better else f"{NEAR_SHARE:g}"
    yield f"Sensitivity to the learning rate: median final {metric.name} by rate"
    for item in section.sensitivity:
        cells = "  ".join(f"{rate:g}: {show(value)}" for rate, value in zip(item.rates, item.finals, strict=True))
        width = (
            f"within {near} of the best over a factor of {item.width:.2g}"
            if item.width > 1
            else "only one rate is good"
        )
        yield f"  {item.label}  {cells}  ({width})"


def list_level(section: Section) -> Iterator[str]:
    level = section.level
    assert level is not None
    shown = [setting.name for setting in section.settings][:COLUMNS]
    yield f"Instruments at equal loss {show(level.loss)} (medians)"
    rows = [["", *shown], ["step", *(f"{level.steps[name]:.0f}" for name in shown)]]
    for quantity, row in level.values.items():
        rows.append([quantity, *(show(row[name]) if name in row else "-" for name in shown)])
    yield from (f"  {line}" for line in format_table(rows, "<" + ">" * len(shown)))
    if len(section.settings) > COLUMNS:
        yield f"  {len(section.settings) - COLUMNS} more settings: --json"


def list_differences(pair: Pair, metric: Metric) -> Iterator[str]:
    yield f"First differences, {pair.first} against {pair.second}"
    if not pair.differences:
        yield "  nothing separates by more than seeds of one setting do"
        yield from list_others(pair)
        return
    outcome = {"Loss", metric.name}
    rows = [[f"step {d.step}", d.quantity, *describe_values(d)] for d in pair.differences]
    marks = ["<- the outcome" if d.quantity in outcome else "" for d in pair.differences]
    for line, mark in zip(format_table(rows, "><><"), marks, strict=True):
        yield f"  {line}  {mark}".rstrip()
    yield f"  {summarize(pair, outcome)}"
    if any(d.seeds < 2 for d in pair.differences):
        yield "  One run per setting: two seeds of the same setting may come apart like this. Three runs each would tell."
    yield from list_others(pair)


def list_others(pair: Pair) -> Iterator[str]:
    alike = f"Not further apart than seeds for {CELLS} readings in a row"
    for names, words in ((pair.alike, alike), (pair.too_few, "Too few values to say")):
        if names:
            more = f" and {len(names) - ALIKE} more" if len(names) > ALIKE else ""
            yield f"  {words}: {', '.join(names[:ALIKE])}{more}"


def describe_values(difference: Difference) -> tuple[str, str]:
    """The two values, and by which factor the first is larger or smaller."""
    ratio = difference.ratio
    values = f"{show(difference.first)} against {show(difference.second)}"
    if not math.isfinite(ratio) or ratio <= 0 or max(ratio, 1 / ratio) < 1.1:
        return values, ""
    return values, f"{ratio:.3g} times" if ratio > 1 else f"1/{1 / ratio:.3g}"


def summarize(pair: Pair, outcome: set[str]) -> str:
    ends = [d.step for d in pair.differences if d.quantity in outcome]
    if not ends:
        return "The outcome itself does not separate by more than seeds of one setting do."
    causes = [d.quantity for d in pair.differences if d.step < min(ends) and d.quantity not in outcome]
    if not causes:
        return f"The outcome separates at step {min(ends)}, and nothing on record before it."
    named = ", ".join(causes[:5]) + (f" and {len(causes) - 5} more" if len(causes) > 5 else "")
    return (
        f"The outcome separates at step {min(ends)}. Before it: {named}. What comes first is a candidate, not a proof."
    )
