"""Settings as ``track`` records them: what the header says by itself, and what the user notes."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import cockpit_core
from cockpit_core.comparing.settings import Entry, find_differing, group_by_setting, read_seed, read_settings


def train(logdir: Path, optimizer: str, note: dict, **options: object) -> Entry:
    torch.manual_seed(0)
    model, loss_fn = nn.Linear(3, 2), nn.MSELoss()
    groups = [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.5}]
    optim = getattr(torch.optim, optimizer)(groups, lr=0.1, **options)
    with cockpit_core.track(model, loss_fn, optim, logdir, config="economy") as run:
        run.note_settings(**note)
        loss_fn(model(torch.ones(4, 3)), torch.zeros(4, 2)).backward()
        optim.step()
    data = cockpit_core.load(logdir)
    return Entry(logdir.name, data, read_settings(data.header), read_seed(data.header), str(logdir))


def test_settings_come_from_the_header_and_from_the_users_notes(tmp_path: Path) -> None:
    entry = train(tmp_path / "a", "SGD", {"seed": 3, "width": 0.25, "problem": "mine"}, momentum=0.9)
    assert entry.seed == "3"
    wanted = {"optimizer": "SGD", "lr": "0.1", "lr[1]": "0.5", "momentum": "0.9", "width": "0.25", "problem": "mine"}
    assert wanted.items() <= entry.settings.items()
    assert entry.settings["batch_size"] == "4"
    assert not {"seed", "memory_budget", "batch_dim", "foreach"} & set(entry.settings)


def test_defaults_of_an_optimizer_are_said_by_its_name(tmp_path: Path) -> None:
    entries = [
        train(tmp_path / "a", "SGD", {"seed": 1}),
        train(tmp_path / "b", "Adam", {"seed": 1}),
        train(tmp_path / "c", "SGD", {"seed": 2}),
        train(tmp_path / "d", "SGD", {"seed": 1}, momentum=0.9),
    ]
    assert find_differing(entries) == ["optimizer", "momentum"]
    settings = group_by_setting(entries)
    assert [(s.name, len(s.entries)) for s in settings] == [("SGD momentum=0", 2), ("Adam", 1), ("SGD momentum=0.9", 1)]


def test_the_rate_is_the_one_that_a_schedule_leads_to(tmp_path: Path) -> None:
    """A run with warm-up was once called by the first rate of it, a thousandth of what its user had typed."""
    header = train(tmp_path / "a", "SGD", {}).data.header
    (optimizer,) = header.optimizers
    optimizer.groups[:] = [{"lr": "0.0001", "initial_lr": "0.1"}, {"lr": "0.04", "initial_lr": "0.1", "max_lr": "0.5"}]
    settings = read_settings(header)
    assert {"lr": "0.1", "lr[1]": "0.5"}.items() <= settings.items()
    assert not any("initial" in key or "max" in key for key in settings)


def make_entry(name: str, settings: dict[str, str]) -> Entry:
    return Entry(name, None, settings)  # type: ignore[arg-type]


def test_how_a_run_was_watched_is_no_setting(tmp_path: Path) -> None:
    """What the budget left out differs from seed to seed; it once made a row of every seed."""
    entry = train(tmp_path / "a", "SGD", {"seed": 1})
    header = entry.data.header
    header.options |= {"budget": "0.1", "left out": "TICDiag", "lent for early steps": "0.15 s", "start kept": "no"}
    header.options |= {"activations": "1\n3", "fresh weights": "weight", "loss function": "MSELoss"}
    assert read_settings(header) == entry.settings


def test_a_loss_that_is_a_function_is_named_as_the_module_would_be(tmp_path: Path) -> None:
    header = train(tmp_path / "a", "SGD", {}).data.header
    header.loss, header.options["loss function"] = "", "MSELoss"
    assert read_settings(header)["loss"] == "MSELoss"


def test_networks_are_told_apart_by_the_fewest_words() -> None:
    def entry(model: str, parameters: int, network: str, lr: str = "0.1") -> Entry:
        told = {"optimizer": "SGD", "lr": lr, "model": model, "parameters": str(parameters), "network": network}
        return make_entry(model, told)

    a, b, c = entry("Net", 10, "Linear 3→2"), entry("Net", 20, "Linear 6→2"), entry("Other", 30, "x" * 300)
    assert find_differing([a, c]) == ["model"]
    assert find_differing([a, b, c]) == ["model", "parameters"]
    deep = entry("Net", 10, "Linear 2→2, " * 40)
    assert find_differing([a, deep]) == ["network"]
    assert max(len(setting.name) for setting in group_by_setting([a, deep])) < 60
    assert find_differing([a, entry("Net", 10, "Linear 3→2", "0.5")]) == ["lr"]
