"""The experiments' scripts: the one that needs no data is carried out, the page is written from made-up results."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments import figure_01, page, report
from experiments.first_step import FirstStep
from experiments.restarts import cosine_restarts


def test_figure_1_is_reproduced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["figure_01", "--quick", "--output", str(tmp_path)])
    report.run(1, "title", figure_01.carry_out)
    result = json.loads((tmp_path / "figure_01.json").read_text())
    assert [claim["holds"] for claim in result["claims"]] == [True, True]
    assert 0 < (tmp_path / "figure_01.png").stat().st_size < 150_000


def test_shares_of_a_histogram() -> None:
    counts = np.zeros((4, 2))
    counts[:, 0] = [1, 5, 3, 1]
    step = FirstStep(counts, {"a": counts}, np.arange(5.0), {}, 0.0)
    assert step.share_outside() == pytest.approx(0.2)
    assert step.share_center() == step.share_center("a") == pytest.approx(0.8)


def test_restarts_double_their_length() -> None:
    factors = [factor for _, factor in zip(range(12), cosine_restarts(4), strict=False)]
    assert factors[3] == pytest.approx(0)
    assert factors[11] == pytest.approx(0)
    assert factors[7] == pytest.approx(0.5)


def test_the_page_says_what_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    experiment = report.Experiment(7, "Title", "settings", True)
    experiment.claim("The moon is cheese", "yes", "no", False)
    experiment.claim("The sea is salty", "yes", "yes", True)
    content = {**report.asdict(experiment), "seconds": 1.0, "machine": "m"}
    (tmp_path / "figure_07.json").write_text(json.dumps(content))
    text = page.write_page().read_text()
    assert "| [7: Title](#figure-7) | 1 of 2 | The moon is cheese |" in text
    assert "| The moon is cheese | yes | no | **no** |" in text


def test_every_figure_has_its_script_and_the_page_of_the_repository_its_results() -> None:
    from experiments.run import FIGURES

    scripts = {file.stem.removeprefix("figure_") for file in Path(report.__file__).parent.glob("figure_*.py")}
    assert set(FIGURES) == scripts
    for file in report.RESULTS.glob("*.png"):
        assert file.stat().st_size < 150_000
        assert f"{file.name}" in page.PAGE.read_text("utf-8")
