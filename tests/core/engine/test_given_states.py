"""A state that the user hands from call to call: repeated passes of ours must not write into it."""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import cockpit_core
from cockpit_core.engine.detaching import detach_inputs
from cockpit_core.layers.module_state import NotRepeatable
from cockpit_core.layers.seeds import copy_inputs
from cockpit_core.recording.probes import PREFIX
from tests.core.recording.test_probes import suspect


class State:
    def __init__(self) -> None:
        self.h, self.calls = torch.zeros(16, 8), 0


class Steps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(8, 6) * 0.3), nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor, state: State, seen: deque) -> Tensor:
        h = torch.tanh(x @ self.weight.T + self.bias + state.h)
        state.h, state.calls = h.detach(), state.calls + 1
        seen.append(float(x.sum()))
        return h


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps, self.head = Steps(), nn.Linear(8, 3)

    def forward(self, x: Tensor, state: State, seen: deque) -> Tensor:
        return self.head(self.steps(x, state, seen))


def train(probe: str, logdir: Path | None) -> tuple:
    torch.manual_seed(0)
    model, loss_fn, state, seen = Network(), nn.CrossEntropyLoss(), State(), deque()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    run = cockpit_core.track(model, loss_fn, optimizer, logdir, config="economy", schedule=1) if logdir else None
    if run and probe:
        run._tracker.log.live.judge.rules.clear()
        run._tracker.log.live.judge.rules["suspicious"] = suspect(probe)
    for _ in range(15):
        optimizer.zero_grad()
        loss_fn(model(torch.randn(16, 6), state, seen), torch.randint(0, 3, (16,))).backward()
        optimizer.step()
    if run:
        run.close()
    return state.calls, seen, state.h, *model.parameters(), *(p.grad for p in model.parameters())


@pytest.mark.filterwarnings("ignore:Cockpit. individual gradients")
@pytest.mark.parametrize("probe", ["", "line", "half"])
def test_it_is_what_it_would_be_without_us(tmp_path: Path, probe: str) -> None:
    plain, tracked = train(probe, None), train(probe, tmp_path)
    assert plain[:2] == tracked[:2]
    assert all(torch.equal(a, b) for a, b in zip(plain[2:], tracked[2:], strict=True))
    if probe:
        assert cockpit_core.load(tmp_path).scalars(PREFIX + probe)[1].max() == 1, "from the state before the call"


def test_what_cannot_be_copied_is_not_given_twice() -> None:
    class Open:
        def __init__(self) -> None:
            self.file = iter([1, 2])

    kept = detach_inputs((torch.ones(2), Open(), threading.Lock()))
    with pytest.raises(NotRepeatable, match="without a trace"):
        copy_inputs(kept)


class Freezing(nn.Module):
    """In evaluation it freezes itself, and does not like batches in which a sample stands twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            self.layer.bias.requires_grad_(False)
            if len(x.unique(dim=0)) < len(x):
                raise SystemExit("twice")
        return self.layer(x)


def test_code_of_the_user_that_ends_the_program_or_freezes_parameters(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, loss_fn = Freezing(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path, config="economy", schedule=1) as run:
        run._tracker.log.live.judge.rules.clear()
        run._tracker.log.live.judge.rules["suspicious"] = suspect("half")
        for _ in range(12):
            optimizer.zero_grad()
            loss_fn(model(torch.randn(16, 6)), torch.randint(0, 3, (16,))).backward()
            optimizer.step()
    assert all(p.requires_grad for p in model.parameters())
    assert cockpit_core.load(tmp_path).scalars(PREFIX + "half")[1].max() == 0
