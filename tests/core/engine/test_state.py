"""Whatever the user's modules, losses and hooks keep: the same bits with and without tracking, and exact numbers."""

from __future__ import annotations

import functools
import gc
import random
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

import cockpit_core
from tests.everything import Around, differences, everything
from tests.problems import PROBLEMS
from tests.stateful import KEEPERS, WIDTH, Plain, RunningCentre
from tests.training import loop, with_config

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")

OPTIONS = {
    "full": {"config": "full"},
    "economy, little memory": {"config": "economy", "memory_budget": 1},
    "a part of the batch": {"config": "business", "curvature_samples": 3, "curvature": "ggn_mc"},
}
UNCOVERED = {"HoldsIterator", "WritesInput", "OwnBackward", "hook on a weight that changes"}
"""A fact about them: no copy, an input that is gone, a gradient that is another one each time it is computed."""


def train(make: Callable[[], tuple[nn.Module, nn.Module, list]], logdir: Path | None, **options) -> tuple[dict, dict]:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model, loss_fn, batches = make()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    methods = {}
    if logdir is None:
        loop(model, loss_fn, optimizer, batches)
    else:
        with cockpit_core.track(
            model, loss_fn, optimizer, logdir=logdir, on_error="raise", **with_config(options)
        ) as run:
            loop(model, loss_fn, optimizer, batches)
        methods = {layer.name: layer.method for layer in run.data.header.layers}
    return everything(model, loss_fn, optimizer=optimizer), methods


def make_batches(steps: int = 4) -> list:
    generator = torch.Generator().manual_seed(3)
    draw = functools.partial(torch.randn, 6, WIDTH, generator=generator, dtype=torch.float64)
    return [(draw(), torch.randint(3, (6,), generator=generator)) for _ in range(steps)]


def network_with(kind: str, loss_fn: nn.Module) -> tuple[nn.Module, nn.Module, list]:
    layers = [nn.Linear(WIDTH, WIDTH), KEEPERS[kind](), nn.Tanh(), nn.Linear(WIDTH, 3)]
    return nn.Sequential(*layers).double(), loss_fn.double(), make_batches()


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", KEEPERS)
def test_a_module_that_keeps_something_is_left_as_it_is(kind: str, options: str, tmp_path: Path) -> None:
    make = functools.partial(network_with, kind, nn.CrossEntropyLoss())
    untracked, _ = train(make, None)
    tracked, methods = train(make, tmp_path / "run", **OPTIONS[options])
    assert not differences(untracked, tracked)
    if kind not in UNCOVERED:
        assert "not covered" not in methods.values(), methods


@pytest.mark.parametrize("options", OPTIONS)
def test_a_loss_that_keeps_something_is_left_as_it_is(options: str, tmp_path: Path) -> None:
    make = lambda: network_with("Counts", RunningCentre())  # noqa: E731
    untracked, _ = train(make, None)
    tracked, _ = train(make, tmp_path / "run", **OPTIONS[options])
    assert not differences(untracked, tracked)


def around(problem: str) -> tuple[nn.Module, nn.Module, list]:
    model, loss_fn, batches = PROBLEMS[problem].make()
    return Around(model), loss_fn, list(batches(3))


@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_network_of_the_suite_inside_a_module_that_keeps_everything(problem: str, tmp_path: Path) -> None:
    untracked, _ = train(lambda: around(problem), None)
    for config in ("full", "economy"):
        options = {"memory_budget": 1} if config == "economy" else {}
        tracked, _ = train(lambda: around(problem), tmp_path / config, config=config, **options)
        assert not differences(untracked, tracked)


