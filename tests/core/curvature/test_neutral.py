"""Nothing is changed, nothing is left behind, and memory stays within its budget."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest
import torch
from torch import nn

from cockpit_core.curvature import GGNOperator, HessianOperator, Limits, diagonal, largest_eigenvalue
from tests.core.curvature.points import BATCH, LOSSES, NETWORKS, point_of


def ask_everything(point, generator: torch.Generator) -> None:
    for kind, make in (("hessian", HessianOperator), ("ggn", GGNOperator)):
        operator = make(point)
        largest_eigenvalue(operator, None, generator)
        diagonal(point, kind, generator, operator=operator)
        diagonal(point, kind, generator, operator=operator, limits=Limits(max_columns=0, max_dimension=0))
        operator.close()
    diagonal(point, "ggn_mc", generator)


@pytest.mark.parametrize("network", ["in-place cnn", "tanh residual", "tokens"])
def test_gradients_random_state_and_modules_are_untouched(network: str) -> None:
    build, draw = NETWORKS[network]
    model = build().double()
    inputs = draw()
    results = []
    for asked in (False, True):
        torch.manual_seed(3)
        model.zero_grad()
        point = point_of(model, model(inputs), LOSSES["cross entropy"])
        attributes = {name: set(vars(module)) for name, module in model.named_modules()}
        if asked:
            ask_everything(point, torch.Generator().manual_seed(0))
            assert all(p.grad is None for p in model.parameters())
        point.loss.backward()
        assert attributes == {name: set(vars(module)) for name, module in model.named_modules()}
        results.append((torch.get_rng_state(), [p.grad.clone() for p in model.parameters()]))
    assert torch.equal(results[0][0], results[1][0])
    assert all(torch.equal(a, b) for a, b in zip(results[0][1], results[1][1], strict=True))


def test_the_same_generator_gives_the_same_numbers() -> None:
    build, draw = NETWORKS["tanh mlp"]
    point = point_of(model := build().double(), model(draw()), LOSSES["cross entropy"])
    limits = Limits(max_columns=0, max_dimension=0)
    traces = [diagonal(point, "hessian", torch.Generator().manual_seed(5), limits=limits).trace for _ in range(2)]
    torch.manual_seed(99)
    traces.append(diagonal(point, "hessian", torch.Generator().manual_seed(5), limits=limits).trace)
    assert traces[0] == traces[1] == traces[2]


def test_the_graph_is_free_to_go_when_the_point_is() -> None:
    build, draw = NETWORKS["in-place cnn"]
    model = build().double()
    point = point_of(model, model(draw()), LOSSES["cross entropy"])
    ask_everything(point, torch.Generator().manual_seed(0))
    watched = weakref.ref(point.outputs)
    del point
    gc.collect()
    assert watched() is None


def test_three_hundred_calls_leave_no_tensor_behind() -> None:
    build, draw = NETWORKS["tanh mlp"]
    model = build().double()

    def count(calls: int) -> int:
        for _ in range(calls):
            point = point_of(model, model(draw()), LOSSES["cross entropy"])
            operator = HessianOperator(point)
            largest_eigenvalue(operator, None, torch.Generator().manual_seed(0))
            diagonal(point, "hessian", operator=operator)
            diagonal(point, "ggn_mc")
            operator.close()
            del point, operator
        gc.collect()
        return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())

    few = count(5)
    assert count(300) <= few


_PEAK = """
import torch
from torch import nn
from cockpit_core.curvature import Limits, Point, diagonal
from tests.peak_memory import megabytes
torch.set_num_threads(1)
blocks = [m for _ in range(12) for m in (nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(inplace=True))]
model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 20))
outputs = model(torch.randn(64, 3, 16, 16))
labels = torch.arange(64) % 20
loss_of = lambda o: nn.functional.cross_entropy(o, labels)
point = Point(loss_of(outputs), dict(model.named_parameters()), 64, outputs, loss_of)
torch.autograd.grad(point.loss, list(model.parameters()), retain_graph=True)
before = megabytes()
found = diagonal(point, "hessian", limits=Limits(memory_budget=BUDGET))
assert found.exact and found.method == "columns"
print(megabytes() - before)
"""


def test_peak_memory_follows_the_budget_and_not_the_depth() -> None:
    """Thirteen layers of 1 MB of output gradients, 19 columns: 260 MB if all were kept at once."""
    script = _PEAK.replace("BUDGET", str(4 * 2**20))
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    assert float(answer.stdout) < 80  # MB: the budget, one column on its way, and pieces


def test_batches_are_as_the_problems_say() -> None:
    assert all(len(draw()) == BATCH for _, draw in NETWORKS.values())
    assert isinstance(NETWORKS["cnn"][0](), nn.Module)
