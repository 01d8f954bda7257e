"""Is the stand-in a device? It has to refuse what a GPU would refuse, and to see who waits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.device.on_device import STAND_IN

DEVICE = STAND_IN.device


def ones(*shape: int) -> Tensor:
    return torch.ones(*shape, device=DEVICE)


MIXED = {
    "tensors": lambda: ones(4) + torch.ones(4),
    "products": lambda: ones(4, 4) @ torch.ones(4, 4),
    "a generator of the host": lambda: torch.randn(3, device=DEVICE, generator=torch.Generator()),
    "a generator of the device": lambda: torch.randn(3, generator=torch.Generator(DEVICE)),
    "numpy": lambda: ones(3).numpy(),
    "embedding": lambda: nn.functional.embedding(torch.tensor([1]), ones(3, 2)),
}


@pytest.mark.parametrize("name", MIXED)
def test_devices_do_not_mix(name: str) -> None:
    with pytest.raises((RuntimeError, TypeError)):
        MIXED[name]()


WAITING: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "cpu": lambda x: x.cpu(),
    "tolist": lambda x: x.tolist(),
    "bool": lambda x: bool(x.sum() > 0),
    "mask": lambda x: x[x > 0],
    "put": lambda x: x.index_put_((x > 0,), 2 * x),
    "nonzero": lambda x: x.nonzero(),
    "equal": lambda x: torch.equal(x, x),
    "unique": lambda x: x.unique(),
}


@pytest.mark.parametrize("name", WAITING)
def test_who_waits_is_counted(name: str) -> None:
    x, before = ones(5), STAND_IN.waits
    WAITING[name](x)
    assert STAND_IN.waits == before + 1


QUIET: dict[str, Callable[[Tensor], object]] = {
    "a sum": lambda x: x.sum(),
    "a masked fill": lambda x: x.masked_fill(x > 0, 2.0),
    "a copy to pinned memory": lambda x: torch.empty(5, pin_memory=True).copy_(x, non_blocking=True),
    "an event": lambda x: torch.Event(DEVICE, enable_timing=True).record(),
}


@pytest.mark.parametrize("name", QUIET)
def test_nobody_else_is(name: str) -> None:
    x, before = ones(5), STAND_IN.waits
    QUIET[name](x)
    assert STAND_IN.waits == before


def test_new_memory_holds_nothing_to_count_on() -> None:
    assert torch.empty(1000, device=DEVICE).isnan().all()


def test_random_numbers_are_the_device_s_own() -> None:
    torch.manual_seed(3)
    host, first = torch.get_rng_state(), torch.rand(4, device=DEVICE)
    nn.functional.dropout(ones(9))
    assert torch.equal(torch.get_rng_state(), host)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(4, device=DEVICE), first)


def test_work_waits_in_a_queue() -> None:
    torch.accelerator.synchronize()
    began = STAND_IN.time
    first, second = (torch.Event(DEVICE, enable_timing=True) for _ in range(2))
    first.record()
    STAND_IN.compute(0.05)
    second.record()
    assert not second.query()
    assert (STAND_IN.time - began, STAND_IN.ahead) == (0, pytest.approx(0.05))
    ones(1).item()
    assert STAND_IN.time - began == pytest.approx(0.05)
    assert first.elapsed_time(second) == pytest.approx(50)


def test_nobody_gets_far_ahead_of_the_device() -> None:
    before = STAND_IN.waits
    for _ in range(5):
        STAND_IN.compute(0.1)
    assert STAND_IN.ahead == pytest.approx(0.2)
    assert STAND_IN.waits == before


def test_views_and_convolutions_are_those_of_the_cpu() -> None:
    x, weight = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3)
    for function in (
        lambda a, w: nn.functional.conv2d(a, w, stride=2),
        lambda a, w: nn.functional.conv_transpose2d(a, w.transpose(0, 1)),
        lambda a, w: (
            a.unfold(2, 3, 1)[..., 1:].transpose(0, 1).reshape(3, -1)
            @ w.new_ones(a[0, 0].numel() * 4, 1)[: 2 * 4 * 6 * 2]
        ),
    ):
        leaves = [(x.clone().requires_grad_(), weight.clone().requires_grad_())]
        leaves.append(tuple(t.detach().to(DEVICE).requires_grad_() for t in (x, weight)))
        for pair in leaves:
            function(*pair).square().sum().backward()
        for host, device in zip(*leaves, strict=True):
            assert (host.grad is None) == (device.grad is None)
            assert host.grad is None or torch.equal(host.grad, device.grad.cpu())
