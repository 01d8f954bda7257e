"""The coordinate check: sizes by width as measured by hand, slopes, and what is said of a function that does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from cockpit_core.commands.cli import main
from cockpit_core.commands.coordinates import NotUsable, check_coordinates, slope

FILE = """
import torch
from torch import nn

def make(width):
    model = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))
    with torch.no_grad():
        model[2].weight.fill_(1.0)
        model[0].weight.fill_(0.5)
    loss = nn.MSELoss(reduction="sum")
    return model, loss, torch.optim.SGD(model.parameters(), lr=1e-9), (torch.ones(3, 4), torch.zeros(3, 2))

def wrong(width):
    return nn.Linear(width, width)
"""


def make(width: int) -> tuple:
    scope: dict = {}
    exec(FILE, scope)
    return scope["make"](width)


def test_sizes_are_those_of_a_forward_pass_and_slopes_follow() -> None:
    widths = [8, 16, 32]
    found = check_coordinates(make, widths, steps=1)
    torch.manual_seed(0)
    model, _, _, (inputs, _) = make(8)
    hidden = model[0](inputs)
    assert found.activations["0.weight"][0] == pytest.approx(hidden.square().mean().sqrt().item(), rel=1e-5)
    assert found.activations[""][0] == pytest.approx(model(inputs).square().mean().sqrt().item(), rel=1e-5)
    slopes = found.slopes(found.activations)
    assert slopes["0.weight"] == pytest.approx(0.0, abs=0.1)
    assert slopes["2.weight"] == pytest.approx(1.0, abs=0.1)  # a sum of width equal terms
    assert set(found.updates) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert slope([1, 2, 4], [3.0, 12.0, 48.0]) == pytest.approx(2.0)


def test_command_prints_a_table_and_explains_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nets_of_the_test.py"
    path.write_text(FILE)
    assert main(["coordinates", f"{path}:make", "--widths", "8", "16", "--steps", "1"]) == 0
    shown = capsys.readouterr()
    assert "2.weight" in shown.out
    assert "grows" in shown.out
    assert "width 16" in shown.err
    for name, words in ((f"{path}:wrong", "returns (model"), (f"{path}:none", "none"), ("make", "module:function")):
        assert main(["coordinates", name, "--widths", "8"]) == 1
        assert words in capsys.readouterr().err


def test_what_is_not_a_tuple_of_four_is_refused() -> None:
    with pytest.raises(NotUsable, match="model_fn"):
        check_coordinates(lambda width: nn.Linear(1, 1), [8])
