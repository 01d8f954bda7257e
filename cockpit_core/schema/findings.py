"""Findings as messages. What is read is bounded: texts are cut, lists are short, numbers lie in their range."""

from __future__ import annotations

import math
from collections.abc import Iterable

from cockpit_core.foundation.records import Evidence, Finding
from cockpit_core.schema import cockpit_pb2 as pb

SEVERITIES = ("broken", "likely", "advice")  # worst first
MOST_TEXT = 2000  # characters of a sentence
MOST_NAME = 200
MOST_LAYERS = 1000
MOST_EVIDENCE = 50
MOST_FINDINGS = 200  # of one record


def finding_message(finding: Finding) -> pb.Finding:
    plain = {name: value for name, value in vars(finding).items() if name != "evidence"}
    return pb.Finding(evidence=[pb.Evidence(**vars(item)) for item in finding.evidence], **plain)


def read_findings(messages: Iterable[pb.Finding]) -> list[Finding]:
    return [read_finding(message) for message, _ in zip(messages, range(MOST_FINDINGS), strict=False)]


def read_finding(message: pb.Finding) -> Finding:
    known = message.severity in SEVERITIES
    confidence = message.confidence if math.isfinite(message.confidence) else 0.0
    return Finding(
        name=message.name[:MOST_NAME],
        severity=message.severity if known else "advice",
        text=message.text[:MOST_TEXT],
        since=message.since,
        layers=[layer[:MOST_NAME] for layer in message.layers[:MOST_LAYERS]],
        evidence=[read_evidence(item) for item in message.evidence[:MOST_EVIDENCE]],
        remedy=message.remedy[:MOST_TEXT],
        confidence=min(1.0, max(0.0, confidence)),
        explains=[name[:MOST_NAME] for name in message.explains[:MOST_EVIDENCE]],
        retracted=message.retracted,
        step=message.step,
    )


def read_evidence(message: pb.Evidence) -> Evidence:
    return Evidence(
        name=message.name[:MOST_NAME],
        value=message.value,
        low=message.low,
        high=message.high,
        unit=message.unit[:MOST_NAME],
        step=message.step,
        layer=message.layer[:MOST_NAME],
        text=message.text[:MOST_TEXT],
    )
