"""Dear looks on suspicion: right numbers, made when asked for, and no trace of them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import cockpit_core
from cockpit_core.diagnoses.base import Diagnosis
from cockpit_core.recording.probes import FACTORS, PREFIX


def suspect(probe: str) -> Diagnosis:
    """A rule that wants a look at every step; not a class of its own, which all runs would have from then on."""
    rule = Diagnosis()
    rule.probe = probe  # type: ignore[misc]
    rule.suspects = lambda view: True  # type: ignore[method-assign]
    rule.test = lambda view: None  # type: ignore[method-assign]
    return rule


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.4), nn.Linear(12, 3))


def make_batches(count: int) -> list:
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(16, 6, generator=g), torch.randint(0, 3, (16,), generator=g)) for _ in range(count)]


def train(probe: str, logdir=None, steps: int = 30, optimizer=torch.optim.Adam, loss_fn=None):
    """The model, its optimizer, and per step: loss, parameters before and after, random state before the forward pass."""
    model, loss_fn = make_model(), loss_fn or nn.CrossEntropyLoss()
    made = optimizer(model.parameters(), lr=0.01)
    run = cockpit_core.track(model, loss_fn, made, logdir, config="economy", schedule=1) if logdir else None
    if run and probe:
        rules = run._tracker.log.live.judge.rules
        rules.clear()
        rules["suspicious"] = suspect(probe)
    seen = []
    torch.manual_seed(7)
    for x, y in make_batches(steps):
        state, before, kept = torch.get_rng_state(), copy.deepcopy(model.state_dict()), model.training
        made.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        made.step()
        assert model.training == kept
        seen.append((x, y, state, before, copy.deepcopy(model.state_dict()), loss.item()))
    if run:
        run.close()
    return model, made, seen


def evaluate(x, y, state, values, mode: bool = True) -> float:
    """By a model of its own."""
    model = make_model()
    model.load_state_dict(values)
    model.train(mode)
    here = torch.get_rng_state()
    torch.set_rng_state(state)
    loss = nn.functional.cross_entropy(model(x), y).item()
    torch.set_rng_state(here)
    return loss


def moved(before: dict, after: dict, factor: float) -> dict:
    """Parameters along the step; buffers as they were when the forward pass began."""
    names = {name for name, _ in make_model().named_parameters()}
    return {n: v + factor * (after[n] - v) if n in names else v for n, v in before.items()}


def test_line_has_the_losses_of_longer_and_shorter_steps(tmp_path):
    _, _, seen = train("line", tmp_path)
    data = cockpit_core.load(tmp_path)
    steps, _ = data.scalars(PREFIX + "whole")
    assert len(steps) >= 3
    for step in steps.tolist():
        x, y, state, before, after, _ = seen[step]
        for name, factor in FACTORS.items():
            known = dict(zip(*map(list, data.scalars(PREFIX + name)), strict=True))[step]
            assert known == pytest.approx(evaluate(x, y, state, moved(before, after, factor)), rel=1e-4)


def test_mode_has_the_loss_of_evaluation(tmp_path):
    _, _, seen = train("mode", tmp_path)
    data = cockpit_core.load(tmp_path)
    steps, values = data.scalars(PREFIX + "eval")
    assert len(steps) >= 3
    for step, value in zip(steps.tolist(), values.tolist(), strict=True):
        x, y, state, before, _, loss = seen[step]
        assert value == pytest.approx(evaluate(x, y, state, before, False), rel=1e-4)
        assert abs(value - loss) > 1e-3


@pytest.mark.parametrize("probe", ["line", "mode", "mean", "half"])
def test_probes_leave_no_trace(tmp_path, probe):
    plain, plain_optimizer, _ = train("")
    end = torch.get_rng_state()
    probed, optimizer, _ = train(probe, tmp_path)
    assert torch.equal(end, torch.get_rng_state())
    assert cockpit_core.load(tmp_path).scalars(PREFIX + probe)[1].min() == 1
    for (name, a), (_, b) in zip(plain.state_dict().items(), probed.state_dict().items(), strict=True):
        assert torch.equal(a, b), name
    for a, b in zip(plain_optimizer.state.values(), optimizer.state.values(), strict=True):
        assert all(torch.equal(a[key], b[key]) for key in a)
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(plain.parameters(), probed.parameters(), strict=True))


def test_they_become_rarer(tmp_path):
    train("line", tmp_path, steps=40)
    steps, _ = cockpit_core.load(tmp_path).scalars(PREFIX + "line")
    assert 3 <= len(steps) <= 5
    assert (steps < 8).sum() == 0


def test_one_that_cannot_be_made_is_said_and_harms_nobody(tmp_path):
    calls = tmp_path / "calls"  # what lies outside of memory is not put back

    class Moody(nn.Module):
        def forward(self, z, y):
            count = len(calls.read_text()) if calls.exists() else 0
            calls.write_text("x" * (count + 1))
            return nn.functional.cross_entropy(z, y) * (1 + count)

    train("line", tmp_path / "log", loss_fn=Moody())
    tried = cockpit_core.load(tmp_path / "log").scalars(PREFIX + "line")[1]
    assert len(tried) >= 3
    assert not tried.any()


def test_micro_batches_are_one_batch(tmp_path):
    torch.manual_seed(0)
    model, loss_fn = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run = cockpit_core.track(model, loss_fn, optimizer, tmp_path, config="economy", schedule=1)
    rules = run._tracker.log.live.judge.rules
    rules.clear()
    rules["suspicious"] = suspect("line")
    known = {}
    for step, (x, y) in enumerate(make_batches(30)):
        before = copy.deepcopy(model)
        optimizer.zero_grad()
        for part, labels in zip(x.chunk(2), y.chunk(2), strict=True):
            (loss_fn(model(part), labels) / 2).backward()
        optimizer.step()
        with torch.no_grad():
            for start, now in zip(before.parameters(), model.parameters(), strict=True):
                start.add_(4 * (now - start))
            known[step] = nn.functional.cross_entropy(before(x), y).item()
    run.close()
    steps, values = cockpit_core.load(tmp_path).scalars(PREFIX + "four")
    assert len(steps) >= 3
    assert values.tolist() == pytest.approx([known[step] for step in steps.tolist()], rel=1e-4)


def mean_of(x, y, state, values) -> float:
    """Of a model of its own: the loss where every sample gets the mean answer."""
    model = make_model()
    model.load_state_dict(values)
    here = torch.get_rng_state()
    torch.set_rng_state(state)
    with torch.no_grad():
        answers = model(x)
    torch.set_rng_state(here)
    return nn.functional.cross_entropy(answers.mean(0).expand_as(answers), y).item()


class Kept(nn.Module):
    """Counts, remembers and draws: all of it must be as if it had been called once a step."""

    def __init__(self):
        super().__init__()
        self.seen, self.calls = [], 0
        self.register_buffer("total", torch.zeros(()))

    def forward(self, z, y):
        self.calls += 1
        self.seen.append(float(z.detach().sum()))
        self.total += 1
        return nn.functional.cross_entropy(z + 0 * torch.rand(()), y)


def as_function(z, y):
    return nn.functional.cross_entropy(2 * z / 2, y)


@pytest.mark.parametrize("loss_fn", [nn.CrossEntropyLoss(), as_function])
def test_mean_has_the_loss_of_the_mean_answer(tmp_path, loss_fn):
    _, _, seen = train("mean", tmp_path, loss_fn=loss_fn)
    data = cockpit_core.load(tmp_path)
    steps, values = data.scalars(PREFIX + "mean_loss")
    assert len(steps) >= 3
    assert values.tolist() == pytest.approx([mean_of(*seen[step][:4]) for step in steps.tolist()], rel=1e-4)
    assert data.scalars(PREFIX + "loss")[1].tolist() == pytest.approx([seen[step][5] for step in steps.tolist()])


def test_mean_leaves_no_trace_in_a_loss_that_keeps_something(tmp_path):
    plain, probed = Kept(), Kept()
    model, _, _ = train("", loss_fn=plain)
    end = torch.get_rng_state()
    other, _, _ = train("mean", tmp_path, loss_fn=probed)
    assert torch.equal(end, torch.get_rng_state())
    assert cockpit_core.load(tmp_path).scalars(PREFIX + "mean")[1].min() == 1
    assert (plain.calls, plain.seen, plain.total) == (probed.calls, probed.seen, probed.total)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))


def test_mean_is_not_told_where_a_part_of_the_loss_has_no_answers(tmp_path):
    """A penalty would be in both losses; a model that gives its loss has no answers to replace."""
    torch.manual_seed(0)
    for place, penalty in (("a", True), ("b", False)):
        model = make_model()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-7)  # the penalty stays what it was

        class Whole(nn.Module):
            def __init__(self, inner):
                super().__init__()
                self.inner = inner

            def forward(self, x, y):
                return nn.functional.cross_entropy(self.inner(x), y)

        tracked = model if penalty else Whole(model)
        run = cockpit_core.track(tracked, as_function, optimizer, tmp_path / place, config="economy", schedule=1)
        run._tracker.log.live.judge.rules.clear()
        run._tracker.log.live.judge.rules["suspicious"] = suspect("mean")
        for x, y in make_batches(20):
            optimizer.zero_grad()
            (as_function(model(x), y) + model[0].weight.pow(2).sum() if penalty else tracked(x, y)).backward()
            optimizer.step()
        run.close()
        assert not cockpit_core.load(tmp_path / place).scalars(PREFIX + "mean")[1].any()
