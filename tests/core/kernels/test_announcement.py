"""Compiling takes seconds at the very first step of an installation: it is said, once, and only then."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("numba")

from cockpit_core.kernels import fused


def test_a_slow_first_call_says_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(fused, "ANNOUNCED_AFTER", 0.05)
    monkeypatch.setattr(fused, "_told", False)
    for seconds in (0.0, 0.3, 0.3):
        with fused._announced("a loop"):
            time.sleep(seconds)
    assert capsys.readouterr().err.count("compiling") == 1


def test_a_quick_call_says_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(fused, "ANNOUNCED_AFTER", 0.2)
    monkeypatch.setattr(fused, "_told", False)
    with fused._announced("another loop"):
        pass
    time.sleep(0.3)
    assert capsys.readouterr().err == ""
