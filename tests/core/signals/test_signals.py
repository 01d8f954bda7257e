"""Signals against slow truths in plain Python, for tidy and for odd inputs."""

from __future__ import annotations

import math
from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from cockpit_core.foundation import transfer
from cockpit_core.signals import activations, inputs, losses, outputs, reading, targets
from cockpit_core.signals.activations import choose_modules, summarise
from cockpit_core.signals.gradients import measure_reach, measure_steps_to_go
from cockpit_core.signals.outputs import measure_broadcast
from cockpit_core.signals.tensors import as_rows, find_tensor, list_tensors
from cockpit_core.signals.wiring import (
    check_wiring,
    find_constant,
    find_copies,
    find_linear_pairs,
    find_unoptimised,
    is_linear,
    read_rate,
)


def value_of(signal):
    """On the CPU a signal is read at once."""

    def read(*args, **options):
        return signal(*args, **options).value

    return read


measure_inputs, measure_checksum = value_of(inputs.measure_inputs), value_of(inputs.measure_checksum)
measure_labels, measure_targets = value_of(targets.measure_labels), value_of(targets.measure_targets)
measure_likeness, measure_constant = value_of(targets.measure_likeness), value_of(targets.measure_constant)
measure_outputs, measure_sums = value_of(outputs.measure_outputs), value_of(outputs.measure_sums)
measure_hits, measure_binary_hits = value_of(outputs.measure_hits), value_of(outputs.measure_binary_hits)
measure_activity, measure_spread = value_of(activations.measure_activity), value_of(losses.measure_spread)


def rms(values: list[float]) -> float:
    return math.sqrt(sum(v * v for v in values) / len(values))


def middle(values: list[float]) -> float:
    """Torch's median: of an even number the lower one."""
    return sorted(values)[(len(values) - 1) // 2]


def test_inputs_are_what_plain_python_says() -> None:
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 1, 1, 1, 50])
    rows = x.tolist()
    found = measure_inputs(x)
    flat = [v for row in rows for v in row]
    assert found["input_rms"] == pytest.approx(rms(flat), rel=1e-5)
    scales = [rms([row[j] for row in rows]) for j in range(5)]
    assert found["input_ratio"] == pytest.approx(max(scales) / middle(scales), rel=1e-5)
    centre = [middle([row[j] for row in rows]) for j in range(5)]
    lengths = [math.dist(row, centre) for row in rows]
    assert found["input_tail"] == pytest.approx(max(lengths) / middle(lengths), rel=1e-5)
    assert found["input_constant"] == 0


def test_inputs_that_are_not_finite_are_counted_and_left_out() -> None:
    found = measure_inputs(torch.tensor([[1.0, math.nan], [math.inf, 1.0]]))
    assert found["input_not_finite"] == 2
    assert found["input_rms"] == pytest.approx(math.sqrt(0.5))


def test_the_checksum_knows_the_same_batch_in_any_order() -> None:
    x = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    same = measure_checksum(x[torch.randperm(16, generator=torch.Generator().manual_seed(2))])["batch_checksum"]
    assert measure_checksum(x)["batch_checksum"] == pytest.approx(same, abs=1e-9)
    other = x.clone()
    other[3] *= 1.01
    assert abs(measure_checksum(other)["batch_checksum"] - same) > 1e-6
    twice = torch.cat([x[:8], x[:8]])
    assert measure_checksum(twice)["batch_duplicates"] == pytest.approx(8 / 15)
    tokens = torch.randint(0, 50, (4, 7), generator=torch.Generator().manual_seed(3))
    assert measure_checksum(tokens) == measure_checksum(tokens.clone())


def test_labels_are_counted() -> None:
    found = measure_labels(torch.tensor([0, 0, 0, 2]), 4)
    assert found["label_top_share"] == 0.75
    assert found["label_entropy"] == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
    assert found["target_mean"] == 0.5
    assert found["target_variance"] == pytest.approx(0.75)
    assert found["target_rows"] == 4
    tokens = measure_labels(torch.tensor([[1, -100], [3, 3]]), 2, -100)
    assert tokens["label_count"] == 3
    assert "label_entropy" not in tokens, "tokens of one sample go together"
    assert measure_labels(torch.tensor([-100]), 1, -100) == {}


