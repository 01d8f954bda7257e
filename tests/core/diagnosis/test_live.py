"""Findings while training and from the log: the same; callbacks, stopping, resuming; and never at the training's expense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import cockpit_core
from cockpit_core.commands import cli
from cockpit_core.foundation.records import Record
from cockpit_core.schema import wire


def make_data(seed: int = 0):
    g = torch.Generator().manual_seed(seed)
    centres = 1.5 * torch.randn(4, 6, generator=g)
    y = torch.randint(0, 4, (512,), generator=g)
    return centres[y] + 0.5 * torch.randn(512, 6, generator=g), y


CHEAP = ("Loss", "GradNorm", "UpdateSize", "ParamNorm", "Distance", "NormTest")


def train(logdir: Path, steps: int = 30, lr: float = 0.2, zero: bool = True, start: int = 0, loop=None, **options):
    torch.manual_seed(0)
    x, y = make_data()
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer, loss_fn = torch.optim.SGD(model.parameters(), lr=lr), nn.CrossEntropyLoss()
    run = cockpit_core.track(model, loss_fn, optimizer, logdir, **{"config": CHEAP, "on_error": "raise", **options})
    g = torch.Generator().manual_seed(1)
    for _ in range(start, steps):
        at = torch.randint(0, len(x), (32,), generator=g)
        if zero:
            optimizer.zero_grad()
        loss_fn(model(x[at]), y[at]).backward()
        optimizer.step()
        if run.should_stop:
            break
    run.close()
    return run


def test_a_healthy_run_says_nothing(tmp_path: Path) -> None:
    run = train(tmp_path / "a")
    assert run.findings == []
    assert cockpit_core.diagnose(tmp_path / "a") == []
    assert cli.main(["diagnose", str(tmp_path / "a")]) == 0


def test_live_and_offline_agree_and_the_log_has_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    run = train(tmp_path / "a", zero=False, on_finding=told.append)
    offline = cockpit_core.diagnose(tmp_path / "a")
    assert run.findings == offline
    assert offline[0].name == "gradients_not_zeroed"
    assert offline[0].severity == "broken"
    assert [finding.name for finding in told][:1] == ["gradients_not_zeroed"]
    assert offline[0].name in {finding.name for finding in cockpit_core.load(tmp_path / "a").findings}
    assert told[0].step <= 5, "in the log at the step at which it holds"
    assert cli.main(["diagnose", str(tmp_path / "a")]) == 1
    assert "zero_grad" in capsys.readouterr().out
    assert cli.main(["diagnose", "--json", str(tmp_path / "a")]) == 1
    (plain,) = json.loads(capsys.readouterr().out)
    assert plain["findings"][0]["name"] == "gradients_not_zeroed"
    for command in (["ls", str(tmp_path)], ["show", str(tmp_path / "a")]):
        assert cli.main(command) == 0
        assert "gradients_not_zeroed" in capsys.readouterr().out


def test_only_what_is_asked_for_stops_a_run(tmp_path: Path) -> None:
    assert not train(tmp_path / "a", steps=8, zero=False).should_stop
    run = train(tmp_path / "b", zero=False, stop_on="broken")
    assert run.should_stop
    assert len(run.data.scalars("Loss")[0]) < 10
    assert run.status == "stopped"


def test_an_error_of_the_callback_does_not_end_the_training(tmp_path: Path) -> None:
    def fail(finding):
        raise RuntimeError("no network")

    with pytest.warns(UserWarning, match="on_finding"):
        run = train(tmp_path / "a", steps=10, zero=False, on_finding=fail, on_error="warn", stop_on="broken")
    assert run.should_stop


def test_bad_arguments_are_named() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="stop_on"):
        cockpit_core.track(model, nn.MSELoss(), optimizer, stop_on="advice", config="economy")
    with pytest.raises(TypeError, match="on_finding"):
        cockpit_core.track(model, nn.MSELoss(), optimizer, on_finding=3, config="economy")


def test_a_resumed_run_knows_what_was_before(tmp_path: Path) -> None:
    train(tmp_path / "a", steps=6, zero=False)
    run = train(tmp_path / "a", steps=12, zero=False, start=6, resume=True)
    assert run.findings == cockpit_core.diagnose(tmp_path / "a")
    assert run.findings[0].since < 6


def test_a_log_without_signals_reads_and_says_what_was_not_examined(tmp_path: Path, capsys) -> None:
    from cockpit_core.events.writer import EventWriter
    from cockpit_core.foundation.records import Header

    writer = EventWriter(tmp_path / "old")
    writer.write_header(Header("id", "old", 0.0, batch_size=32, loss="CrossEntropyLoss"))
    for step in range(30):
        writer.write_record(Record("step", step, 0.0, 0.0, scalars={"Loss": 2.0 - step / 30}))
    writer.close()
    assert cockpit_core.diagnose(tmp_path / "old") == []
    assert cli.main(["diagnose", str(tmp_path / "old")]) == 0
    assert "not examined" in capsys.readouterr().out


def test_what_cannot_be_read_exits_with_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diagnose", str(tmp_path / "none")]) == 2
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "events.out.tfevents.0.x.1.0.cockpit").write_bytes(b"\x00rubbish" * 50)
    assert cli.main(["diagnose", str(tmp_path / "bad")]) == 2
    assert "cockpit:" in capsys.readouterr().err


class Odd(nn.Module):
    """Takes a dict of anything, has a shared activation called twice, and gives a tuple."""

    def __init__(self):
        super().__init__()
        self.table, self.act, self.out = nn.Embedding(10, 8), nn.ReLU(), nn.Linear(8, 3)

    def forward(self, batch, scale=2):
        x = self.act(self.table(batch["ids"]).mean(1)) * batch["weights"][0] * scale
        return self.out(self.act(x)), None


def test_odd_structures_are_measured_or_silent(tmp_path: Path) -> None:
    model, loss_fn = Odd(), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters())
    run = cockpit_core.track(
        model, loss_fn, optimizer, tmp_path / "a", config=("Loss", "GradNorm", "UpdateSize"), on_error="raise"
    )
    for step in range(4):
        optimizer.zero_grad()
        ids = torch.randint(0, 10, (6, 5), generator=torch.Generator().manual_seed(step))
        scores, _ = model({"ids": ids, "weights": [torch.ones(6, 1)], "note": "text", "n": 3})
        loss_fn(scores, ids[:, 0] % 3).backward()
        optimizer.step()
    run.close()
    assert run._tracker.signals.failed == {}
    assert len(run.data.scalars("signal/dead")[0]) == 4
    assert run.data.scalars("signal/classes")[1].tolist() == [3] * 4


def test_a_signal_that_fails_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cockpit_core.signals import collector

    monkeypatch.setattr(collector, "measure_inputs", lambda *_: 1 / 0)
    run = train(tmp_path / "a", steps=3, on_error="warn")
    assert "ZeroDivisionError" in run._tracker.signals.failed["inputs"]
    assert "signal/input_rms" not in run.data.table.columns
    assert "signal/dead" in run.data.table.columns


class Sum(nn.Module):
    """Many tensors side by side, so that gradients reach all of them."""

    def __init__(self, count: int):
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(3, 3) for _ in range(count)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([part(x) for part in self.parts]).mean(0)


@pytest.mark.parametrize("pairs", [100, 300])
def test_a_light_record_of_many_tensors_stays_under_8_kb(
    tmp_path: Path, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 and 600 tensors; and what is judged while training is what the log will tell."""
    encode = wire.encode_record

    def note(sizes: list[int], data: bytes) -> bytes:
        sizes.append(len(data))
        return data

    torch.manual_seed(0)
    model = Sum(pairs)
    optimizer, loss_fn = torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss()
    run = cockpit_core.track(model, loss_fn, optimizer, tmp_path / "a", config=CHEAP, on_error="raise")
    sizes: list[int] = []
    monkeypatch.setattr(wire, "encode_record", lambda record: note(sizes, encode(record)))
    for _ in range(14):
        loss_fn(model(torch.randn(8, 3)), torch.randn(8, 3)).backward()
        optimizer.step()
    run.close()
    assert len(sizes) >= 14
    assert max(sizes) < 8000
    assert run.findings == cockpit_core.diagnose(tmp_path / "a")
    assert "gradients_not_zeroed" in {finding.name for finding in run.findings}
