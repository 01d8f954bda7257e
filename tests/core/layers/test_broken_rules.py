"""A rule of ours that fails or is wrong: the fallback of the same module serves, and nobody is left in the dark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cockpit_core
from cockpit_core.layers import attention, recurrent, registry
from cockpit_core.layers.contribution import Contribution
from tests import slow_truth
from tests.networks import NETWORKS
from tests.training import ECONOMY, OPTIMIZERS, assert_true, loop, start, train_tracked, truth_of


def raise_an_error(*args: Any) -> dict[str, Contribution]:
    raise TypeError("this rule is broken")


def test_rule_that_raises_is_an_error_where_errors_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.RULES, nn.Linear, raise_an_error)
    training = start("mlp")
    with pytest.raises(TypeError, match="this rule is broken"), training.track(tmp_path / "run", on_error="raise"):
        training.run(training.batches(2))


def test_rule_that_raises_is_told_once_and_replaced_by_the_fallback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.RULES, nn.Linear, raise_an_error)
    training = start("mlp", "momentum")
    with (
        pytest.warns(UserWarning, match="the rule of") as caught,
        training.track(tmp_path / "run", on_error="warn") as run,
    ):
        training.run(training.batches(4))
    told = [str(warning.message) for warning in caught]
    assert len(told) == 2, told  # one of each Linear, at the first step only
    assert all("(Linear)" in text and "this rule is broken" in text for text in told)
    methods = {layer.name: (layer.method, layer.reason) for layer in run.data.header.layers}
    assert methods["0.weight"] == ("fallback", "its rule failed: TypeError: this rule is broken")
    assert_true(run.data, truth_of(start("mlp", "momentum"), training.batches(4)))


@pytest.mark.parametrize("name", ["attention", "encoder_layer", "lstm"])
def test_rule_that_does_not_add_up_is_replaced_at_the_module_itself(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at the enclosing module, which would run all of it once per sample; and in the same step."""

    def double(call: registry.Call, outputs: dict[int, Tensor], scale: float) -> dict[str, Contribution] | None:
        return attention.attention(call, outputs, 2 * scale)

    def double_too(call: registry.Call, outputs: dict[int, Tensor], scale: float) -> dict[str, Contribution] | None:
        return recurrent.recurrence(call, outputs, 2 * scale)

    monkeypatch.setitem(registry.RULES, nn.MultiheadAttention, registry.Repeating(double))
    monkeypatch.setitem(registry.RULES, nn.LSTM, registry.Repeating(double_too))
    data = train_tracked(NETWORKS[name], "momentum", 3, tmp_path / "run", config="economy")
    assert_true(data, slow_truth.truth_of_run(NETWORKS[name], OPTIMIZERS["momentum"], 3, None), ECONOMY)
    for layer in data.header.layers:
        if "_proj" in layer.name or layer.name.startswith("inner.weight_"):
            assert (layer.method, layer.reason) == ("fallback", "its rule did not add up to its gradient"), layer.name
            assert layer.module == ("LSTM" if name == "lstm" else "MultiheadAttention")


def test_attention_that_adds_up_has_a_rule(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.TransformerDecoderLayer(4, 2, 6, dropout=0.1, batch_first=True).double()
    loss_fn, optimizer = nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1)
    memory = torch.randn(5, 2, 4).double()

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = model

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x, memory)

    with cockpit_core.track(Decoder(), loss_fn, optimizer, tmp_path / "run", on_error="raise", config="economy") as run:
        loop(
            run._tracker.model, loss_fn, optimizer, [(torch.randn(5, 3, 4).double(), torch.zeros(5, 3, 4).double())] * 2
        )
    assert {layer.method for layer in run.data.header.layers} == {"rule"}