def test_targets_are_described_by_their_median_size() -> None:
    y = torch.tensor([[1.0], [-2.0], [3.0], [1000.0]])
    found = measure_targets(y)
    assert found["target_scale"] == 2
    assert found["target_max"] == 1000
    assert found["target_mean"] == pytest.approx(250.5)
    assert found["target_rows"] == 4
    assert found["target_std"] == pytest.approx(y.double().std().item())


def test_rows_and_columns_that_add_up_to_one() -> None:
    z = torch.randn(6, 4, generator=torch.Generator().manual_seed(4))
    assert measure_sums(z)["row_sum_error"] == pytest.approx(max(abs(sum(row) - 1) for row in z.tolist()), rel=1e-5)
    assert measure_sums(z.softmax(1))["row_sum_error"] < 1e-6
    assert measure_sums(z.softmax(0))["column_sum_error"] < 1e-6
    assert measure_sums(z.log_softmax(1))["row_log_sum_error"] < 1e-6
    assert measure_sums(torch.randn(6, 4, 5).softmax(1))["row_sum_error"] < 1e-6
    assert measure_sums(z[:, :1]) == {}


def test_shapes_that_broadcast() -> None:
    assert measure_broadcast(torch.zeros(8, 1), torch.zeros(8)) == {"broadcast": 8.0}
    assert measure_broadcast(torch.zeros(8, 1), torch.zeros(8, 1))["broadcast"] == 1
    assert measure_broadcast(torch.zeros(8, 1), torch.tensor(1.0))["broadcast"] == 1
    assert measure_broadcast(torch.zeros(3), torch.zeros(4)) == {}


def test_outputs_and_hits() -> None:
    z = torch.tensor([[1.0, 0], [0, 1], [0, 2], [3, 0]])
    assert measure_outputs(z)["output_max"] == 3
    columns = [[1, 0, 0, 3], [0, 1, 2, 0]]
    variance = sum(sum((v - sum(c) / 4) ** 2 for v in c) / 4 for c in columns) / 2
    assert measure_outputs(z)["output_spread"] == pytest.approx(math.sqrt(variance), rel=1e-5)
    assert measure_hits(z, torch.tensor([0, 1, 0, 0]))["accuracy"] == 0.75
    binary = measure_binary_hits(torch.tensor([-1.0, 2, 3, -4]), torch.tensor([0.0, 1, 0, 0]), 0.0)
    assert binary == {"accuracy": 0.75, "label_top_share": 0.75}


def test_dead_and_saturated_units() -> None:
    x = torch.rand(16, 10, generator=torch.Generator().manual_seed(5))
    x[:, :4] = 0
    assert measure_activity(x, nn.ReLU()).dead == pytest.approx(0.4)
    pictures = torch.rand(16, 6, 8, 8)
    pictures[:, 0] = 0
    assert measure_activity(pictures, nn.ReLU()).dead == pytest.approx(1 / 6)
    text = torch.rand(16, 7, 12)  # [B, T, C]: a position that is dead everywhere is no dead unit
    text[:, :, :6] = 0
    assert measure_activity(text, nn.GELU()).dead in (0.0, 0.5)
    ends = torch.tensor([[0.001, 0.5], [0.999, 0.5], [0.5, 0.5], [0.5, 0.4]])
    assert measure_activity(ends, nn.Sigmoid()).saturated == pytest.approx(0.25)
    assert math.isnan(measure_activity(ends, nn.ReLU()).saturated)
    assert measure_activity(torch.zeros(1, 5), nn.ReLU()) is None, "one sample says nothing"
    worst = summarise([measure_activity(x, nn.ReLU()), measure_activity(pictures, nn.ReLU())])
    assert worst["dead_where"] == 0


