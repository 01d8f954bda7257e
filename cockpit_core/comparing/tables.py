"""A comparison as plain data, for other programs."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from cockpit_core.comparing.comparison import Comparison, Section

if TYPE_CHECKING:
    import pandas


def make_dict(comparison: Comparison) -> dict[str, Any]:
    content = {
        "format": "cockpit-compare",
        "version": 1,
        "sections": [describe_section(section) for section in comparison.sections],
        "profiles": dataclasses.asdict(comparison.profiles) if comparison.profiles else None,
        "notes": comparison.notes,
    }
    return clean_numbers(content)


def describe_section(section: Section) -> dict[str, Any]:
    return {
        "problem": section.problem,
        "metric": dataclasses.asdict(section.metric),
        "runs": list_rows(section),
        "settings": [
            {"name": s.name, "values": s.values, "runs": len(s.entries), "chosen_from": s.chosen_from}
            for s in section.settings
        ],
        "sensitivity": [dataclasses.asdict(item) for item in section.sensitivity],
        "at_equal_loss": dataclasses.asdict(section.level) if section.level else None,
        "first_differences": [
            {
                "first": pair.first,
                "second": pair.second,
                "differences": [{**dataclasses.asdict(d), "ratio": d.ratio} for d in pair.differences],
                "alike": pair.alike,
                "too_few": pair.too_few,
            }
            for pair in section.pairs
        ],
        "notes": section.notes,
    }


def list_rows(section: Section) -> list[dict[str, Any]]:
    rows = []
    for setting in section.settings:
        for entry, score in zip(setting.entries, section.scores[setting.name], strict=True):
            fixed = {"problem": section.problem, "setting": setting.name, "run": entry.name, "seed": entry.seed}
            rows.append({**fixed, **setting.values, "metric": section.metric.name, **dataclasses.asdict(score)})
    return rows


def make_frame(comparison: Comparison) -> pandas.DataFrame:
    try:
        import pandas
    except ImportError as error:
        raise ImportError("to_pandas needs pandas: pip install 'torch-cockpit[pandas]'") from error
    return pandas.DataFrame([row for section in comparison.sections for row in list_rows(section)])


def clean_numbers(value: Any) -> Any:
    """JSON knows neither NaN nor infinity: both are None."""
    if isinstance(value, dict):
        return {str(key): clean_numbers(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean_numbers(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
