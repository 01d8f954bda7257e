"""The terminal says "not learning" where the page does: the cases are those of ``js/tests/health.test.ts``."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from cockpit_core.commands import cli
from cockpit_core.events.writer import EventWriter
from cockpit_core.foundation.records import Finding, Header, LayerInfo, Record

TAKEN = Finding("labels_random", "likely", "The labels may not belong to the inputs.", retracted=True)


def write_run(
    path: Path,
    ended: float,
    told: Finding | None = TAKEN,
    loss: str = "CrossEntropyLoss",
    count: int = 120,
    accuracy: float | None = None,
    running: bool = False,
) -> None:
    """The first half of the losses is 2.3, that of guessing among ten classes; the second half is ``ended``."""
    layers = [LayerInfo("fc.weight", (10, 4), 40)]
    with EventWriter(path) as writer:
        writer.write_header(Header(run_id="1", name=path.name, created=0.0, model="Net", layers=layers, loss=loss))
        for step in range(count):
            record = Record("step", step, 1.0 + step, 0.01 * step)
            record.scalars = {"Loss": 2.3 if step < count // 2 else ended, "signal/target_std": math.sqrt(2.3)}
            if accuracy is not None:
                record.scalars |= {"log/valid_accuracy": accuracy, "signal/label_top_share": 0.4}
            record.findings = [told] if told is not None and step == count - 1 else []
            writer.write_record(record)
        if not running:
            writer.write_record(Record("end", count, 1.0 + count, 0.01 * count, status="finished"))


def list_cell(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["ls", str(folder)]) == 0
    return capsys.readouterr().out.splitlines()[1].split()[4]


def test_a_suspicion_taken_back_at_the_loss_of_guessing_is_not_learning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "a", 2.28)
    assert list_cell(tmp_path, capsys) == "not_learning"
    cli.main(["show", str(tmp_path / "a")])
    words = " ".join(capsys.readouterr().out.split())
    assert "likely since step 0: Not learning: the loss is 2.28, guessing 2.303 (ln(10))." in words
    assert "advice since step 0: The labels may not belong to the inputs." in words


def test_where_the_loss_has_fallen_nothing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", 1.1)
    assert list_cell(tmp_path, capsys) == "-"


@pytest.mark.parametrize(
    ("severity", "name", "cell"),
    [
        ("likely", "dead_units", "dead_units"),  # a cause is said already
        ("advice", "batch_too_small", "not_learning"),  # says nothing of the loss
        ("advice", "not_learning", "-"),  # does, and is not sure
    ],
)
def test_only_a_word_about_it_keeps_it_silent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], severity: str, name: str, cell: str
) -> None:
    write_run(tmp_path / "a", 2.3, Finding(name, severity, "Something."))
    assert list_cell(tmp_path, capsys) == cell


@pytest.mark.parametrize(
    ("loss", "count", "cell"),
    [("MSELoss", 120, "not_learning"), ("L1Loss", 120, "-"), ("CrossEntropyLoss", 40, "-")],
)
def test_guessing_must_be_known_and_the_run_long_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], loss: str, count: int, cell: str
) -> None:
    write_run(tmp_path / "a", 2.3, None, loss, count)
    assert list_cell(tmp_path, capsys) == cell


def test_diagnose_says_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", 2.3, None, "CrossEntropyLoss")
    assert cli.main(["diagnose", "--json", "--fail-on", "likely", str(tmp_path / "a")]) == 1
    assert "not_learning" in [finding["name"] for finding in json.loads(capsys.readouterr().out)[0]["findings"]]


@pytest.mark.parametrize(
    ("accuracy", "cell"), [(0.45, "not_learning"), (0.47, "-"), (47.0, "-"), (2.3, "not_learning")]
)
def test_a_score_that_guessing_does_not_reach_is_learning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], accuracy: float, cell: str
) -> None:
    """The loss of a network with a small learning rate is still near guessing when every second digit is right. Four in
    ten of the labels are the same one here: naming it always is right in 40 %."""
    write_run(tmp_path / "a", 2.28, None, accuracy=accuracy)
    assert list_cell(tmp_path, capsys) == cell


def test_a_run_whose_loss_still_falls_is_given_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", 2.28, None, running=True)
    assert list_cell(tmp_path, capsys) == "-"
    write_run(tmp_path / "b", 2.3, None, running=True)
    cli.main(["ls", str(tmp_path / "b")])
    assert "not_learning" in capsys.readouterr().out