def test_functional_activations_are_seen_at_the_next_layer() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    assert [at_output for _, at_output in choose_modules(net).values()] == [False, False]
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    assert list(choose_modules(net).values()) == [("1", True)]
    assert len(choose_modules(nn.Sequential(*[nn.ReLU() for _ in range(200)]))) <= 16


def test_how_far_the_backward_pass_came() -> None:
    places = {"a": 0, "b": 1, "c": 2}
    found = measure_reach(["a", "b", "c"], {"c": 1.0}, places)
    assert (found["ungraded_prefix"], found["ungraded_none"], found["ungraded_where"]) == (2, 2, 1)
    side = measure_reach(["a", "b", "c"], {"a": 1.0, "b": 1.0}, places)
    assert side["ungraded_prefix"] == 0, "a branch that the loss does not look at"
    assert measure_reach(["a", "b"], {"a": 0.0, "b": 1.0}, places)["ungraded_none"] == 0, "zero is not none"
    assert measure_reach([], {}, {}) == {}


def test_steps_to_go_and_spread() -> None:
    assert measure_steps_to_go(2.0, -0.5, 0.1) == {"steps_to_go": pytest.approx(40)}
    assert measure_steps_to_go(2.0, 0.0, 0.1) == {}
    assert measure_spread(torch.tensor([1.0, 2, 3]))["loss_std"] == pytest.approx(1)
    assert measure_spread(torch.tensor([1.0])) == {}


def test_tensors_are_found_in_any_structure() -> None:
    Pair = namedtuple("Pair", "x y")
    graph = SimpleNamespace(x=torch.zeros(5, 3), edge_index=torch.zeros(2, 9, dtype=torch.long), name="g")
    nested = {"a": [Pair(torch.zeros(2), None)], "b": graph, "c": 3, "d": "text", "e": torch.zeros(0)}
    assert len(list_tensors(nested)) == 3
    assert find_tensor(nested, 5, True).shape == (5, 3)
    assert find_tensor(nested, 5, False).shape == (2, 9)
    assert find_tensor({"n": 1}, 5, True) is None
    circle: dict = {}
    circle["self"] = circle
    assert list_tensors(circle) == []
    assert as_rows(torch.zeros(100_000, 3)).numel() <= 3 * 32768
    last = torch.rand(8, 3, 128, 128).to(memory_format=torch.channels_last)
    assert as_rows(last).numel() <= 2 * 32768
    assert float(as_rows(last).mean()) == pytest.approx(0.5, abs=0.02)


def test_the_wiring_of_a_network() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.9), nn.Linear(8, 2), nn.Softmax(1))
    nn.init.zeros_(net[4].weight)
    optimizer = torch.optim.SGD([*net[0].parameters(), nn.Parameter(torch.zeros(3))], lr=0.1)
    found = check_wiring(net, nn.CrossEntropyLoss(reduction="sum"), [optimizer])
    assert found["static_sum"] == 1
    assert found["static_unoptimized"] == 4
    assert found["static_foreign"] == 1
    assert found["static_dropout"] == 0.9
    assert (found["static_constant"], found["static_matrices"]) == (1, 3)
    assert found["static_softmax_last"] == 1
    assert find_linear_pairs(net) == ["1"]
    assert find_unoptimised(net, [optimizer])[0] == "1.weight"
    assert find_constant(net) == (["4.weight"], 3)
    assert find_linear_pairs(nn.Sequential(nn.Linear(64, 4), nn.Linear(4, 64))) == [], "a low-rank factor"
    assert is_linear(nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Dropout(0.1), nn.Linear(8, 2)))
    assert not is_linear(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)))
    assert not is_linear(nn.Linear(4, 2)), "logistic regression is meant so"


def test_a_feature_that_is_the_target() -> None:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(16, 5, generator=g), torch.randint(0, 3, (16,), generator=g)
    assert measure_likeness(x, y)["input_target"] < 0.99
    x[:, 2] = 7 - 2 * y
    found = measure_likeness(x, y)
    assert found["input_target"] == pytest.approx(1)
    assert found["input_target_where"] == 2
    truth = np.corrcoef(x[:, 4].numpy(), y.numpy())[0, 1]
    assert measure_likeness(x[:, [4, 4]], y)["input_target"] == pytest.approx(abs(truth))
    assert measure_likeness(x, x) == {}
    assert measure_likeness(x[:4], y[:4]) == {}


