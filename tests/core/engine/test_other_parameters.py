"""Parameters that are frozen, set free, replaced or not reached while a run goes on."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cockpit_core
from tests import slow_truth
from tests.training import by_step

B, STEPS = 5, 5
Change = Callable[[nn.Module, torch.optim.Optimizer, int], None]


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    middle = nn.Linear(5, 5), nn.Tanh()
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), *middle, nn.Linear(5, 3)).double()


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(B, 4, generator=generator).double(), torch.randint(3, (B,), generator=generator)


def rows_of(model: nn.Module, step: int) -> dict[str, np.ndarray]:
    """One sample at a time."""
    x, y = batch(step)
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    wanted = [p for p in model.parameters() if p.requires_grad]
    each = [torch.autograd.grad(F.cross_entropy(model(x[n : n + 1]), y[n : n + 1]), wanted) for n in range(B)]
    return {name: np.stack([row[k].numpy().ravel() for row in each]) for k, name in enumerate(names)}


def train(
    model: nn.Module, change: Change, folder: Path, **options: object
) -> tuple[cockpit_core.RunData, list[dict[str, np.ndarray]], list[dict[str, Tensor]]]:
    """The run, what each step's samples give, and the parameters before each step."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    truth, places = [], []
    with cockpit_core.track(
        model, optimizer=optimizer, logdir=folder, on_error="raise", **{"config": "economy", **options}
    ):  # type: ignore[arg-type]
        for step in range(STEPS):
            change(model, optimizer, step)
            truth.append(rows_of(copy.deepcopy(model), step))
            places.append({n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad})
            x, y = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return cockpit_core.load(folder), truth, places


