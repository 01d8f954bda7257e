"""What a ninth group of unseen programs taught: inputs that do not arrive, numbers that are far from all others, outputs and
gradients that go elsewhere."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import cockpit_core
from cockpit_core.recording.probes import PREFIX
from cockpit_core.signals.inputs import measure_inputs
from tests.core.diagnosis.test_diagnoses import FLAT, STUCK, noise, put
from tests.histories import find, make_header

B = 64


def severity(name: str, change, **options) -> str:
    found = find(change, **options)
    return found[name].severity if name in found else ""


# ---- numbers that are far from all others ----


@pytest.mark.parametrize("value", [-9999.0, 60.0])
def test_single_numbers_that_are_far_make_nearly_all_squares(value: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(B, 30)
    hot = torch.rand(B, 30) < 0.02
    x[hot] = value
    numbers = measure_inputs(x).value
    assert numbers["input_far"] == pytest.approx(hot.double().mean().item(), abs=1e-9)
    own = x.double() - x.sort(0).values[(B - 1) // 2].double()
    assert numbers["input_far_part"] == pytest.approx(float(own[hot].square().sum() / own.square().sum()), rel=1e-5)


@pytest.mark.parametrize(
    "x",
    [
        torch.rand(B, 30) * 255,  # pictures
        torch.randn(B, 30) * 10 ** torch.linspace(-1, 3, 30),  # columns in units of their own
        (torch.rand(B, 30) < 0.05) * 200.0,  # mostly dark
    ],
)
def test_scales_leave_no_numbers_far_from_the_others(x: Tensor) -> None:
    assert measure_inputs(x).value["input_far"] == 0


def test_far_numbers_are_outliers_and_no_scale() -> None:
    far = put(**STUCK, input_rms=50, input_ratio=300, input_far=0.01, input_far_part=0.999)
    assert severity("input_outliers", far) == "likely"
    assert severity("inputs_not_scaled", far) == ""
    raw = put(**STUCK, input_rms=5000, input_ratio=300, input_far=0.01, input_far_part=0.95)
    assert severity("inputs_not_scaled", raw) == "likely", "the rest is as large"


# ---- inputs that do not arrive ----


class Reader(nn.Module):
    """Answers from the first token, which is the same in every sample."""

    def __init__(self, batch_first: bool):
        super().__init__()
        self.tokens, self.places = nn.Embedding(8, 16), nn.Parameter(torch.randn(6, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=batch_first)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.tokens(x) + self.places)[:, 0])


@pytest.mark.parametrize("batch_first", [False, True])
def test_attention_over_the_batch_behind_a_first_token(batch_first: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, g, loss_fn = Reader(batch_first), torch.Generator().manual_seed(3), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path, config="economy", schedule=2):
        for _ in range(100):
            x = torch.randint(4, 8, (32, 6), generator=g)
            x[:, 0] = 0
            optimizer.zero_grad()
            loss_fn(model(x), x[:, 3] - 4).backward()
            optimizer.step()
    found = {finding.name: finding for finding in cockpit_core.diagnose(tmp_path)}
    apart = cockpit_core.load(tmp_path).scalars(PREFIX + "apart")[1]
    assert (apart.max() < 1e-6) is not batch_first
    assert ("samples_mixed" in found) is not batch_first
    if not batch_first:
        assert "do not arrive" in found["samples_mixed"].text
        assert found["samples_mixed"].severity == "likely"


@pytest.mark.parametrize(
    "other", [{"UpdateSize": 2.0}, {"dead": 1.0}, {"batch_duplicates": 1}, {"Loss": lambda i: 2.3 * 0.9**i}]
)
def test_answers_are_alike_for_other_reasons_too(other: dict) -> None:
    alike = {**FLAT, "UpdateSize": 0.02, "Distance": 0.5, "steps_to_go": 300}
    probed = {"probe/half": 1.0, "probe/mixed": 0.0, "probe/apart": 0.0}
    assert severity("samples_mixed", put(**alike, **probed)) == "likely"
    assert severity("samples_mixed", put(**(alike | probed | other))) == ""


# ---- codes that give the class away ----


@pytest.mark.parametrize(("valid", "told"), [(0.2, "likely"), (0.95, "advice")])
def test_a_place_of_a_text_that_gives_the_class_away(valid: float, told: str) -> None:
    """To remember the first token may be the task; then validation is as good."""

    right = {"Loss": lambda i: 2.3 * 0.8**i, "accuracy": lambda i: min(1.0, 0.1 + i / 12)}
    change = put(**right, code_given=1, code_given_where=9)
    assert severity("target_in_inputs", change, n=60, logged=lambda i: {"valid_accuracy": valid}) == told


def test_codes_are_looked_at_where_the_model_gets_no_numbers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(20, 8), nn.Linear(8, 3))
    loss_fn, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path, config=["Loss"], schedule=1):
        for step in range(4):
            x, y = torch.randint(0, 10, (B, 5)), torch.randint(0, 3, (B,))
            if step % 2:
                x[:, 4] = 15 + y
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            optimizer.step()
    data = cockpit_core.load(tmp_path)
    assert data.scalars("signal/code_given")[1].tolist() == [0, 1, 0, 1]
    assert data.scalars("signal/code_given_where")[1].tolist() == [4, 4]


# ---- elsewhere ----


@pytest.mark.parametrize(("outputs", "told"), [(lambda i: 0.1 * 2.0**i, "likely"), (lambda i: 0.1 + 0.02 * i, "")])
def test_outputs_that_leave_their_targets_while_the_loss_falls(outputs, told: str) -> None:
    """Minus a logarithm of the squared error: decibels, of which more are better."""
    change = put(
        Loss=lambda i: 16 - 6 * i, output_rms=outputs, target_std=0.1, target_scale=0.01, classes=math.nan, accuracy=math.nan,
        label_entropy=math.nan, label_top_share=math.nan,
    )  # fmt: skip
    assert severity("loss_sign", change, header=make_header(""), n=14) == told


def test_a_gradient_that_is_gone_when_the_optimizer_steps_though_decay_moves_the_weights() -> None:
    moved = put(**STUCK, UpdateSize=1e-4, Distance=lambda i: 1e-3 * (i + 1), GradNormClipped=0)
    assert "gone when the optimizer steps" in find(moved)["nothing_moves"].text
    assert "nothing_moves" not in find(
        put(**STUCK, UpdateSize=1e-4, Distance=lambda i: 1e-3 * (i + 1), GradNormClipped=1e-9)
    )


@pytest.mark.parametrize(("known", "told"), [(0.9, "likely"), (math.nan, "")])
def test_alpha_alone_is_no_rate_that_is_too_high(known: float, told: str) -> None:
    """Two batches decide where it ends; curvature or a trial step must say so too."""
    edge = {"HessMaxEV": 2 / 0.1 * known}
    change = put(**(STUCK | edge), Alpha=1.3, UpdateSize=0.1, Distance=0.3)
    assert severity("learning_rate_too_high", change, n=16) == told


@pytest.mark.parametrize(("stuck", "told"), [(True, ""), (False, "likely")])
def test_two_rates_of_guessing_are_no_noise_in_labels(stuck: bool, told: str) -> None:
    right, elsewhere = (0.1, 0.24) if stuck else (0.6, 0.8)
    loss = (
        {"Loss": lambda i: 2.31 + noise(i) / 50}
        if stuck
        else {"Loss": lambda i: 2.3 * max(0.5, 1 - i / 12) + noise(i) / 50}
    )
    change = put(**loss, accuracy=right, label_rows=64)
    assert severity("label_noise", change, n=60, logged=lambda i: {"valid_accuracy": elsewhere}) == told


@pytest.mark.parametrize(("optimizer", "told"), [("RMSprop", ""), ("Adam", "likely")])
def test_the_first_steps_of_rmsprop_are_long(optimizer: str, told: str) -> None:
    """Ten times as long as those that follow, at whatever rate: its mean of squares begins at zero."""
    header = make_header(optimizer=optimizer, **({"alpha": "0.99"} if optimizer == "RMSprop" else {}))
    steps = put(**FLAT, UpdateSize=lambda i: 12.0 / (1 + i) ** 2 + 0.02, ParamNorm=10, Distance=0.9)
    assert severity("learning_rate_too_high", steps, header=header, n=14) == told


def test_a_dead_network_ends_in_no_sigmoid() -> None:
    values = {"classes": math.nan, "accuracy": math.nan, "target_std": 1.0, "target_min": -1.1, "target_max": 4.3}
    dead = put(**values, Loss=1.0, output_min=lambda i: 0.018 - 1e-4 * i, output_max=lambda i: 0.047 + 1e-4 * i)
    assert severity("output_activation", dead, header=make_header("MSELoss"), n=40) == ""
    pressed = put(**values, Loss=1.0, output_min=lambda i: 1e-5 / (1 + i), output_max=lambda i: 0.047 / (1 + i))
    assert severity("output_activation", pressed, header=make_header("MSELoss"), n=40) == "likely"


@pytest.mark.parametrize(("times", "told"), [(5.0, "likely"), (3.5, "")])
def test_weights_that_were_begun_in_a_way_of_ones_own_and_are_five_times_as_long(times: float, told: str) -> None:
    """A learning rate of thirty times the right one, which a schedule took down to nothing."""
    grown = {
        "ParamNorm": lambda i: 7 * (1 + (times - 1) * min(1, i / 20)),
        "Distance": lambda i: 7 * times * min(1, i / 20),
    }
    loss = {
        "Loss": lambda i: 2.3 * max(0.5, 1 - i / 20),
        "accuracy": 0.4,
        "UpdateSize": lambda i: 0.7 if i < 20 else 0.05,
    }
    change = put(**loss, **grown)
    assert severity("learning_rate_too_high", change, n=60, finished=True) == told
