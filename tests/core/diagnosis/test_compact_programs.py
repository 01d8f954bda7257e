"""What eight compact programs by strangers taught: spirals, drawn shapes, waves, a residual network, signals, sequences, texts,
a variational autoencoder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import cockpit_core
from tests.core.diagnosis.test_at_the_end import LONG, at, tried
from tests.core.diagnosis.test_diagnoses import both, put, values_header, vectors
from tests.core.diagnosis.test_harm import severity
from tests.core.diagnosis.test_ordinary_programs import FRESH, grown
from tests.histories import find, make_header


def test_a_class_that_stands_in_the_inputs() -> None:
    given = put(label_given=1.0, label_given_where=137)
    told = find(given)["target_in_inputs"]
    assert told.severity == "likely"
    assert "Feature 137 of" in told.text, "a place is not rounded"
    assert severity("target_in_inputs", put(label_given=0.5, label_given_where=3)) == ""
    assert severity("target_in_inputs", put(label_given=lambda i: float(i % 3 > 0), label_given_where=3)) == ""


@pytest.mark.parametrize("config", [{}, {"config": "full", "schedule": 5}])
def test_an_optimizer_of_another_model_is_a_finding_and_no_error(tmp_path: Path, config: dict) -> None:
    """The training goes on as it would without us: nothing of the model moves, and the log says why."""
    torch.manual_seed(0)
    other, model, loss_fn = nn.Linear(6, 4), nn.Linear(6, 4), nn.CrossEntropyLoss()
    optimizer, start = torch.optim.Adam(other.parameters(), lr=0.1), model.weight.clone()
    with pytest.warns(UserWarning, match="no parameter of this model"):
        run = cockpit_core.track(model, loss_fn, optimizer, tmp_path, on_error="raise", **config)
    assert [f.severity for f in run.findings if f.name == "optimizer_holds_others"] == ["broken"], (
        "before the first step"
    )
    for _ in range(40):
        optimizer.zero_grad()
        loss_fn(model(torch.randn(16, 6)), torch.randint(0, 4, (16,))).backward()
        optimizer.step()
    run.close()
    assert torch.equal(model.weight, start)
    assert cockpit_core.diagnose(tmp_path)[0].name == "optimizer_holds_others"


def uneven(i: int, scalars: dict[str, float]) -> None:
    """Three classes of ten, nearly alone."""
    scalars |= {
        "signal/label_entropy": 1.2,
        "signal/label_top_share": 0.36,
        "signal/accuracy": 0.95,
        "signal/label_rows": 32.0,
    }


def test_several_common_classes() -> None:
    right_in_half = lambda i: {"valid_accuracy": 0.29, "valid_loss": 2.5}  # noqa: E731
    told = find(both(at(0.05), uneven), logged=right_in_half, **LONG)["class_imbalance"]
    assert told.severity == "likely"
    assert "3.3 classes, not 10" in told.text
    balanced = find(both(at(0.05), put(accuracy=0.95, label_rows=32)), logged=right_in_half, **LONG)
    assert "class_imbalance" not in balanced
    in_turns = both(at(0.05), uneven, put(target_mean=lambda i: float(i % 10), target_variance=0.6))
    assert "class_imbalance" not in find(in_turns, logged=right_in_half, **LONG), "they are sorted"


def test_samples_that_are_known_by_heart() -> None:
    known = put(Loss=lambda i: 2.3 if i < 4 else 0.002, accuracy=1.0, label_rows=32)

    def looks(right: float):
        return lambda i: {"valid_accuracy": right, "valid_loss": 0.9}

    assert find(known, logged=looks(0.7), **LONG)["overfitting"].severity == "likely"
    assert "overfitting" not in find(known, logged=looks(0.95), **LONG)


def test_a_linear_network_explains_that_longer_steps_would_help() -> None:
    slow = both(at(0.8, 0.2, UpdateSize=5e-3, Distance=2.0), tried(8e-4, 0.9))
    linear = {"static_linear": 1, "static_linear_pairs": 2}
    assert "learning_rate_too_low" in find(slow, **LONG)
    told = find(slow, static=linear, **LONG)
    assert "learning_rate_too_low" not in told
    assert "learning_rate_too_low" in told["missing_nonlinearity"].explains


def test_decay_that_took_two_thirds_of_the_weights() -> None:
    decays = {"header": values_header(weight_decay="0.01"), **LONG}
    worn = put(Loss=lambda i: 0.35, target_std=1.0, ParamNorm=lambda i: 10 * 0.98**i, GradNormClipped=0.25)
    assert severity("weight_decay_too_high", worn, **decays) == "likely"
    little = both(worn, put(GradNormClipped=1.0))
    assert severity("weight_decay_too_high", little, **decays) == "", "it pulls at 3 % of the gradient"


def test_a_loss_that_rises_in_the_end() -> None:
    rising = put(Loss=lambda i: 0.5 if i < 50 else 1.1, accuracy=0.8, UpdateSize=0.15)
    assert severity("learning_rate_too_high", rising, **LONG) == "likely"
    assert severity("learning_rate_too_high", both(rising, put(UpdateSize=0.02)), **LONG) == "", "its steps are short"
    noisy = {"header": make_header("MSELoss"), **LONG}
    assert severity("learning_rate_too_high", both(rising, put(target_std=1.5)), **noisy) == "", (
        "a heavy tail does that"
    )


def test_weights_that_a_few_first_steps_of_rmsprop_have_lengthened() -> None:
    """A healthy run whose weights tripled, with a sixth of its loss left and nine of ten answers right."""
    assert severity("learning_rate_too_high", both(at(0.16, accuracy=0.91), grown(3.1)), **FRESH) == ""


def test_inputs_that_throw_the_first_loss_up() -> None:
    """Inputs four times too large, weights as usual: the first loss is six times that of a guess."""
    high = put(Loss=lambda i: 14.0 if i < 3 else 1.5, input_rms=4.0, activation_first=4.0, accuracy=0.5)
    told = find(high, **LONG)
    assert told["inputs_not_scaled"].severity == "likely"
    assert "init_too_large" not in told
    assert severity("inputs_not_scaled", both(high, put(input_rms=1.0)), **LONG) == ""


def test_gains_of_a_run_that_a_schedule_has_ended() -> None:
    """Its last steps are next to nothing, and so is what they take off the loss; all of them together did what trials promised."""
    ended = at(0.7, 0.0, UpdateSize=5e-5, Distance=1.0, LearningRate=lambda i: 0.1 * (1 - i / 60) + 1e-5)
    begun = put(Loss=lambda i: 2.3 * (0.7 + 0.3 * max(0.0, 1 - i / 40)))
    assert severity("learning_rate_too_low", both(ended, begun, tried(2e-3, 0.8)), **LONG) == "likely"
    assert severity("learning_rate_too_low", both(ended, begun, tried(2e-2, 0.8)), **LONG) == "", (
        "what they gain is lost"
    )


def test_one_answer_for_all_that_is_far_better_than_a_guess() -> None:
    """Frequencies are all that was learned, and the first layer gets a millionth of the gradient: still in the end."""
    rests = put(Loss=1.5, token_entropy=1.5, accuracy=0.15, Distance=1.0)
    small = vectors(GradNorm=[4e-7, 4e-7, 0.4, 0.4, 0.4, 0.4])
    assert find(rests, layers=small, **LONG)["vanishing_gradients"].severity == "likely"
    assert "vanishing_gradients" not in find(rests, layers=small, n=40), "it may be a plateau"
    assert "vanishing_gradients" not in find(both(rests, put(token_entropy=2.3)), layers=small, **LONG), (
        "more is learned"
    )
