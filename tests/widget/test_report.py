"""The report: complete where it may be, bounded where it must be, and harmless always."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import zlib
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from cockpit_core.events.data import RunData, load
from cockpit_core.events.writer import EventWriter
from cockpit_core.foundation import records
from cockpit_core.report.html import spread
from cockpit_core.report.write import make_report, name_uniquely, write_report
from tests import synthetic
from tests.widget.fakes import FakePage
from tests.widget.test_stream import assert_page_equals_log

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&$\\frac{}\u202e\x07"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are about the data; the browser tests use the real program."""
    monkeypatch.setattr("cockpit_core.report.html.read_program", lambda: "// </script> the program")


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "lenet"
    synthetic.write_run(path, steps=150, layers=4)
    return path


def read_page(page: bytes) -> FakePage:
    found = FakePage()
    for text in re.findall(r'class="cockpit-batch" data-codec="deflate">([^<]*)<', page.decode()):
        found.read(zlib.decompress(base64.b64decode(text)))
    return found


def write_hostile(path: Path) -> None:
    header = records.Header("id", HOSTILE, 0.0, model=HOSTILE, layers=[records.LayerInfo(HOSTILE, (2,), 2)])
    header.quantities = [records.QuantityInfo("GradHist1d", "histogram1d", True)]
    histogram = records.Histogram("GradHist1d", 0, np.array([1, 2]), np.array([-1.0, 0.0, 1.0]))
    with EventWriter(path) as writer:
        writer.write_header(header)
        values = {"Loss": float("nan"), f"log/=cmd{HOSTILE}": 1.0, "GradNorm": float("inf")}
        writer.write_heavy("GradHist1d", 0, histogram, [records.Histogram(**{**vars(histogram), "layer": HOSTILE})])
        writer.write_record(records.Record("step", 0, 0.0, 0.0, scalars=values, layers={"GradNorm": np.array([2.0])}))


# ---- HTML ----


@pytest.mark.usefixtures("program")
def test_page_holds_every_value_and_histogram_of_a_small_run(logdir: Path) -> None:
    report = make_report(logdir)
    page, data = read_page(report.content), load(logdir)
    assert report.left_out == ""
    assert b"nothing was left out" in report.content
    assert_page_equals_log(page, logdir, "lenet")
    for name in ("GradHist1d", "GradHist2d"):
        for step in data.histogram_steps(name):
            for layer in (None, *data.layers):
                stored = data.histogram(name, step, layer)
                np.testing.assert_array_equal(page.histograms["lenet", name, step, layer or ""].counts, stored.counts)


@pytest.mark.usefixtures("program")
def test_size_is_bounded_and_the_page_says_what_is_missing(logdir: Path) -> None:
    report = make_report(logdir, max_bytes=200_000)
    assert len(report.content) <= 200_000
    page, data = read_page(report.content), load(logdir)
    assert re.search(r"\d+ of 150 histograms are left out", report.left_out)
    assert report.left_out.split(" histograms")[0].encode() in report.content
    last = data.histogram_steps("GradHist2d")[-1]
    assert ("lenet", "GradHist2d", last, "") in page.histograms
    shown = page.column("lenet", "Loss")[1]
    assert max(shown) == data.scalars("Loss")[1].max()


@pytest.mark.usefixtures("program")
def test_impossible_bound_is_refused(logdir: Path) -> None:
    with pytest.raises(ValueError, match="needs at least"):
        make_report(logdir, max_bytes=1_000)


@pytest.mark.usefixtures("program")
def test_page_refers_to_nothing_outside(logdir: Path) -> None:
    page = make_report(logdir).content.decode()
    markup = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"(src|href|url|@import)\s*[=(]", markup)
    assert "default-src 'none'" in page


@pytest.mark.usefixtures("program")
def test_hostile_names_stay_text(tmp_path: Path) -> None:
    write_hostile(tmp_path / "evil")
    page = make_report(tmp_path / "evil").content.decode()
    assert "<img" not in page
    assert page.count("</script>") == 3  # options, data, program; none from a name or from inside the program
    assert HOSTILE in json.loads(re.findall(r'id="cockpit-options">(.*?)</script>', page)[0])["title"]
    assert read_page(page.encode()).histograms[HOSTILE, "GradHist1d", 0, HOSTILE].counts.tolist() == [1, 2]


def test_missing_program_says_how_to_build_it(logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cockpit_core.report.html.PROGRAM", logdir / "report.js")
    with pytest.raises(FileNotFoundError, match="npm run build"):
        make_report(logdir)


def test_histograms_that_fit_cover_the_whole_run() -> None:
    steps = list(range(0, 1000, 10))
    order = spread(steps)
    assert order[:3] == [990, 0, 500]
    assert sorted(order) == steps
    assert max(np.diff(sorted(order[:9]))) <= 130


# ---- numbers ----


def test_csv_holds_every_value(logdir: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(make_report(logdir, "csv").content.decode())))
    data = load(logdir)
    for name, layer in (("Loss", None), ("Alpha", None), ("log/valid_accuracy", None), ("GradNorm", data.layers[1])):
        steps, values = data.scalars(name, layer)
        title = name if layer is None else f"{name}[{layer}]"
        found = {int(row["step"]): float(row[title]) for row in rows if row[title] != ""}
        assert found == dict(zip(steps.tolist(), values.tolist(), strict=True))


