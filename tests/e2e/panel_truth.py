"""What every panel must show, computed from ``cockpit_core.load``, and the page compared with it.

Read from the page are: the numbers in the heads of the panels (the exact value that a number stands for, and the text
that people see), the tables for screen readers, the tables that are panels themselves, and the CSV of histograms.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from cockpit_core.events.data import RunData
from cockpit_core.foundation.records import Header, Notice
from tests.e2e.tensorboard_tab import Reading, Tab

# What each number in the head of a panel is called in the log.
CURVES = {
    ("alpha", "alpha"): "Alpha",
    ("distance", "‖θ − θ₀‖ distance"): "Distance",
    ("distance", "‖Δθ‖ update"): "UpdateSize",
    ("distance", "‖θ‖ weights"): "ParamNorm",
    ("grad_norm", "before clipping"): "GradNorm",
    ("grad_norm", "as the optimizer saw it"): "GradNormClipped",
    ("grad_norm", "largest sample"): "TopSampleNorm",
    ("learning_rate", "learning rate"): "LearningRate",
    ("gradient_tests", "norm"): "NormTest",
    ("gradient_tests", "inner"): "InnerTest",
    ("gradient_tests", "ortho"): "OrthoTest",
    ("cabs", "suggested batch size"): "CABS",
    ("early_stopping", "criterion"): "EarlyStopping",
    ("mean_gsnr", "mean GSNR"): "MeanGSNR",
    ("hess_max_ev", "λ max"): "HessMaxEV",
    ("hess_trace", "Tr H"): "HessTrace",
    ("tic", "from the diagonal"): "TICDiag",
    ("tic", "from the traces"): "TICTrace",
    ("loss", "loss"): "Loss",
    ("other:log/valid_accuracy", "valid_accuracy"): "log/valid_accuracy",
    ("other:WeightSparsity", "WeightSparsity"): "WeightSparsity",
}
KINDS = {
    "error": "error",
    "edge_of_stability": "edge of stability",
    "outside_range": "outside the range",
    "trigger": "triggered",
}
HINTS = ("outside_range", "coverage", "trigger", "size", "note")
SUMS = ("cost/step", "cost/run")  # of the other costs
SLOW = 30  # times smaller gradients than the median layer's


def value_at(data: RunData, name: str, step: int | None, layer: str | None = None) -> float:
    steps, values = data.scalars(name, layer)
    return float(values[np.flatnonzero(steps == step)[-1]])


def latest(data: RunData, name: str, step: int, layer: str | None = None) -> tuple[int, float] | None:
    """The newest value that is not newer than ``step``."""
    try:
        steps, values = data.scalars(name, layer)
    except KeyError:
        return None
    known = np.flatnonzero(steps <= step)
    return (int(steps[known[-1]]), float(values[known[-1]])) if len(known) else None


def histogram_step(data: RunData, quantity: str, step: int) -> int:
    steps = np.asarray(data.histogram_steps(quantity))
    return int(steps[steps <= step].max(initial=steps[0]))


def find_slow_layers(data: RunData, step: int) -> list[str]:
    sizes = {layer.name: layer.size for layer in data.header.layers}
    found = {name: latest(data, "GradNorm", step, name) for name in sizes}
    scale = {name: hit[1] / sizes[name] ** 0.5 for name, hit in found.items() if hit}
    usual = max(np.median(list(scale.values())), max(scale.values()) / 300)  # the median may have vanished, too
    return [name for name, own in scale.items() if own * SLOW < usual]


def tracking_share(data: RunData) -> float:
    """Seconds of tracking per second of training; on a busy machine the two are timed a little apart."""
    columns = [name for name in data.table.columns if name.startswith("cost/") and name not in SUMS]
    if "cost/run" in data.table.columns:
        rows, values = data.table.columns["cost/run"].get()
        return min(1.0, float(values[-1] / data.rows.time[rows[-1]]))
    return float(sum(data.scalars(name)[1].sum() for name in columns) / data.scalars("cost/step")[1].sum())


def expect_readings(data: RunData, step: int) -> dict[tuple[str, str], tuple[float, int | None]]:
    """(panel, label) -> (value, step of that value), of all numbers in heads."""
    expected: dict[tuple[str, str], tuple[float, int | None]] = {}
    for key, name in CURVES.items():
        if hit := latest(data, name, step):
            expected[key] = hit[1], hit[0]
    update, weights = latest(data, "UpdateSize", step), latest(data, "ParamNorm", step)
    assert update is not None
    assert weights is not None
    expected["update_ratio", "‖Δθ‖ / ‖θ‖"] = update[1] / weights[1], update[0]
    steps, alphas = data.scalars("Alpha")
    recent = alphas[steps >= steps[-1] - 0.1 * (steps[-1] - steps[0])]
    expected["alpha", "median of all"] = float(np.median(alphas)), None
    expected["alpha", "median of the last 10 %"] = float(np.median(recent)), None
    one, two = (histogram_step(data, name, step) for name in ("GradHist1d", "GradHist2d"))
    histogram = data.histogram("GradHist1d", one)
    if np.ptp(np.diff(histogram.edges)) > 1e-9 * np.ptp(histogram.edges):  # logarithmic bins: nothing is outside
        zero = int(np.searchsorted(histogram.edges, 0.0)) - 1
        expected["grad_hist_1d", "near zero"] = float(histogram.counts[zero] / histogram.counts.sum()), one
    else:
        expected["grad_hist_1d", "outside"] = (histogram.below + histogram.above) / histogram.counts.sum(), one
    expected["grad_hist_2d", "elements"] = float(data.histogram("GradHist2d", two).counts.sum()), two
    if slow := find_slow_layers(data, step):
        expected["grad_hist_layers", "slow layers"] = len(slow), None
    expected["cost", "share of training time"] = tracking_share(data), None
    if data.notices:
        expected["warnings", "recorded"] = len(data.notices), None
    return expected


def check_readings(tab: Tab, data: RunData, step: int) -> set[str]:
    expected = expect_readings(data, step)
    labels = {own: "near zero" if own.label.startswith("|g| <") else own.label for own in tab.readings()}
    shown = {(own.panel, label): own for own, label in labels.items() if own.panel != "runs"}  # a table of all runs
    assert set(shown) == set(expected), (set(shown) - set(expected), set(expected) - set(shown))
    for key, reading in shown.items():
        value, at = expected[key]
        assert reading.value == pytest.approx(value, rel=1e-12), reading
        assert reading.step == at, reading
        if reading.panel != "warnings":
            check_text(reading)
    return {panel for panel, _ in expected}


def check_text(reading: Reading) -> None:
    """What people see is the value, rounded."""
    text = reading.text.replace("−", "-").replace(",", "")
    if "< 0.01 %" in text:
        assert 0 < reading.value < 1e-4, reading
        return
    without_words = re.sub(r"last \d+ %", "", text)
    match = re.search(r"(-?[\d.]+(?:e-?\d+)?)(k|M| %)?", without_words)
    assert match, reading
    unit = {"k": 1e3, "M": 1e6, " %": 0.01, None: 1}[match[2]]
    assert float(match[1]) * unit == pytest.approx(reading.value, rel=0.05 if unit == 0.01 else 0.006), reading


def check_costs(tab: Tab, data: RunData, step: int) -> None:
    expected = {}
    for name in data.table.columns:
        if name.startswith("cost/") and name not in SUMS:
            hit = latest(data, name, step)
            values = np.sort(data.scalars(name)[1])
            expected[name[5:]] = hit[1] if hit else 0.0
            expected[f"{name[5:]}, usually"] = float(values[len(values) // 2])
    told = {row.label: row.value for row in tab.told("cost", step) if row.label != "share of training time"}
    assert told == pytest.approx(expected, rel=1e-12)


def check_layers(tab: Tab, data: RunData, step: int) -> None:
    """The small multiples: in network order, how wide each is, and every single bar."""
    at = histogram_step(data, "GradHist1d", step)

    def rows() -> list[Reading]:
        return [row for row in tab.told("grad_hist_layers", step) if row.label != "slow layers"]

    tab.wait(lambda: all(row.step == at for row in rows()), "histograms of the step, which come after the curves")
    assert [row.label for row in rows()] == [layer.name for layer in data.header.layers]
    for row in rows():
        histogram = data.histogram("GradHist1d", at, row.label)
        middles = (histogram.edges[1:] + histogram.edges[:-1]) / 2
        mean = np.average(middles, weights=histogram.counts)
        spread = np.sqrt(np.average((middles - mean) ** 2, weights=histogram.counts))
        assert row.step == at
        assert row.value == pytest.approx(spread, rel=1e-6, abs=1e-12), row
    words = " ".join(tab.card("grad_hist_layers").locator(".ck-note").all_inner_texts())
    for layer in find_slow_layers(data, step):
        assert layer in words


def check_map(tab: Tab, data: RunData, step: int) -> None:
    """The map of the network: the gradient's root mean square of every tensor, in network order."""
    told = [row for row in tab.told("layer_map", step) if row.label in data.layers]
    assert [row.label for row in told] == [name for name in data.layers if latest(data, "GradNorm", step, name)]
    sizes = {layer.name: layer.size for layer in data.header.layers}
    for row in told:
        hit = latest(data, "GradNorm", step, row.label)
        assert hit is not None
        assert row.value == pytest.approx(hit[1] / sizes[row.label] ** 0.5, rel=1e-12), row


