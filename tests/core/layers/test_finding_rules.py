"""Which rule a module has is looked up once for its type: whatever changes later is still noticed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from cockpit_core.layers import registry
from cockpit_core.layers.registry import RULES, Call, find_rule


class Inherits(nn.Linear):
    """Computes the same."""


class Differs(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class Apart(nn.Module):
    """Has no rule."""


def test_a_subclass_shares_the_rule_only_while_it_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_rule(Inherits(2, 2)) is RULES[nn.Linear]
    assert find_rule(Differs(2, 2)) is None
    monkeypatch.setattr(Inherits, "forward", Differs.forward, raising=False)
    assert find_rule(Inherits(2, 2)) is None


def test_a_weight_that_is_computed_has_no_rule() -> None:
    module = nn.Linear(2, 2)
    assert find_rule(module) is RULES[nn.Linear]
    parametrizations.weight_norm(module)
    assert find_rule(module) is None
    torch.nn.utils.parametrize.remove_parametrizations(module, "weight")
    assert find_rule(module) is RULES[nn.Linear]


def test_a_rule_that_comes_or_changes_later_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Apart()
    assert find_rule(module) is None

    def own(call, b, scale):
        return {}

    monkeypatch.setattr(registry, "RULES", dict(RULES))
    registry.rule(Apart)(own)
    assert find_rule(module) is own
    monkeypatch.setitem(registry.RULES, nn.Linear, own)
    assert find_rule(nn.Linear(2, 2)) is own
    monkeypatch.undo()
    assert find_rule(nn.Linear(2, 2)) is RULES[nn.Linear]
    assert find_rule(module) is None


@pytest.mark.parametrize("shape", [(5, 4), (5, 3, 4), (5, 1, 4), (5, 2, 3, 4)])
def test_linear_map_of_gpt_2_has_a_rule(shape: tuple[int, ...]) -> None:
    utilities = pytest.importorskip("transformers.pytorch_utils")
    module = utilities.Conv1D(6, 4).double()
    x = torch.randn(shape, dtype=torch.float64)
    b = torch.randn(*shape[:-1], 6, dtype=torch.float64)
    own = find_rule(module)
    assert own is registry.FOREIGN_RULES["transformers.pytorch_utils.Conv1D"]
    parts = own(Call(module, (x,), {}, 5, 0), b, 2.0)
    for n in range(5):
        truth = torch.autograd.grad(module(x[n : n + 1]), [module.weight, module.bias], b[n : n + 1])
        for name, gradient in zip(("weight", "bias"), truth, strict=True):
            torch.testing.assert_close(parts[name].form(n, n + 1)[0], 2 * gradient)
    monkey = type("Own", (utilities.Conv1D,), {"forward": lambda self, x: x})
    assert find_rule(monkey(6, 4)) is None
