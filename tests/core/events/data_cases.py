"""What the tests of ``load`` share."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from cockpit_core.events.data import RunData, load
from cockpit_core.events.writer import EventWriter
from cockpit_core.foundation import records

LAYERS = ["a", "b"]


def make_header(layers: list[str] = LAYERS, run_id: str = "id") -> records.Header:
    infos = [records.LayerInfo(name, (1,), 1) for name in layers]
    quantities = [records.QuantityInfo("Loss"), records.QuantityInfo("CABS")]
    return records.Header(run_id, "run", 1.0, layers=infos, quantities=quantities)


def make_step(step: int, value: float = 0.0) -> records.Record:
    layers = {"GradNorm": np.array([value, step], dtype=float)}
    return records.Record("step", step, time.time(), float(step), scalars={"Loss": value}, layers=layers)


def make_histogram(step: int, layer: str = "", count: int = 1) -> records.Histogram:
    return records.Histogram("GradHist1d", step, np.full(3, count, np.uint32), np.linspace(0, 1, 4), layer=layer)


def write_steps(writer: EventWriter, steps: range, value: float = 0.0) -> None:
    for step in steps:
        layers = [make_histogram(step, "a", int(value) + 1), None]
        writer.write_heavy("GradHist1d", step, make_histogram(step, "", int(value) + 1), layers)
        record = make_step(step, value)
        if step:
            record.alphas = [records.AlphaFit(step - 1, value, *[1.0] * 12)]
        record.notices = [records.Notice(step, "note", f"{value}")]
        record.missing = {"CABS": f"{value}"}
        writer.write_record(record)


def write_run(logdir: Path) -> RunData:
    with EventWriter(logdir) as writer:
        writer.write_header(make_header())
        write_steps(writer, range(5))
        log = records.Record("log", 4, time.time(), 5.0, scalars={"log/valid_accuracy": 0.5})
        writer.write_record(log)
        writer.write_record(records.Record("end", 5, time.time(), 6.0, status="finished"))
    return load(logdir)