def check_runs(tab: Tab, data: RunData) -> None:
    """The table of runs has one line for the one that is shown, with how it ended and its last step."""
    (row,) = tab.evaluate("[...document.querySelectorAll('[data-panel=runs] tbody tr')].map((e) => e.innerText)")
    silent = data.status == "running" and "crashed" in row  # no end, no record for a while: the page has a clock
    assert data.status in row or silent, row
    assert f"{int(data.rows.step[-1]):,}" in row


def check_histogram_csv(tab: Tab, data: RunData, panel: str, quantity: str, step: int, layers: Iterable[str]) -> None:
    rows = tab.save_csv(panel)
    at = histogram_step(data, quantity, step)
    assert {int(row["step"]) for row in rows} == {at}
    for layer in layers:
        own = [row for row in rows if row["layer"] == layer]
        histogram = data.histogram(quantity, at, layer or None)
        assert [float(row["count"]) for row in own] == histogram.counts.ravel().tolist()
        low = np.array([float(row["gradient_low" if "gradient_low" in row else "low"]) for row in own])
        wide = histogram.counts.shape[1] if histogram.counts.ndim == 2 else 1
        np.testing.assert_array_equal(low, np.repeat(histogram.edges[:-1], wide))
    assert {row["layer"] for row in rows} == set(layers)


