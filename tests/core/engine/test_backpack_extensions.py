"""Extensions of BackPACK that a quantity names: the right values or a reason, and no trace of them anywhere."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from backpack import backpack, extend
from backpack.context import CTX
from backpack.extensions import (
    HMP,
    KFLR,
    BatchGrad,
    BatchL2Grad,
    DiagGGNExact,
    DiagGGNMC,
    DiagHessian,
    SumGradSquared,
    Variance,
)
from torch import Tensor, nn

import cockpit_core
from cockpit_core.backpack import GradientStatistics
from cockpit_core.quantities.base import Quantity, Statistics
from tests import slow_truth
from tests.core.engine.test_neutrality import assert_bit_for_bit, everything
from tests.problems import build_mlp
from tests.training import start

EXAMPLE = Path(__file__).parents[3] / "examples" / "backpack_quantity.py"


class Spy(Quantity):
    """Keeps what it is given, or why it is given nothing."""

    needs: tuple[Any, ...] = (DiagGGNExact(), DiagHessian(), BatchGrad(), SumGradSquared())

    def __init__(self, *needs: Any, **options: Any) -> None:
        super().__init__(**options)
        self.__class__ = type("Spy", (Spy,), {"needs": needs or self.needs})
        self._seen: list[dict[str, Any]] = []

    def measure(self, statistics: Statistics) -> float:
        found = statistics.backpack
        self._seen.append({name: found.reasons.get(name) or dict(found[name]) for name in (*found, *found.reasons)})
        return 0.0


def train(training: Any, logdir: Path, spy: Spy, steps: int = 2) -> list[dict[str, Any]]:
    with training.track(logdir, config=[spy]):
        training.run(training.batches(steps))
    return spy._seen


def watch(problem: str, steps: int = 2) -> list[slow_truth.Moment]:
    training = start(problem)
    return slow_truth.watch_loop(training.model, training.loss_fn, training.optimizer, training.batches(steps))


@pytest.mark.parametrize("problem", ["mlp", "cnn", "regression", "dropout", "sum_reduction", "mse_sum", "frozen"])
def test_values_are_those_of_the_slow_truth(problem: str, tmp_path: Path) -> None:
    seen = train(start(problem), tmp_path / "run", Spy())
    for values, moment in zip(seen, watch(problem), strict=True):
        names, B = list(values["grad_batch"]), len(moment.targets)
        assert names == list(moment.parameters())
        individual = slow_truth.individual_gradients(moment)
        for field, truth in (("diag_ggn_exact", slow_truth.gauss_newton), ("diag_h", slow_truth.hessian)):
            mine = slow_truth.flatten(values[field].values()).numpy()
            np.testing.assert_allclose(mine, np.diag(truth(moment, names)), rtol=1e-6, atol=1e-12)
        for name in names:
            scaled = individual[name] / B  # BackPACK's add up to the gradient
            torch.testing.assert_close(values["grad_batch"][name], scaled, rtol=1e-7, atol=1e-12)
            torch.testing.assert_close(values["sum_grad_squared"][name], (scaled**2).sum(0), rtol=1e-7, atol=1e-12)


def test_kronecker_factors_of_one_sample_are_the_block_of_the_curvature(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, loss_fn = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double(), nn.CrossEntropyLoss()
    optimizer, spy = torch.optim.SGD(model.parameters(), lr=0.1), Spy(KFLR())
    inputs, targets = torch.randn(1, 3).double(), torch.tensor([1])
    moment = slow_truth.freeze(model, loss_fn, inputs, targets)
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", config=[spy], on_error="raise"):
        loss_fn(model(inputs), targets).backward()
        optimizer.step()
    outputs, features = spy._seen[0]["kflr"]["0.weight"]
    block = torch.kron(outputs, features).numpy()
    np.testing.assert_allclose(block, slow_truth.gauss_newton(moment, ["0.weight"]), rtol=1e-6, atol=1e-12)


def test_a_loss_that_is_a_function_gives_the_same(tmp_path: Path) -> None:
    expected = train(start("mlp"), tmp_path / "module", Spy())
    for number, scale in enumerate((1.0, 2.0)):
        training, spy = start("mlp"), Spy()
        run = cockpit_core.track(training.model, None, training.optimizer, tmp_path / str(number), config=[spy])
        with run:
            for inputs, targets in training.batches(2):
                training.optimizer.zero_grad()
                (F.cross_entropy(training.model(inputs), targets) * scale / scale).backward()
                training.optimizer.step()
        for mine, known in zip(spy._seen, expected, strict=True):
            for field, values in known.items():
                torch.testing.assert_close(mine[field], values)


# ---- no trace ------------------------------------------------------------------------------------------------------


def attributes(model: nn.Module) -> dict[str, Any]:
    """What BackPACK might leave: attributes, hooks, marks on parameters."""
    found: dict[str, Any] = {name: sorted(vars(module)) for name, module in model.named_modules()}
    found["full"] = [module._is_full_backward_hook for module in model.modules()]
    found["hooks"] = [len(m._forward_hooks) + len(m._backward_hooks) for m in model.modules()]
    found["marks"] = [sorted(vars(p)) for p in model.parameters()]
    return found


@pytest.mark.parametrize("problem", ["dropout", "batchnorm", "cnn", "tied"])
def test_training_is_bit_for_bit_the_same_and_nothing_stays(problem: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = start(problem, "momentum")
        losses = plain.run(plain.batches(4))
        tracked = start(problem, "momentum")  # seeds the generator again
        before, handles, active = attributes(tracked.model), list(CTX.hook_handles), CTX.get_active_exts()
        with tracked.track(tmp_path / "run", config=[Spy(DiagGGNMC(), BatchGrad(), Variance())], schedule=2):
            found = tracked.run(tracked.batches(4))
    assert_bit_for_bit(
        everything(tracked.model, tracked.optimizer, found), everything(plain.model, plain.optimizer, losses)
    )
    assert attributes(tracked.model) == before
    assert CTX.hook_handles == handles
    assert CTX.get_active_exts() is active


def run_user(training: Any, *, tracked: bool, logdir: Path) -> tuple[list[Tensor], Spy]:
    """Somebody who uses BackPACK himself, also around the step."""
    model, loss_fn, spy, kept = extend(training.model), extend(training.loss_fn), Spy(DiagHessian(), BatchL2Grad()), []
    run = training.track(logdir, config=[spy]) if tracked else None
    for inputs, targets in training.batches(2):
        training.optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        with backpack(DiagGGNExact(), BatchGrad()):
            loss.backward()
            training.optimizer.step()
        kept += [p.diag_ggn_exact.clone() for p in model.parameters()]
        kept += [p.grad_batch.clone() for p in model.parameters()]
        assert [sorted(vars(p)) for p in model.parameters()] == [["diag_ggn_exact", "grad_batch"]] * 4
    if run is not None:
        run.close()
    return kept, spy


@pytest.mark.filterwarnings("ignore:Full backward hook")
def test_the_users_own_backpack_is_not_disturbed(tmp_path: Path) -> None:
    expected, _ = run_user(start("mlp"), tracked=False, logdir=tmp_path)
    found, spy = run_user(start("mlp"), tracked=True, logdir=tmp_path / "run")
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))
    for values, moment in zip(spy._seen, watch("mlp"), strict=True):
        assert isinstance(values["diag_h"], dict), values["diag_h"]
        mine = slow_truth.flatten(values["diag_h"].values()).numpy()
        np.testing.assert_allclose(mine, np.diag(slow_truth.hessian(moment, values["diag_h"])), rtol=1e-6, atol=1e-12)


# ---- where BackPACK cannot -----------------------------------------------------------------------------------------


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


class Tailed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 5), nn.Sigmoid(), nn.Linear(5, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) * 2


REFUSED = {
    "function between modules": (Functional, nn.CrossEntropyLoss, "Tanh stands before second"),
    "function at the end": (Tailed, nn.CrossEntropyLoss, "Mul stands after the modules"),
    "label smoothing": (build_mlp, lambda: nn.CrossEntropyLoss(label_smoothing=0.1), "label_smoothing"),
    "class weights": (build_mlp, lambda: nn.CrossEntropyLoss(torch.ones(4).double()), "BackPACK cannot"),
    "another loss": (build_mlp, nn.MultiMarginLoss, "MultiMarginLoss"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_second_order_has_a_reason_and_first_order_a_value(case: str, tmp_path: Path) -> None:
    build, make_loss, words = REFUSED[case]
    torch.manual_seed(0)
    model, loss_fn, spy = build().double(), make_loss(), Spy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", config=[spy], on_error="raise"):
        inputs, targets = torch.randn(5, 6).double(), torch.randint(4, (5,))
        moment = slow_truth.freeze(model, loss_fn, inputs, targets)
        loss_fn(model(inputs), targets).backward()
        optimizer.step()
    (values,) = spy._seen
    assert words in values["diag_ggn_exact"]
    assert words in values["diag_h"]
    if case != "another loss":
        for name, individual in slow_truth.individual_gradients(moment).items():
            torch.testing.assert_close(values["grad_batch"][name] * 5, individual)


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        ("called_twice", "again is called 2 times"),
        ("tied", "belongs to several modules"),
        ("residual_tanh", "Add stands before 3"),
        ("ignored", "label_smoothing"),
    ],
)
def test_networks_that_backpack_would_get_wrong_have_a_reason(problem: str, words: str, tmp_path: Path) -> None:
    for values in train(start(problem), tmp_path / "run", Spy(DiagGGNExact())):
        assert words in values["diag_ggn_exact"] or "stands before" in values["diag_ggn_exact"]
    first = train(start(problem), tmp_path / "first", Spy(BatchGrad()))
    if problem in ("called_twice", "tied"):
        assert words in first[0]["grad_batch"]


def test_a_parameter_without_a_value_leaves_no_sum_over_the_others(tmp_path: Path) -> None:
    seen = train(start("tied"), tmp_path / "run", Spy(BatchL2Grad()))
    assert "first.weight belongs to several modules" in seen[0]["batch_l2"]


def test_micro_batches_are_refused(tmp_path: Path) -> None:
    training, spy = start("mlp"), Spy()
    with training.track(tmp_path / "run", config=[spy]):
        for inputs, targets in training.batches(2):
            (training.loss_fn(training.model(inputs), targets) / 2).backward()
        training.optimizer.step()
    assert "2 backward passes" in spy._seen[0]["grad_batch"]


def test_a_factor_on_the_loss_is_not_overlooked(tmp_path: Path) -> None:
    training, spy = start("mlp"), Spy()
    with training.track(tmp_path / "run", config=[spy]):
        ((inputs, targets),) = training.batches(1)
        (training.loss_fn(training.model(inputs), targets) * 3).backward()
        training.optimizer.step()
    assert "with a factor" in spy._seen[0]["diag_ggn_exact"]
    gradient = training.model[0].bias.grad
    torch.testing.assert_close(spy._seen[0]["grad_batch"]["0.bias"].sum(0), gradient)


class Other(Quantity):
    needs = (DiagGGNMC(mc_samples=3),)


class Names:
    """Bad input, and what the error says."""

    CASES = (
        ((DiagGGNExact,), "write DiagGGNExact()"),
        ((3,), "takes words and instances of backpack.extensions, got 3"),
        ((HMP(),), "HMP, which gives functions"),
    )


@pytest.mark.parametrize(("needs", "words"), Names.CASES)
def test_bad_needs_are_named(needs: tuple, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Spy\.needs") as caught:
        start("mlp").track(tmp_path / "run", config=[Spy(*needs)])
    assert words in str(caught.value)


def test_one_extension_with_two_options_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="different options"):
        start("mlp").track(tmp_path / "run", config=[Spy(DiagGGNMC(mc_samples=1)), Other()])


# ---- the example, and our own rules --------------------------------------------------------------------------------


def test_the_example_agrees_with_our_own_criterion(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("backpack_quantity", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    training = start("mlp")
    own = cockpit_core.quantities.TICDiag(curvature="ggn")
    with training.track(tmp_path / "run", config=[module.TakeuchiOfGGN(), own]) as run:
        training.run(training.batches(3))
    ported, mine = run.data.scalars("TakeuchiOfGGN")[1], run.data.scalars("TICDiag")[1]
    assert len(ported) == 3
    np.testing.assert_allclose(ported, mine, rtol=1e-6)


def test_our_own_rules_may_be_named_too(tmp_path: Path) -> None:
    seen = train(start("cnn"), tmp_path / "run", Spy(GradientStatistics(norms=True), BatchL2Grad()))
    for name, norms in seen[0]["batch_l2"].items():
        B = len(norms)
        torch.testing.assert_close(seen[0]["gradient_statistics"][name].norms, norms * B**2)
