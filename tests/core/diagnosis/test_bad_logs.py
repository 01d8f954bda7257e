"""``cockpit diagnose`` on logs that have little, or little that is sound: fewer rules, no exception, and it says so."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import cockpit_core
from cockpit_core.commands import cli
from cockpit_core.events.writer import EventWriter
from cockpit_core.foundation.records import Header, LayerInfo, Record
from tests.core.diagnosis.test_live import train

Printed = pytest.CaptureFixture[str]


def write(folder: Path, header: Header, *steps: dict[str, float], layers: dict | None = None, first: int = 0) -> Path:
    writer = EventWriter(folder, resume=first > 0)
    writer.write_header(header)
    for step, scalars in enumerate(steps, first):
        writer.write_record(Record("step", step, 0.0, 0.0, scalars=scalars, layers=layers or {}))
    writer.close()
    return folder


def diagnose(folder: Path, capsys: Printed) -> tuple[int, str]:
    """Exit code, and all that was printed."""
    code = cli.main(["diagnose", str(folder)])
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def test_three_steps_are_too_few_for_most_rules_and_each_is_named(tmp_path: Path, capsys: Printed) -> None:
    train(tmp_path / "a", steps=3)
    code, text = diagnose(tmp_path / "a", capsys)
    assert code == 0
    assert "nothing wrong was found" in text
    assert "diagnoses: 3 tracked steps, the last is step 2" in text
    assert cli.main(["diagnose", "--json", str(tmp_path / "a")]) == 0
    (plain,) = json.loads(capsys.readouterr().out)
    assert plain["not_examined"]["not_learning"] == "12 tracked steps; there are 3"


def test_without_individual_gradients_what_needs_them_is_named(tmp_path: Path, capsys: Printed) -> None:
    train(tmp_path / "a", config=("Loss", "GradNorm"))
    code, text = diagnose(tmp_path / "a", capsys)
    assert code == 0
    assert "NormTest" in text.partition("not examined")[2]


def test_a_resumed_run_says_so(tmp_path: Path, capsys: Printed) -> None:
    train(tmp_path / "a", steps=6)
    assert "resumed:" not in diagnose(tmp_path / "a", capsys)[1]
    train(tmp_path / "a", steps=12, start=6, resume=True)
    code, text = diagnose(tmp_path / "a", capsys)
    assert code == 0
    assert "resumed: rules about the beginning" in text


def test_a_log_of_an_older_version_has_no_options_optimizers_or_signals(tmp_path: Path, capsys: Printed) -> None:
    header = Header("id", "old", 0.0, batch_size=32, loss="CrossEntropyLoss", layers=[LayerInfo("a", (2, 2), 4)])
    steps = [{"Loss": 2.0 - i / 30, "GradNorm": 1.0} for i in range(30)]
    code, text = diagnose(write(tmp_path / "old", header, *steps), capsys)
    assert code == 0
    assert "not examined" in text


def test_before_the_first_step_nothing_is_called_right(tmp_path: Path, capsys: Printed) -> None:
    code, text = diagnose(write(tmp_path / "a", Header("id", "x", 0.0)), capsys)
    assert code == 0
    assert "no step was tracked" in text
    assert "nothing found" not in text


def test_what_holds_nothing_exits_with_two(tmp_path: Path, capsys: Printed) -> None:
    name = "events.out.tfevents.0.x.1.0.cockpit"
    for folder, content in (("empty", None), ("zero", b""), ("rubbish", b"\x00rubbish" * 50), ("short", b"\x01")):
        (tmp_path / folder).mkdir()
        if content is not None:
            (tmp_path / folder / name).write_bytes(content)
        code, text = diagnose(tmp_path / folder, capsys)
        assert code == 2, folder
        assert text.startswith("cockpit: "), folder
    (tmp_path / "text.txt").write_text("hello")
    assert diagnose(tmp_path / "text.txt", capsys)[0] == 2


def test_half_a_log_is_judged_and_what_is_damaged_is_counted(tmp_path: Path, capsys: Printed) -> None:
    train(tmp_path / "a", steps=12, zero=False)
    (file,) = (tmp_path / "a").glob("events*")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert diagnose(tmp_path / "a", capsys)[0] in (0, 1)  # a step or two may be too few
    broken = bytearray(whole)
    broken[20] ^= 255
    file.write_bytes(bytes(broken))
    code, text = diagnose(tmp_path / "a", capsys)
    assert code == 1
    assert "1 damaged part of the log skipped" in text


def test_numbers_that_no_run_has_end_no_rule_loudly(tmp_path: Path, capsys: Printed) -> None:
    layers = [LayerInfo(name, (2, 2), 4) for name in "abc"]
    header = Header("id", "x", 0.0, batch_size=0, loss="MSELoss", layers=layers)
    huge = {"Loss": 1e308, "signal/target_std": 1e308, "signal/training": 1.0, "ParamNorm": 0.0, "UpdateSize": math.inf}
    huge |= {"LearningRate": -math.inf, "signal/classes": math.nan, "NormTest": -1.0, "signal/dead": 1e300}
    vectors = {"GradNorm": np.array([0, np.inf, np.nan]), "UpdateSize": np.zeros(3), "ParamNorm": np.full(3, 1e300)}
    code, text = diagnose(write(tmp_path / "a", header, *[huge] * 30, layers=vectors), capsys)
    assert code in (0, 1)
    assert "could not be judged: OverflowError" in text
    cockpit_core.diagnose(tmp_path / "a")


def test_a_network_that_has_grown_between_two_processes(tmp_path: Path, capsys: Printed) -> None:
    names = [LayerInfo(name, (2, 2), 4) for name in "abc"]
    steps = [{"Loss": 1.0, "ParamNorm": 1.0}] * 6
    norms = {"GradNorm": np.ones(2), "ParamNorm": np.ones(2), "UpdateSize": np.ones(2)}
    write(tmp_path / "a", Header("id", "x", 0.0, layers=names[:2]), *steps, layers=norms)
    more = {name: np.ones(3) for name in norms}
    write(tmp_path / "a", Header("id", "x", 1.0, layers=names), *steps, layers=more, first=6)
    assert diagnose(tmp_path / "a", capsys)[0] in (0, 1)