def group_notices(notices: Iterable[Notice]) -> dict[tuple[str, str, str], list[Notice]]:
    groups: dict[tuple[str, str, str], list[Notice]] = {}
    for notice in notices:
        same = (notice.quantity, re.sub(r"[\d.]+", "#", notice.message)) if notice.kind != "not_finite" else ("", "")
        groups.setdefault((notice.kind, *same), []).append(notice)
    return groups


def check_warnings(tab: Tab, data: RunData) -> None:
    groups = group_notices(data.notices)
    shown = tab.warnings()
    assert len(shown) == len(groups)
    for (kind, quantity, _), group in groups.items():
        first = group[0]
        layers = list(dict.fromkeys(notice.layer for notice in group))
        times = f"({len(group)} times)" if len(group) > 1 else ""
        (row,) = [row for row in shown if first.message in row.text and KINDS[kind] in row.text]
        assert row.step == first.step
        assert quantity in row.text
        assert times in row.text
        assert row.layers == ([layer or "whole network" for layer in layers] if len(layers) > 1 else [])
        assert len(layers) > 1 or layers[0] in row.text
    serious = [any(KINDS[kind] in row.text for kind in KINDS if kind not in HINTS) for row in shown]
    assert serious == sorted(serious, reverse=True)  # what is worst comes first
    hints = sum(kind in HINTS for kind, _, _ in groups)
    words = " ".join(reading.text for reading in tab.readings() if reading.panel == "warnings")
    for count, word in ((len(groups) - hints, "warning"), (hints, "hint")):
        assert (f"{count} {word}{'s' if count > 1 else ''}" in words) == (count > 0)