def free(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """From the top to the bottom, and in the end the top is frozen."""
    for now, layer in ((1, 2), (2, 0)):
        if step == now:
            model[layer].requires_grad_(True)  # type: ignore[index]
            optimizer.add_param_group({"params": list(model[layer].parameters())})  # type: ignore[index]
    if step == 3:
        model[4].requires_grad_(False)  # type: ignore[index]
        model[4].zero_grad()  # type: ignore[index]


def test_layers_that_are_set_free_and_frozen_are_followed(tmp_path: Path) -> None:
    """Layers set free were never measured, and where what was trained at first was frozen, steps had no record."""
    model = make_model()
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "the parameters were moved after optimizer.step()": they were not
        data, truth, places = train(model, free, tmp_path / "run")
    start = dict(make_model().named_parameters())
    for step in range(STEPS):
        for name, G in truth[step].items():
            assert by_step(data, "NormTest", name)[step] == pytest.approx(slow_truth.norm_test(G), rel=1e-6)
        whole = np.concatenate(list(truth[step].values()), 1)
        assert by_step(data, "NormTest")[step] == pytest.approx(slow_truth.norm_test(whole), rel=1e-6)
        moved = [(p - start[name].detach()).norm() for name, p in places[step].items()]
        assert by_step(data, "Distance")[step] == pytest.approx(float(torch.stack(moved).norm()), abs=1e-12)
    reasons = {value.reason for value in data.missing if value.name == "Alpha"}
    assert not any("moved after" in reason for reason in reasons)


def toggle(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    model[0].requires_grad_(step % 2 == 0)  # type: ignore[index]


def test_no_false_word_of_parameters_that_moved(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data, _, _ = train(make_model(), toggle, tmp_path / "run")
    reasons = {value.step: value.reason for value in data.missing if value.name == "Alpha"}
    assert reasons.keys() == {1, 2, 3, 4}
    assert all("other parameters are trained" in reason for reason in reasons.values())


def test_distance_is_not_known_where_a_frozen_parameter_was_moved(tmp_path: Path) -> None:
    def move_and_free(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
        if step == 1:
            with torch.no_grad():
                model[2].weight.add_(1.0)  # type: ignore[index]
        free(model, optimizer, step if step < 3 else 4)

    model = make_model()
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    data, _, _ = train(model, move_and_free, tmp_path / "run")
    assert by_step(data, "Distance").keys() == {0}
    assert "2.weight was not trained when this run began" in next(
        v.reason for v in data.missing if v.name == "Distance"
    )
    assert by_step(data, "Distance", "0.weight").keys() == {2, 3, 4}


def replace_head(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    if step == 2:
        model[4] = nn.Linear(5, 3).double()  # type: ignore[index]
        optimizer.param_groups[0]["params"][4:] = list(model[4].parameters())  # type: ignore[index]


def add_adapter(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    if step == 2:
        model.append(nn.Linear(3, 3).double())  # type: ignore[operator]
        optimizer.add_param_group({"params": list(model[5].parameters())})  # type: ignore[index]


@pytest.mark.parametrize("change", [replace_head, add_adapter])
def test_parameters_that_were_not_there_are_not_passed_over(change: Change, tmp_path: Path) -> None:
    """The old head went on being measured: ParamNorm 1.50 for 1.77, GradNorm 0.45 for 0.65."""
    with pytest.warns(UserWarning, match="parameters that it did not have when track"):
        data, _, _ = train(make_model(), change, tmp_path / "run")
    assert by_step(data, "ParamNorm").keys() == by_step(data, "GradNorm").keys() == {0, 1}
    assert any("call track() after they were added or replaced" in notice.message for notice in data.notices)


def test_weights_tied_later_are_known_parameters(tmp_path: Path) -> None:
    def tie(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
        if step == 2:
            model[2].bias = model[0].bias  # type: ignore[index]

    data, truth, places = train(make_model(), tie, tmp_path / "run")
    length = float(torch.stack([p.norm() for p in places[4].values()]).norm())
    assert by_step(data, "ParamNorm")[4] == pytest.approx(length, rel=1e-9)  # what was there before is gone
    assert by_step(data, "NormTest", "0.bias")[4] == pytest.approx(slow_truth.norm_test(truth[4]["0.bias"]), rel=1e-6)


class Experts(nn.Module):
    """Each batch goes to one of two experts."""

    def __init__(self) -> None:
        super().__init__()
        self.experts, self.calls = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)]), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.experts[self.calls % 2](x)


def test_what_a_batch_does_not_reach_is_still_a_parameter(tmp_path: Path) -> None:
    """Every other step ParamNorm was that of one expert, and Distance too."""
    torch.manual_seed(0)
    model = Experts().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lengths = []
    with cockpit_core.track(model, optimizer=optimizer, logdir=tmp_path / "run", config="economy", on_error="raise"):
        for step in range(STEPS):
            lengths.append(float(nn.utils.parameters_to_vector(model.parameters()).detach().norm()))
            x, y = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    data = cockpit_core.load(tmp_path / "run")
    norms = by_step(data, "ParamNorm")
    assert {step: norms[step] for step in range(1, STEPS)} == pytest.approx(dict(enumerate(lengths[1:], 1)))
    far = by_step(data, "Distance")
    assert [far[step] for step in range(1, STEPS)] == sorted(far[step] for step in range(1, STEPS))


class Normalised(nn.Module):
    """A BatchNorm that is frozen at first, and that nothing comes behind."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.low(x))


def test_batch_norm_that_begins_to_train_is_marked_itself(tmp_path: Path) -> None:
    def begin(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
        model.train(step >= 3)

    torch.manual_seed(0)
    model = Normalised().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with cockpit_core.track(model, optimizer=optimizer, logdir=tmp_path / "run", config="economy", on_error="raise"):
        for step in range(STEPS):
            begin(model, optimizer, step)
            x, y = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    methods = {info.name: info.method for info in cockpit_core.load(tmp_path / "run").header.layers}
    assert set(methods.values()) == {"contribution"}, methods


# ---- several optimizers take turns -----------------------------------------------------------------------------------


def test_the_step_of_a_round_is_all_that_moved(tmp_path: Path) -> None:
    """The generator, frozen for a while or without a gradient yet, was left out: UpdateSize 0.05 for 0.075."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"d": nn.Linear(4, 1), "g": nn.Linear(2, 4)}).double()
    optimizers = [torch.optim.SGD(model[name].parameters(), lr=0.1) for name in ("d", "g")]
    sizes, norms = [], []
    with cockpit_core.track(model, optimizer=optimizers, logdir=tmp_path / "run", config="economy", on_error="raise"):
        for step in range(3):
            before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
            x, z = batch(step)[0], batch(step + 10)[0][:, :2]
            for name, optimizer in zip(("d", "g"), optimizers, strict=True):
                for other in ("d", "g"):
                    model[other].requires_grad_(other == name)
                fake = F.softplus(model["d"](model["g"](z))).mean()
                loss = F.softplus(-model["d"](x)).mean() + fake if name == "d" else -fake
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            after = nn.utils.parameters_to_vector(model.parameters()).detach()
            sizes.append(float((after - before).norm()))
            norms.append(float(before.norm()))
    data = cockpit_core.load(tmp_path / "run")
    assert by_step(data, "UpdateSize") == pytest.approx(dict(enumerate(sizes)), rel=1e-9)
    assert by_step(data, "ParamNorm") == pytest.approx(dict(enumerate(norms)), rel=1e-9)
