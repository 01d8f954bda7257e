"""Findings travel in records and batches; what stands in a log that is not ours is bounded and stays text."""

import math

import numpy as np
import pytest

from cockpit_core.events.batch import encode_batch
from cockpit_core.events.data import RunData
from cockpit_core.foundation import records
from cockpit_core.foundation.records import Evidence, Finding
from cockpit_core.schema import batches, wire
from cockpit_core.schema import cockpit_pb2 as pb
from cockpit_core.schema.findings import MOST_EVIDENCE, MOST_FINDINGS, MOST_LAYERS, MOST_TEXT


def make_finding(name: str = "learning_rate_too_high", **more: object) -> Finding:
    evidence = [Evidence("UpdateRatio", 0.7, 1e-5, 0.1, "", 40, "fc.weight", "the step is 0.7 of the weights")]
    plain = {"since": 10, "layers": ["fc.weight"], "evidence": evidence, "remedy": "divide by 6", "confidence": 0.9}
    plain |= {"text": "The learning rate is too high.", "step": 40}
    return Finding(name, "likely", **{**plain, **more})  # type: ignore[arg-type]


def make_record(seq: int, *findings: Finding, **more: object) -> records.Record:
    return records.Record("step", seq, 1.0, 1.0, seq=seq, scalars={"Loss": 1.0}, findings=list(findings), **more)  # type: ignore[arg-type]


def feed(*found: records.Record) -> RunData:
    data = RunData()
    data.feed_header(wire.encode_header(records.Header("id", "run", 0.0)))
    data.feed_records([wire.encode_record(record) for record in found])
    return data


def test_a_finding_survives_the_way_into_a_log_and_a_page() -> None:
    finding = make_finding(explains=["not_learning"], retracted=True)
    record = wire.decode_record(wire.encode_record(make_record(3, finding)))
    assert record.findings == [finding]
    data = feed(make_record(3, finding))
    assert data.findings == [finding]
    assert batches.decode_batch(encode_batch(data, run="x")).findings == [finding]


def test_the_latest_message_of_a_name_counts() -> None:
    first, second, other = make_finding(), make_finding(retracted=True, step=50), make_finding("dead_units")
    data = feed(make_record(1, first, other), make_record(2, second))
    assert data.findings == [second, other]
    whole = batches.decode_batch(encode_batch(data, run="x")).findings
    assert {finding.name: finding.retracted for finding in whole} == {first.name: True, "dead_units": False}
    assert batches.decode_batch(encode_batch(data, 2, run="x")).findings == [second]


def test_a_resumed_run_replaces_the_findings_of_the_steps_it_goes_back_over() -> None:
    data = feed(make_record(1), make_record(5, make_finding()), make_record(6, generation=1))
    assert len(data.findings) == 1
    back = make_record(7, generation=2)
    back.step = 2
    data.feed_record(wire.encode_record(back))
    assert data.findings == []


def test_many_plain_records_around_a_finding_are_read_alike() -> None:
    found = [make_record(seq, *([make_finding(step=seq)] if seq in (20, 60) else [])) for seq in range(100)]
    data = feed(*found)
    assert [finding.step for finding in data.findings] == [60]
    assert len(data.scalars("Loss")[0]) == 100


def test_a_record_without_findings_is_what_it_was() -> None:
    """A log of an older version has no such field: it reads, and has none."""
    record = wire.decode_record(wire.encode_record(make_record(1)))
    assert record.findings == []
    assert pb.Record.FromString(wire.encode_record(make_record(1))).findings == []


def test_hostile_findings_are_bounded() -> None:
    evidence = [pb.Evidence(name="x" * 10**3, value=math.nan, text="t" * 10**3)] * 1000
    hostile = pb.Finding(
        name="n" * 10**5,
        severity="<script>",
        text="t" * 10**6,
        layers=["l"] * 10**5,
        evidence=evidence,
        confidence=1e308,
    )
    message = pb.Record(kind=pb.KIND_STEP, findings=[hostile, *[pb.Finding(confidence=math.nan)] * 1000])
    found = wire.decode_record(message.SerializeToString()).findings
    assert len(found) == MOST_FINDINGS
    assert found[0].severity == "advice"
    assert found[0].confidence == 1
    assert found[1].confidence == 0
    assert len(found[0].text) == MOST_TEXT
    assert len(found[0].layers) == MOST_LAYERS
    assert len(found[0].evidence) == MOST_EVIDENCE
    assert np.isnan(found[0].evidence[0].value)


def test_halves_of_characters_do_not_break_a_record() -> None:
    record = make_record(1, make_finding(text="half \ud83d", layers=["\udcff"]))
    assert wire.decode_record(wire.encode_record(record)).findings[0].text == "half ?"


@pytest.mark.parametrize("severity", ["broken", "likely", "advice"])
def test_severities_are_kept(severity: str) -> None:
    finding = make_finding()
    finding.severity = severity
    assert wire.decode_record(wire.encode_record(make_record(1, finding))).findings[0].severity == severity
