"""A few runs of the diagnosis benchmark: it runs, resumes, and its scores are those of its findings."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.diagnosis.faults import FAULTS, fits
from benchmarks.diagnosis.healthy import AWKWARD, names_of_awkward
from benchmarks.diagnosis.loop import make_job
from benchmarks.diagnosis.programs import PROGRAMS
from benchmarks.diagnosis.run import list_cases, work
from benchmarks.diagnosis.score import KINDS, describe, read_outcomes
from cockpit_core.diagnoses import all_diagnoses

CASES = [
    ("mlp", "healthy", 0),
    ("mlp", "severe/not_zeroed", 0),
    ("mlp", "severe/lr_high", 0),
    ("regression", "healthy", 0),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("diagnosis")
    for case in CASES:
        assert work((case, root, "lean"))[1] == ""
    return root


def test_faults_are_named_and_healthy_runs_are_not(folder: Path) -> None:
    outcomes = {(o.program, o.case): o for o in read_outcomes(folder, KINDS["everything"])}
    for o in outcomes.values():
        assert [f.name for f in o.alarms[:1] if f.name not in o.truth] == [], o.case
    assert outcomes["mlp", "severe/not_zeroed"].alarms[0].name == "gradients_not_zeroed"
    assert outcomes["mlp", "severe/lr_high"].alarms[0].name == "learning_rate_too_high"
    assert any("healthy: an alarm in 0.00 (0 of 2)" in line for line in describe(list(outcomes.values())))


def test_less_evidence_finds_less(folder: Path) -> None:
    blind = {o.case: o for o in read_outcomes(folder, KINDS["loss curve only"]) if o.program == "mlp"}
    assert "gradients_not_zeroed" not in [f.name for f in blind["severe/not_zeroed"].alarms]


def test_every_fault_names_diagnoses_that_exist_and_fits_some_program() -> None:
    for name, (_, _, truth) in FAULTS.items():
        assert set(truth) <= set(all_diagnoses()), name
        assert any(fits(name, program) for program in PROGRAMS.values()), name
    assert len(PROGRAMS) >= 8
    assert {name for _, name in names_of_awkward()} == set(AWKWARD)
    cases = list_cases(3, 300, list(PROGRAMS))
    assert len(cases) == len(set(cases))
    assert sum(case[1] == "healthy" for case in cases) >= 300


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_every_fault_can_be_made(program: str) -> None:
    for name in FAULTS:
        if fits(name, PROGRAMS[program]):
            assert make_job(program, f"mild/{name}", 0).optimizer is not None
