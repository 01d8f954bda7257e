"""Sixty runs of the diagnosis benchmark, on its two quickest programs: what is promised holds on them."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from benchmarks.diagnosis.faults import FAULTS, fits
from benchmarks.diagnosis.healthy import AWKWARD, names_of_awkward
from benchmarks.diagnosis.loop import make_job
from benchmarks.diagnosis.programs import PROGRAMS
from benchmarks.diagnosis.run import folder_of, list_cases, small_cases, work
from benchmarks.diagnosis.score import DATA, KINDS, Outcome, describe, judge, paced, read_outcomes
from benchmarks.diagnosis.write import make_row, write_measured
from cockpit_core.diagnoses import all_diagnoses
from cockpit_core.diagnosis.confidence import confidence_of, weigh


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("diagnosis")
    for case in small_cases():
        assert work((case, root, "lean"))[1] == ""
    return root


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> list[Outcome]:
    return read_outcomes(folder, KINDS["everything"])


def test_sixty_runs_are_judged_as_well_as_promised(outcomes: list[Outcome]) -> None:
    assert len(outcomes) == 60
    harmed = [o for o in outcomes if o.grade == "severe" and o.harmed]
    found = [o for o in harmed if o.alarms]
    first = [o for o in found if o.alarms[0].name in o.truth]
    assert len(harmed) >= 25
    assert len(found) >= 0.92 * len(harmed), [o.case for o in harmed if not o.alarms]
    assert len(first) >= 0.85 * len(harmed), [(o.case, o.alarms[0].name) for o in found if o not in first]
    assert statistics.median(o.at[o.alarms[0].name] / o.steps for o in first) <= 0.05


def test_healthy_runs_raise_no_alarm(outcomes: list[Outcome]) -> None:
    good = [o for o in outcomes if o.grade in ("healthy", "awkward") and not o.harmed]
    assert len(good) >= 12
    assert [(o.program, o.case, o.seed, o.alarms[0].name) for o in good if o.alarms] == []
    bad = [o for o in outcomes if o.grade in ("healthy", "awkward") and o.harmed]
    assert not [o for o in bad for f in o.alarms if f.name in DATA and f.confidence > 0.5]
    assert any("healthy: an alarm in 0.00" in line for line in describe(outcomes))


def test_quantities_with_paces_of_their_own_find_nearly_as_much(folder: Path, outcomes: list[Outcome]) -> None:
    thinned = read_outcomes(folder, KINDS["everything"], paced)
    assert not [o.case for o in thinned if o.grade in ("healthy", "awkward") and not o.harmed and o.alarms]
    before, after = (
        sum(bool(o.alarms) for o in some if o.grade == "severe" and o.harmed) for some in (outcomes, thinned)
    )
    assert after >= 0.9 * before


def test_less_evidence_finds_less(folder: Path) -> None:
    logdir = folder_of(("mlp", "severe/not_zeroed", 0), folder) / "log"
    assert "gradients_not_zeroed" in judge(logdir, KINDS["everything"])[1]
    assert "gradients_not_zeroed" not in judge(logdir, KINDS["loss curve only"])[1]


def test_the_page_and_the_table_of_precision_are_made_of_results(outcomes: list[Outcome], tmp_path: Path) -> None:
    assert "| mlp |" in make_row("mlp", outcomes)
    write_measured(outcomes, tmp_path / "measured.py")
    namespace: dict = {}
    exec((tmp_path / "measured.py").read_text(), namespace)
    right, said = namespace["MEASURED"]["gradients_not_zeroed"]
    assert 1 <= right <= said
    assert weigh(0.5, 16, 16) == pytest.approx(0.9)
    assert confidence_of("labels_random", 0.9) <= 0.5


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
