"""Performance profiles as the report shows them: a picture and a table, made of nothing but markup."""

from __future__ import annotations

import re
from pathlib import Path

from cockpit_core.commands.cli import main
from cockpit_core.comparing.profiles_page import write_profiles
from cockpit_core.events.data import load
from tests.core.comparing.test_compare import write_problems


def load_all(folder: Path) -> dict:
    return {str(path): load(path) for path in sorted(folder.glob("*/*"))}


def test_the_table_has_every_ratio_and_the_picture_every_contestant(tmp_path: Path) -> None:
    markup = write_profiles(load_all(write_problems(tmp_path)))
    assert "Performance profiles over 3 problems" in markup
    rows = re.findall(r"<tr>(.*?)</tr>", markup)
    texts = [re.sub("<.*?>", " ", row).split() for row in rows]
    assert [row[0] for row in texts] == [
        "optimizer",
        "Adam",
        "SGD",
        "RMSprop",
    ]  # who is the fastest most often is first
    assert texts[3].count("reached") == 3
    assert markup.count('stroke-width="2"') == 3
    adam = re.findall(r'<path d="(M[^"]*)" fill="none"', markup)[0]
    assert adam.count("V") == 1  # one rise, on the problem where it is slower


def test_one_problem_has_none(tmp_path: Path) -> None:
    write_problems(tmp_path)
    assert write_profiles({str(path): load(path) for path in (tmp_path / "one").glob("*")}) == ""


def test_names_of_problems_are_no_markup(tmp_path: Path) -> None:
    runs = load_all(write_problems(tmp_path))
    for data in runs.values():
        for key in ("problem", "setting.problem"):
            data.header.options[key] = f"<b>{data.header.options[key]}</b>"
    markup = write_profiles(runs)
    assert "&lt;b&gt;one" in markup and "<b>" not in markup


def test_the_report_of_a_folder_holds_them(tmp_path: Path) -> None:
    write_problems(tmp_path / "runs")
    assert main(["report", str(tmp_path / "runs"), "-o", str(tmp_path / "all.html")]) in (None, 0)
    assert 'id="cockpit-profiles"' in (tmp_path / "all.html").read_text()
