"""Runs for the tests of the tab: small ones, long ones, damaged ones, and ones with hostile names."""

from __future__ import annotations

import math
import time
import zlib
from pathlib import Path

import numpy as np

from cockpit_core.events.writer import EventWriter
from cockpit_core.foundation import records
from cockpit_core.schema import cockpit_pb2 as pb

HOSTILE_RUNS = [
    "<img src=x onerror=alert(1)>",
    "‮gnorw eht yaw dnuor",
    "tab\there",
    "quo'te\"&amp;?run=b#x",
    "ünïcødé 100% + a,b",
]
HOSTILE_LAYERS = ["<script>alert(1)</script>", "x" * 10_000, "null\x00bell\x07", "‮rtl.weight", "a,b&c=d#e?f%20"]


def make_header(name: str, layers: tuple[str, ...] = ("w", "b"), revision: int = 0) -> records.Header:
    infos = [records.LayerInfo(layer, (2, 3), 6, "Linear", "rule") for layer in layers]
    quantities = [records.QuantityInfo("Loss"), records.QuantityInfo("GradNorm", layerwise=True)]
    quantities.append(records.QuantityInfo("GradHist1d", "histogram1d", layerwise=True))
    return records.Header(
        run_id=f"id-{name}", name=name, created=time.time(), revision=revision, layers=infos, quantities=quantities
    )


def make_record(step: int, layers: int = 2) -> records.Record:
    values = {"Loss": 2 / (1 + step), "GradNorm": math.sin(step) + 1.5}
    if step % 7 == 3:
        values["Loss"] = math.nan
    vectors = {"GradNorm": np.arange(1, layers + 1) * values["GradNorm"]}
    return records.Record("step", step, time.time(), 0.01 * step, scalars=values, layers=vectors, batch_size=32)


def make_histogram(step: int, layer: str = "", shift: int = 0) -> records.Histogram:
    counts = np.arange(10) + step + shift
    return records.Histogram("GradHist1d", step, counts, np.linspace(-1, 1, 11), layer=layer)


def write_run(
    folder: Path,
    steps: range,
    layers: tuple[str, ...] = ("w", "b"),
    *,
    finished: bool = True,
    resume: bool = False,
    shift: int = 0,
) -> None:
    """One light record per step, and a histogram in every tenth; ``shift`` tells two generations apart."""
    with EventWriter(folder, resume=resume) as writer:
        writer.write_header(make_header(folder.name, layers))
        writer.write_record(records.Record("start", steps.start, time.time(), 0.0))
        for step in steps:
            record = make_record(step, len(layers))
            record.scalars["GradNorm"] += shift
            if step % 10 == 0:
                some = [make_histogram(step, layer, i + 1 + shift) for i, layer in enumerate(layers)]
                writer.write_heavy("GradHist1d", step, make_histogram(step, "", shift), some)
            writer.write_record(record)
        if finished:
            writer.write_record(records.Record("end", steps.stop, time.time(), 1.0, status="finished"))


def write_broken(folder: Path) -> None:
    """Ten good records, two that are none, a broken header after the good one, and a histogram of rubbish."""
    with EventWriter(folder) as writer:
        writer.write_header(make_header(folder.name))
        for step in range(10):
            writer.write_record(make_record(step))
        for payload in (b"\xff\xff\xff", b""):
            writer._write_tensor("cockpit/records/000000", "records", writer.next_seq, payload)
            writer.next_seq += 1
        writer._write_tensor("cockpit/header", "header", 7, b"\x08")
        writer._write_tensor("cockpit/heavy/GradHist1d", "heavy", 3, [b"\xff\xff"], quantity="GradHist1d")
        writer._write_tensor("cockpit/records/what", "records", 3, b"who are you")
        writer.write_record(make_record(10))


def write_hurtful(folder: Path) -> None:
    """A sound run of five records with steps of 64 bits, numbers of records likewise, and histograms that inflate."""
    size = 2**26
    array = pb.Array(dtype=pb.DTYPE_UINT8, shape=[size], codec=pb.CODEC_ZLIB, data=zlib.compress(bytes(size), 9))
    bomb = pb.Histogram(counts=array, edges=pb.Array(dtype=pb.DTYPE_FLOAT64, shape=[0])).SerializeToString()
    vector = pb.Record(kind=pb.KIND_STEP, seq=5, layers=[pb.LayerVector(name=f"q{i}", values=array) for i in range(9)])
    with EventWriter(folder) as writer:
        writer.write_header(make_header(folder.name))
        for step in range(5):
            writer.write_record(make_record(step))
        for step in (1, 2**32, 2**62):
            writer._write_tensor("cockpit/heavy/GradHist1d", "heavy", step, [bomb, bomb], quantity="GradHist1d")
        writer._write_tensor("cockpit/heavy/Back", "heavy", 2**64 - 5, [bomb], quantity="Back")
        writer._write_tensor("cockpit/records/000000", "records", 5, vector.SerializeToString())
        end = pb.Record(kind=pb.KIND_END, seq=6, status="\x1b[31m<b>gone", error="\x1b[2J")
        writer._write_tensor("cockpit/records/000000", "records", 6, end.SerializeToString())
        writer._write_tensor("cockpit/records/000000", "records", 2**40, b"rubbish")


def write_all(root: Path) -> None:
    """Everything that the tests of the routes look at, in one log directory."""
    write_run(root / "small", range(40))
    write_run(root / "unfinished", range(5), finished=False)
    write_run(root / "nested" / "deep", range(5))
    write_run(root / "long", range(5000))
    write_run(root / "resumed", range(100), finished=False)
    write_run(root / "resumed", range(55, 120), resume=True, shift=1000)
    write_broken(root / "broken")
    write_hurtful(root / "hurtful")
    for number, name in enumerate(HOSTILE_RUNS):
        write_run(root / name, range(3 + number))
    write_run(root / "hostile layers", range(11), tuple(HOSTILE_LAYERS))