def test_a_tie_that_is_a_copy() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(9, 4), "head": nn.Linear(4, 9, bias=False)})
    assert find_copies(model) == []
    with torch.no_grad():
        model["head"].weight.copy_(model["embed"].weight)
    assert find_copies(model) == ["embed.weight", "head.weight"]
    model["head"].weight = model["embed"].weight
    assert find_copies(model) == []
    zeros = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5))
    for p in zeros.parameters():
        nn.init.zeros_(p)
    assert find_copies(zeros) == []
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2, enable_nested_tensor=False)
    assert find_copies(encoder) == [], "torch makes blocks as copies of one"


def test_the_rate_before_the_first_step() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.5)
    assert read_rate([optimizer]) == {"static_rate": 0.5, "static_scheduled": 0.0}
    torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    assert read_rate([optimizer])["static_scheduled"] == 1.0


@pytest.mark.parametrize("loss_fn", [nn.L1Loss(), nn.SmoothL1Loss(beta=0.5), nn.HuberLoss(delta=2.0)])
def test_the_loss_of_always_giving_the_median(loss_fn: nn.Module) -> None:
    y = 3 * torch.randn(15, 2, generator=torch.Generator().manual_seed(0))
    centre = torch.tensor([middle(y[:, j].tolist()) for j in range(2)])
    assert measure_constant(loss_fn, y)["target_chance"] == pytest.approx(float(loss_fn(centre.expand_as(y), y)))
    assert measure_constant(nn.MSELoss(), y) == {}


def test_from_another_device_everything_comes_with_one_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in: tensors of the CPU that are said to lie elsewhere. What is written into them meanwhile is not seen."""
    g = torch.Generator().manual_seed(0)
    x, labels, yes = torch.randn(9, 5, generator=g), torch.randint(0, 4, (9,), generator=g), torch.rand(9) > 0.5
    bytes_ = torch.randint(0, 9, (9,), generator=g, dtype=torch.uint8)  # odd sizes before numbers of eight bytes
    calls = [
        (targets.measure_labels, (bytes_, 9)),
        (targets.measure_labels, (labels, 9)),
        (inputs.measure_inputs, (x,)),
        (inputs.measure_checksum, (x,)),
        (outputs.measure_hits, (x, labels)),
        (outputs.measure_binary_hits, (x[:, 0], yes.float(), 0.0)),
        (outputs.measure_outputs, (x.bfloat16(),)),
        (outputs.measure_sums, (x,)),
        (targets.measure_targets, (x.double(),)),
        (activations.measure_activity, (x.half(), nn.Sigmoid())),
        (losses.measure_spread, (x[:, 0],)),
        (outputs.measure_hits, (x, labels[:3])),
    ]
    here = [signal(*args).value for signal, args in calls]
    monkeypatch.setattr(reading, "are_here", lambda tensors: False)
    monkeypatch.setattr(transfer, "is_here", lambda tensor: False)
    away = [signal(*args) for signal, args in calls]
    assert [one.is_done for one in away] == [False] * 11 + [True]
    x.zero_()
    transfers = []
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: transfers.append(tensor) or tensor)
    for one, arrays in reading.fetch(away, transfer.Transfer()):
        one.answer(arrays)
    assert len(transfers) == 1
    assert [one.value for one in away] == here


@pytest.mark.parametrize("count", [1, 2, 7, 128, 1024, 1025, 4096])
@pytest.mark.parametrize("broken", [False, True])
def test_the_lower_median_is_that_of_torch(count: int, broken: bool) -> None:
    values = np.random.default_rng(0).normal(size=(3, count)).astype(np.float32)
    if broken:
        values[1, count // 2] = np.nan
    truth = torch.from_numpy(values).median(dim=1).values.numpy()
    np.testing.assert_array_equal(reading.lower_median(values), truth)
