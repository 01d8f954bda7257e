"""What the page about notebooks tells a newcomer to type works as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cockpit_core.events.data import load
from cockpit_widget import CockpitWidget

PAGE = Path(__file__).resolve().parents[2] / "docs" / "notebook.md"


@pytest.mark.usefixtures("fake_comms")
def test_first_two_cells_of_the_page_train_and_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    setup, train = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[:2]
    cell: dict[str, Any] = {}
    exec(setup.replace("\nCockpitWidget(run)", "\nwidget = CockpitWidget(run)"), cell)
    assert "range(3000)" in train
    exec(train.replace("range(3000)", "range(30)"), cell)
    assert isinstance(cell["widget"], CockpitWidget)
    (logdir,) = (tmp_path / "runs").iterdir()
    data = load(logdir)
    assert data.status == "finished"
    assert data.scalars("HessTrace")[0].tolist() == [0, 5, 10, 15, 20, 25]
    assert cell["widget"].status["errors"] == 0
    cell["widget"].close()
