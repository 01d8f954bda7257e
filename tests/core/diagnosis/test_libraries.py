"""What the callbacks of training libraries do with findings; the libraries themselves are in test_integrations."""

from __future__ import annotations

import pytest

from cockpit_core.foundation.records import Finding
from cockpit_core.integrations.findings import count_findings, describe, with_printing


def test_one_line_is_printed_unless_the_user_has_a_callback(capsys: pytest.CaptureFixture[str]) -> None:
    finding = Finding("not_learning", "likely", "It does not\nlearn.", remedy="Try more.", step=7)
    with_printing({"config": "full"})["on_finding"](finding)
    assert capsys.readouterr().out == "cockpit, step 7, likely: It does not learn. Try more.\n"
    with_printing({})["on_finding"](Finding("x", "advice", "Small."))
    assert capsys.readouterr().out == ""
    told: list[Finding] = []
    with_printing({"on_finding": told.append})["on_finding"](finding)
    assert told == [finding]
    assert capsys.readouterr().out == ""
    assert len(describe(Finding("x", "broken", "long " * 500))) <= 400


def test_loggers_get_numbers_only_when_there_is_something() -> None:
    assert count_findings([]) == {}
    assert count_findings([Finding("x", "advice", "")]) == {}
    found = [Finding("a", "broken", ""), Finding("b", "likely", ""), Finding("c", "likely", "", retracted=True)]
    assert count_findings(found) == {"cockpit/findings_broken": 1.0, "cockpit/findings_likely": 1.0}
