"""Hooks of the user on activations: what they give instead of a gradient may hang on all samples at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cockpit_core
from tests.core.engine.sample_cases import B, layers_of


def centre(gradient: Tensor) -> Tensor:
    return gradient - gradient.mean(0)


class Hooked(nn.Module):
    """Two layers with a place between them and one at the end, where a hook may be put at every call."""

    def __init__(self, between: Callable[[Tensor], object] | None = None, on_first: bool = False):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.bend, self.second = nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)
        self.between, self.on_first = between, on_first
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        bent = self.bend(first)
        if self.between is not None:
            self.between(first if self.on_first else bent)
        return self.second(bent)


def double_in_place(gradient: Tensor) -> None:
    gradient.mul_(2)


CHANGES: dict[str, Callable[[Tensor], object]] = {
    "a tensor's": lambda h: h.register_hook(centre),
    "in place": lambda h: h.register_hook(double_in_place),
    "a node's": lambda h: h.grad_fn.register_hook(lambda gi, go: (centre(gi[0]),)),  # type: ignore[union-attr]
    "before a node": lambda h: h.grad_fn.register_prehook(lambda go: (centre(go[0]),)),  # type: ignore[union-attr]
}
LOOKS: dict[str, Callable[[Tensor], object]] = {
    "gives nothing": lambda h: h.register_hook(lambda g: None),
    "gives it back": lambda h: h.register_hook(lambda g: g),
    "gives a copy": lambda h: h.register_hook(lambda g: g.clone()),
    "of a node": lambda h: h.grad_fn.register_hook(lambda gi, go: gi),  # type: ignore[union-attr]
}


def make_batches() -> list[tuple]:
    torch.manual_seed(1)
    return [(torch.randn(B, 3).double(), torch.randint(2, (B,))) for _ in range(4)]


def train(model: nn.Module, folder: Path | None, *, on_output: Callable[[Tensor], object] | None = None) -> dict:
    """Returns the methods of the layers; the weights stay in the model."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = cockpit_core.track(model, None, optimizer, folder, config="economy", on_error="raise") if folder else None
    for x, y in make_batches():
        optimizer.zero_grad()
        output = model(x)
        if on_output is not None:
            on_output(output)
        F.cross_entropy(output, y).backward()
        optimizer.step()
    if run is None:
        return {}
    run.close()
    return layers_of(run.data)


@pytest.mark.parametrize("name", CHANGES)
def test_layers_before_a_hook_that_changes_gradients_are_marked(name: str, tmp_path: Path) -> None:
    """NormTest was that of gradients of no sample's loss, without a mark."""
    model, plain = Hooked(CHANGES[name]), Hooked(CHANGES[name])
    methods = train(model, tmp_path / "run")
    assert methods["first.weight"][0] == methods["first.bias"][0] == "contribution"
    assert "a hook of yours on an activation" in methods["first.weight"][1]
    assert methods["second.weight"][0] == methods["second.bias"][0] == "rule"
    train(plain, None)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", LOOKS)
def test_hook_that_only_looks_marks_nothing(name: str, tmp_path: Path) -> None:
    methods = train(Hooked(LOOKS[name]), tmp_path / "run")
    assert {method for method, _ in methods.values()} == {"rule"}


def test_hooks_of_modules_that_change_gradients(tmp_path: Path) -> None:
    looking, changing, before = Hooked(), Hooked(), Hooked()
    looking.bend.register_full_backward_hook(lambda module, gi, go: None)
    changing.bend.register_full_backward_hook(lambda module, gi, go: (gi[0] / gi[0].norm(),))
    before.bend.register_full_backward_pre_hook(lambda module, go: (centre(go[0]),))
    assert train(looking, tmp_path / "looking")["first.weight"][0] == "rule"
    assert train(changing, tmp_path / "changing")["first.weight"][0] == "contribution"
    assert train(before, tmp_path / "before")["first.weight"][0] == "contribution"


def test_hook_on_the_output_marks_all_layers(tmp_path: Path) -> None:
    methods = train(Hooked(), tmp_path / "run", on_output=lambda output: output.register_hook(centre))
    assert {method for method, _ in methods.values()} == {"contribution"}


def test_layer_is_measured_with_what_a_hook_on_its_own_output_gave(tmp_path: Path) -> None:
    """Ours came first, so that the layer's contributions did not add up, and it was refused."""
    model = Hooked(CHANGES["a tensor's"], on_first=True)
    truth = Hooked(None)
    x, y = make_batches()[0]
    first = truth.first(x)
    loss = F.cross_entropy(truth.second(truth.bend(first)), y)
    b = centre(torch.autograd.grad(loss, first)[0])
    rows = B * torch.einsum("ni,nj->nij", b, x).flatten(1)  # [B, 5 * 3]
    mean = rows.mean(0)
    expected = ((rows.square().sum() / mean.square().sum() - B) / (B * (B - 1))).sqrt()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with cockpit_core.track(model, None, optimizer, tmp_path / "run", config="economy", on_error="raise") as run:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert layers_of(run.data)["first.weight"][0] == "contribution"
    assert run.data.scalars("NormTest", "first.weight")[1][0] == pytest.approx(float(expected), rel=1e-6)


def test_hooks_are_what_they_were_when_the_backward_pass_is_over(tmp_path: Path) -> None:
    held: list[Tensor] = []
    calls: list[int] = []

    def put(h: Tensor) -> None:
        held.append(h)
        h.register_hook(counted)

    def counted(gradient: Tensor) -> Tensor:
        calls.append(len(gradient))
        return 2 * gradient

    train(Hooked(put), tmp_path / "run")
    assert calls == [B] * 4
    hooks = [hook for h in held for hook in (h._backward_hooks or {}).values()]
    assert [hook for hook in hooks if hook is counted] == [counted] * 4
    assert not [hook for hook in hooks if type(hook).__name__ == "Heard"]


def test_two_runs_listen_to_the_same_hook(tmp_path: Path) -> None:
    held: list[Tensor] = []
    models = [Hooked(), Hooked(lambda h: (held.append(h), h.register_hook(centre)))]
    runs = []
    for model, name in zip(models, "ab", strict=True):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        runs.append((cockpit_core.track(model, None, optimizer, tmp_path / name, config="economy"), optimizer))
    for x, y in make_batches():
        for _, optimizer in runs:
            optimizer.zero_grad()
        F.cross_entropy(models[1](models[0](x)[:, [0, 1, 0]]), y).backward()
        for _, optimizer in runs:
            optimizer.step()
    for run, _ in runs:
        run.close()
    assert {method for method, _ in layers_of(runs[0][0].data).values()} == {"contribution"}
    assert layers_of(runs[1][0].data)["second.weight"][0] == "rule"
    assert len(held) == 4
    assert all(centre in (h._backward_hooks or {}).values() for h in held)


def test_hook_that_takes_itself_away(tmp_path: Path) -> None:
    def once(h: Tensor) -> None:
        handle = h.register_hook(lambda gradient: (handle.remove(), gradient * 2)[1])

    model, plain = Hooked(once), Hooked(once)
    assert train(model, tmp_path / "run")["first.weight"][0] == "contribution"
    train(plain, None)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


def test_mark_ends_with_the_backward_pass(tmp_path: Path) -> None:
    """A hook of one micro-batch says nothing about the layers of a network without one."""
    hooked, other = Hooked(CHANGES["a tensor's"]), Hooked()
    train(hooked, tmp_path / "hooked")
    assert {method for method, _ in train(other, tmp_path / "other").values()} == {"rule"}