WIRING = {
    "activations", "constant weights", "copied weights", "fresh weights", "frozen fresh weights", "linear pairs",
}  # for diagnoses alone  # fmt: skip


def describe(header: Header) -> dict[str, str]:
    """Everything that a header says about how a run was made."""
    (optimizer,) = header.optimizers
    (group,) = optimizer.groups
    facts = {
        "model": header.model,
        "parameters": f"{header.num_parameters:,}",
        "depth": f"{sum(len(layer.shape) > 1 for layer in header.layers)} weight tensors",
        "loss": header.loss,
        "optimizer": optimizer.name,
        **group,
        "batch size": str(header.batch_size),
        "config": header.config,
        "schedule": header.schedule,
        "curvature": header.curvature,
        "git commit": header.git_commit[:12],
        **{f"{name} version": version for name, version in header.versions.items()},
        **{name: value for name, value in header.options.items() if name not in WIRING},
        "note": " ".join(header.notes),
    }
    return {name: value for name, value in facts.items() if value}


def check_about(tab: Tab, runs: list[RunData]) -> None:
    """One run: all that is known. Several: what differs, and nothing else."""
    facts = [describe(data.header) for data in runs]
    names = list(dict.fromkeys(name for own in facts for name in own))
    rows = {name: [own.get(name, "–") for own in facts] for name in names if len(runs) == 1 or name != "depth"}
    if len(runs) > 1:
        rows = {name: values for name, values in rows.items() if len(set(values)) > 1}
    shown = tab.facts()
    if len(runs) == 1:
        (network,) = shown.pop("network")
        assert all(layer.module in network for layer in runs[0].header.layers)
        assert [network] == rows.pop("network", [network])  # logs without a module tree are described by their layers
        rates = runs[0].scalars("LearningRate")[1]
        if rates.min() < rates.max():
            (rate,) = shown.pop("lr")
            assert "highest seen" in rate
            del rows["lr"]
    assert shown == rows


def check_page(tab: Tab, data: RunData, step: int) -> set[str]:
    """Every panel of the page against the log; returns which panels were compared."""
    tab.wait(lambda: all(r.step is None or r.step <= step for r in tab.readings()), "histograms")
    panels = check_readings(tab, data, step)
    layers = [layer.name for layer in data.header.layers]
    further: dict[str, Callable[[], None]] = {
        "cost": lambda: check_costs(tab, data, step),
        "layer_map": lambda: check_map(tab, data, step),
        "grad_hist_layers": lambda: check_layers(tab, data, step),
        "warnings": lambda: check_warnings(tab, data),
        "about": lambda: check_about(tab, [data]),
        "runs": lambda: check_runs(tab, data),
    }
    if not data.notices:
        del further["warnings"]
    for check in further.values():
        check()
    for panel, quantity, own in (
        ("grad_hist_1d", "GradHist1d", [""]),
        ("grad_hist_2d", "GradHist2d", [""]),
        ("grad_hist_layers", "GradHist1d", layers),
    ):
        check_histogram_csv(tab, data, panel, quantity, step, own)
    return panels | set(further)