def test_csv_cannot_be_run_by_a_spreadsheet(tmp_path: Path) -> None:
    write_hostile(tmp_path / "evil")
    rows = list(csv.reader(io.StringIO(make_report(tmp_path / "evil", "csv").content.decode())))
    assert not [cell for row in rows for cell in row if cell.startswith(("=", "+", "@"))]
    assert len(rows) == 2
    assert {"nan", "inf"} <= set(rows[1])  # values that are not finite survive


def test_json_is_strict_and_complete(tmp_path: Path) -> None:
    write_hostile(tmp_path / "evil")

    def refuse(constant: str) -> float:
        raise AssertionError(constant)

    run = json.loads(make_report(tmp_path / "evil", "json").content, parse_constant=refuse)["runs"][0]
    columns = {column["name"]: column["values"] for column in run["columns"]}
    assert columns["Loss"] == ["NaN"]
    assert columns["GradNorm"] == ["Infinity"]
    assert run["header"]["name"] == HOSTILE
    assert [h["counts"] for h in run["histograms"]] == [[1, 2], [1, 2]]


# ---- pictures ----


@pytest.mark.parametrize(("form", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_poster_survives_hostile_names_and_values(form: str, start: bytes, tmp_path: Path) -> None:
    write_hostile(tmp_path / "evil")
    content = make_report([tmp_path / "evil", tmp_path / "evil"], form).content
    assert content.startswith(start)
    if form == "svg":
        elements = list(ElementTree.fromstring(content).iter())  # text stands in comments, which the parser skips
        assert not {element.tag.rpartition("}")[2] for element in elements} & {"script", "img", "foreignObject"}
        assert not [key for element in elements for key in element.attrib if key.startswith("on")]


def test_poster_does_not_touch_the_users_figures(logdir: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys\n"
        "from cockpit_core.report.write import make_report\n"
        f"make_report({str(logdir)!r}, 'png')\n"
        "assert 'matplotlib.pyplot' not in sys.modules and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_log_axes_of_the_poster_have_a_few_plain_numbers(logdir: Path) -> None:
    """matplotlib's own labels of a short log axis, 2 x 10^-1 and so on, ran into each other."""
    from matplotlib.figure import Figure

    from cockpit_core.report.poster_panels import draw_tests

    axes = Figure(figsize=(3, 2)).add_subplot()
    draw_tests(axes, [load(logdir)], ("NormTest", "InnerTest", "OrthoTest"))
    low, high = axes.get_xlim()
    shown = [
        text for value, text in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True) if low <= value <= high
    ]
    words = [text.get_text() for text in shown]
    assert 2 <= len(words) <= 9
    assert [float(word) for word in words] == sorted(map(float, words))
    assert not axes.get_xticks(minor=True).size


def test_poster_of_a_run_without_records(tmp_path: Path) -> None:
    with EventWriter(tmp_path / "new") as writer:
        writer.write_header(records.Header("id", "new", 0.0))
    assert make_report(tmp_path / "new", "png").content.startswith(b"\x89PNG")


# ---- the door ----


def test_report_is_written_where_it_was_asked_for(logdir: Path, tmp_path: Path) -> None:
    assert write_report([logdir], tmp_path / "out.csv", "csv") == tmp_path / "out.csv"
    assert (tmp_path / "out.csv").read_bytes() == make_report([RunData(logdir)], "csv").content


def test_unknown_format_and_empty_list_are_refused(logdir: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="choose one of html"):
        write_report([logdir], tmp_path / "x", "pdf")
    with pytest.raises(ValueError, match="at least one run"):
        write_report([], tmp_path / "x")
    with pytest.raises(FileNotFoundError):
        write_report([tmp_path / "nowhere"], tmp_path / "x")


def test_two_runs_of_one_name_are_numbered() -> None:
    assert name_uniquely(["a", "b", "a"]) == ["a", "b", "a (2)"]


@pytest.mark.usefixtures("program")
def test_writing_a_report_logs_what_it_left_out(logdir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_report(logdir, tmp_path / "whole.html")
    assert not caplog.records
    write_report(logdir, tmp_path / "small.html", max_bytes=200_000)
    assert "small.html (0.2 MB) leaves something out" in caplog.text
    assert "histograms are left out: GradHist1d is kept at" in caplog.text


def test_a_report_uses_the_room_that_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It once counted each histogram by itself, and left half of them out of a file a fifth as large as allowed."""
    monkeypatch.setattr("cockpit_core.report.html.read_program", lambda: "// the program")
    synthetic.write_run(tmp_path / "long", steps=160, layers=12, every=2)
    limit = 160_000
    report = make_report(tmp_path / "long", max_bytes=limit)
    assert "histograms are left out" in report.left_out
    assert 0.85 * limit < len(report.content) <= limit


# ---- files that were made to hurt, and many runs ----


def write_small(path: Path, steps: int = 3, name: str = "", notes: int = 0) -> Path:
    """``notes`` are bytes in the header that cannot be thinned, and not be compressed by much."""
    with EventWriter(path) as writer:
        layers = [records.LayerInfo("a", (2,), 2)]
        words = [np.random.default_rng(list(path.name.encode())).bytes(notes).hex()]
        writer.write_header(records.Header(path.name, name or path.name, 0.0, layers=layers, notes=words))
        for step, loss in enumerate(np.random.default_rng(0).random(steps)):
            vector = {"GradNorm": np.array([1.0])}
            writer.write_record(records.Record("step", step, 0.0, 0.0, scalars={"Loss": float(loss)}, layers=vector))
    return path


@pytest.mark.usefixtures("program")
def test_layerwise_name_without_a_value_of_the_network_is_no_error(tmp_path: Path) -> None:
    page = make_report(write_small(tmp_path / "run")).content
    assert b"GradNorm" not in page  # not in the table; the curve of the layer is in the data
    assert ("run", "GradNorm", "a") in {(run, name, layer) for run, name, layer in read_page(page).values}


@pytest.mark.usefixtures("program")
def test_many_short_runs_share_a_page(tmp_path: Path) -> None:
    """Runs with fewer records than the fewest points of a thinned curve were an AssertionError."""
    runs = [write_small(tmp_path / f"run{number:03d}", 10) for number in range(100)]
    report = make_report(runs, max_bytes=180_000)
    assert len(report.content) <= 180_000
    assert {run for run, _, _ in read_page(report.content).values} == {run.name for run in runs}


@pytest.mark.usefixtures("program")
def test_runs_that_do_not_fit_are_refused_with_a_size_that_is_enough(tmp_path: Path) -> None:
    runs = [write_small(tmp_path / f"run{number:03d}", notes=4_000) for number in range(40)]
    with pytest.raises(ValueError, match=r"40 runs need about .* even with everything thinned") as refusal:
        make_report(runs, max_bytes=180_000)
    (size,) = re.findall(r"\(([\d,]+) bytes\)", str(refusal.value))
    enough = int(1.1 * int(size.replace(",", "")))
    assert len(make_report(runs, max_bytes=enough).content) <= enough


@pytest.mark.usefixtures("program")
def test_names_of_great_length_do_not_make_the_page_larger_than_allowed(tmp_path: Path) -> None:
    runs = [write_small(tmp_path / f"run{number}", name=f"\u202e<{number}" * 50_000) for number in range(10)]
    report = make_report(runs, max_bytes=300_000)
    assert len(report.content) <= 300_000
    title = json.loads(re.findall(r'id="cockpit-options">(.*?)</script>', report.content.decode())[0])["title"]
    assert len(title) <= 300


@pytest.mark.parametrize("ending", ["pdf", "txt", "docx"])
def test_ending_that_is_no_format_is_refused_before_anything_is_written(tmp_path: Path, ending: str) -> None:
    run, target = write_small(tmp_path / "run"), tmp_path / f"x.{ending}"
    with pytest.raises(ValueError, match=rf"cannot be written as \.{ending}; choose one of \.html, \.csv"):
        write_report(run, target)
    assert not target.exists()
    assert write_report(run, target, format="csv").read_text().startswith("run,kind,seq")


def test_ending_says_what_is_written(tmp_path: Path) -> None:
    run = write_small(tmp_path / "run")
    assert write_report(run, tmp_path / "x.csv").read_text().startswith("run,kind,seq")
    assert json.loads(write_report(run, tmp_path / "x.JSON").read_text())["format"] == "cockpit-report"


def test_poster_of_histograms_that_cannot_be_drawn_has_the_rest(tmp_path: Path) -> None:
    nan = float("nan")
    for name, edges in (("nan", [0.0, nan, 1.0]), ("equal", [1.0, 1.0, 1.0]), ("infinite", [0.0, 1.0, np.inf])):
        counts = np.ones((2, 2), np.uint32)
        bad = records.Histogram("GradHist2d", 1, counts, np.array(edges), np.array(edges))
        with EventWriter(tmp_path / name) as writer:
            writer.write_header(records.Header("id", name, 0.0, layers=[records.LayerInfo("a", (2,), 2)]))
            writer.write_heavy("GradHist2d", 1, bad, [bad])
            for step, value in enumerate((1.0, 1e308, -1e308, 5e-324, np.inf, nan)):
                values = dict.fromkeys(("Loss", "GradNorm", "NormTest", "HessMaxEV", "LearningRate"), value)
                writer.write_record(records.Record("step", step, 0.0, 0.0, scalars=values))
        assert make_report(tmp_path / name, "png").content.startswith(b"\x89PNG")