@pytest.mark.parametrize(
    "kind", ["WritesBuffer", "KeepsHidden", "OwnGenerators", "Counts", "forward hook that changes"]
)
def test_numbers_are_those_of_the_call_as_the_user_made_it(kind: str, tmp_path: Path) -> None:
    """The state before the call, not the one after it: the norms of individual gradients are exact."""
    torch.manual_seed(0)
    model, loss_fn, batches = network_with(kind, nn.CrossEntropyLoss())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = [cockpit_core.quantities.NormTest()]
    with cockpit_core.track(model, loss_fn, optimizer, logdir=tmp_path / "run", config=config, on_error="raise") as run:
        expected = []
        for inputs, target in batches:
            optimizer.zero_grad()
            losses = nn.functional.cross_entropy(model(inputs), target, reduction="none")
            loss = loss_fn_of(loss_fn, losses)
            parameters = list(model.parameters())
            each = [torch.autograd.grad(one, parameters, retain_graph=True, allow_unused=True) for one in losses]
            squares = sum(float(g.square().sum()) for row in each for g in row if g is not None)
            run.backward(loss, losses)
            whole = sum(float(p.grad.square().sum()) for p in parameters if p.grad is not None)
            B = len(target)
            expected.append(max((squares / whole - B) / (B * (B - 1)), 0) ** 0.5)
            optimizer.step()
    steps, measured = run.data.scalars("NormTest")
    assert set(steps) >= {1, 2, 3}  # at the first step it may be found out that a rule does not hold
    assert measured == pytest.approx([expected[step] for step in steps], rel=1e-6)


def loss_fn_of(loss_fn: nn.Module, losses: torch.Tensor) -> torch.Tensor:
    return losses.mean()


def test_nothing_of_a_repeated_call_stays_referenced(tmp_path: Path) -> None:
    made = []

    class Notes(Plain):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = self.map(x)
            made.append(weakref.ref(self.last))
            return self.last

    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Notes(), nn.Linear(WIDTH, 3)).double()
    train(lambda: (model, nn.CrossEntropyLoss(), make_batches()), tmp_path / "run", config="full", memory_budget=1)
    gc.collect()
    alive = [reference() for reference in made if reference() is not None]
    assert [id(tensor) for tensor in alive] == [id(model[1].last)]


def test_the_users_own_vmap_and_grad_are_left_alone(tmp_path: Path) -> None:
    """Reading the loss of an idle step raised inside vmap."""
    model, loss_fn, batches = network_with("KeepsOutput", nn.CrossEntropyLoss())
    model = nn.Sequential(model[0], model[3])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(parameters: dict, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return loss_fn(functional_call(model, parameters, (x[None],)), y[None])

    with cockpit_core.track(model, loss_fn, optimizer, logdir=tmp_path / "run", schedule=100, on_error="raise") as run:
        for inputs, target in batches:
            values = {name: p.detach() for name, p in model.named_parameters()}
            rows = vmap(grad(loss_of), in_dims=(None, 0, 0))(values, inputs, target)
            assert rows["0.weight"].shape == (6, WIDTH, WIDTH)
            loop(model, loss_fn, optimizer, [(inputs, target)])
    assert list(run.data.scalars("Loss")[0]) == [0]
    assert len(batches) > 2, "the step after a tracked one is the far end of its Alpha; idle are those behind"


@pytest.mark.parametrize("schedule", [1, 100])
def test_a_tracked_model_and_its_loss_can_be_scripted_and_traced(schedule: int, tmp_path: Path) -> None:
    model, loss_fn, batches = network_with("KeepsOutput", nn.CrossEntropyLoss())
    model = nn.Sequential(model[0], model[3])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with cockpit_core.track(model, loss_fn, optimizer, logdir=tmp_path / "run", schedule=schedule, on_error="raise"):
        for inputs, target in batches:
            assert torch.equal(torch.jit.script(model)(inputs), model(inputs))
            assert torch.equal(torch.jit.trace(model, inputs)(inputs), model(inputs))
            torch.jit.script(loss_fn)
            loop(model, loss_fn, optimizer, [(inputs, target)])
        assert model[0]._forward_hooks or schedule == 100, "the hooks are back after scripting"


@pytest.mark.parametrize("schedule", [1, 100])
def test_a_function_over_model_and_loss_compiles_as_one_graph(schedule: int, tmp_path: Path) -> None:
    """Idle steps too: the hook on the loss is there at all of them."""
    model, loss_fn, batches = network_with("KeepsOutput", nn.CrossEntropyLoss())
    model = nn.Sequential(model[0], model[3])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with cockpit_core.track(model, loss_fn, optimizer, logdir=tmp_path / "run", on_error="raise", schedule=schedule):
        compiled = torch.compile(lambda x, y: loss_fn(model(x), y), fullgraph=True, backend="eager")
        for inputs, target in batches[:3]:
            optimizer.zero_grad()
            compiled(inputs, target).backward()
            optimizer.step()
    torch._dynamo.reset()
