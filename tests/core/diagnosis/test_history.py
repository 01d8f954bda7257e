"""What rules look back at, by column and by record, and what is made of the start once."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np

from cockpit_core.diagnosis.history import LATE, History, Observation
from cockpit_core.diagnosis.view import View


def make_view(history: History, layers: int = 3) -> View:
    facts = SimpleNamespace(layers=[f"{i}" for i in range(layers)], shapes=[(4, 4)] * layers, sizes=[16] * layers)
    return View(history, facts)  # type: ignore[arg-type]


def test_last_values_of_a_column_are_those_of_the_records() -> None:
    """Columns come at their own pace, some are NaN at times, and old records are forgotten."""
    history = History()
    for step in range(3 * LATE):
        scalars = {"often": float(step)}
        if step % 5 == 0:
            scalars["seldom"] = math.nan if step % 10 == 0 else float(step)
        if step < 4:
            scalars["early"] = float(step)
        history.add(Observation(step, scalars))
        view = make_view(history)
        for name in ("often", "seldom", "early", "never"):
            for count in (1, 6, LATE):
                late = [seen.scalars.get(name, math.nan) for seen in history.late]
                assert view.values(name, count) == [value for value in late if value == value][-count:]
    assert {"often", "seldom", "early"} <= history.names
    assert "never" not in history.names


def add(history: History, step: int, gradients: list[float], weights: list[float]) -> None:
    layers = {"GradNorm": np.array(gradients), "ParamNorm": np.array(weights)}
    history.add(Observation(step, {"Loss": 1.0}, layers))


def test_what_rests_on_the_start_is_made_again_when_the_start_grows_or_the_header_changes() -> None:
    history = History()
    add(history, 0, [1.0, 1.0, 1.0], [2.0, 2.0, 2.0])
    first = make_view(history)
    assert first.vanishing == (1.0, "0")
    assert first.weight_scale == 2 / math.sqrt(4 / 3)
    add(history, 1, [0.0, 1.0, 1.0], [2.0, 2.0, 2.0])
    add(history, 2, [0.0, 1.0, 1.0], [2.0, 2.0, 2.0])
    assert make_view(history).vanishing == (0.0, "0")
    history.static["static_constant"] = 1.0  # then the last ones count
    for step in range(3, 12):
        add(history, step, [1.0, 0.5, 1.0], [2.0, 2.0, 2.0])
    assert make_view(history).vanishing == (0.5, "1")
    other = make_view(history)
    other.facts.shapes = [(4,)] * 3  # a header without matrices
    assert math.isnan(make_view(history, 4).weight_scale)
