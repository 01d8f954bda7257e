"""Every loss of torch, mean and sum: individual losses and gradients add up to what the user differentiates."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cockpit_core
from tests import slow_truth
from tests.training import by_step, loop, quantities

B = 6


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(11))


def signs(*shape: int) -> Tensor:
    return torch.where(randn(*shape) > 0, 1.0, -1.0).double()


def labels(*shape: int) -> Tensor:
    return torch.randint(3, shape, generator=torch.Generator().manual_seed(12))


def ignoring_some(target: Tensor) -> Tensor:
    return torch.where(torch.arange(target.numel()).reshape(target.shape) % 4 == 1, -100, target)


@dataclass(frozen=True)
class LossCase:
    """A loss, what it is given besides the prediction, and what turns a Linear's output into a legal prediction."""

    build: Callable[..., nn.Module]
    arguments: tuple[Tensor, ...]
    ending: tuple[nn.Module, ...] = ()
    outputs: int = 3
    positions: bool = False  # the prediction is [B, 3, 4]: several positions belong to one sample


WEIGHT = torch.tensor([0.3, 1.0, 2.0], dtype=torch.float64)
CASES = {
    "L1Loss": LossCase(nn.L1Loss, (randn(B, 3),)),
    "MSELoss": LossCase(nn.MSELoss, (randn(B, 3),)),
    "MSELoss on vectors": LossCase(nn.MSELoss, (randn(B),), (nn.Flatten(0),), outputs=1),
    "CrossEntropyLoss": LossCase(nn.CrossEntropyLoss, (labels(B),)),
    "CrossEntropyLoss weight": LossCase(lambda **o: nn.CrossEntropyLoss(WEIGHT, **o), (labels(B),)),
    "CrossEntropyLoss ignore_index": LossCase(nn.CrossEntropyLoss, (ignoring_some(labels(B)),)),
    "CrossEntropyLoss smoothing": LossCase(lambda **o: nn.CrossEntropyLoss(label_smoothing=0.2, **o), (labels(B),)),
    "CrossEntropyLoss all three": LossCase(
        lambda **o: nn.CrossEntropyLoss(WEIGHT, label_smoothing=0.2, **o), (ignoring_some(labels(B)),)
    ),
    "CrossEntropyLoss probabilities": LossCase(nn.CrossEntropyLoss, (randn(B, 3).softmax(1),)),
    "CrossEntropyLoss positions": LossCase(nn.CrossEntropyLoss, (ignoring_some(labels(B, 4)),), positions=True),
    "NLLLoss": LossCase(nn.NLLLoss, (labels(B),), (nn.LogSoftmax(1),)),
    "NLLLoss weight": LossCase(lambda **o: nn.NLLLoss(WEIGHT, ignore_index=1, **o), (labels(B),), (nn.LogSoftmax(1),)),
    "PoissonNLLLoss": LossCase(nn.PoissonNLLLoss, (randn(B, 3).exp(),)),
    "GaussianNLLLoss": LossCase(nn.GaussianNLLLoss, (randn(B, 3), randn(B, 3).exp())),
    "KLDivLoss": LossCase(nn.KLDivLoss, (randn(B, 3).softmax(1),), (nn.LogSoftmax(1),)),
    "BCELoss": LossCase(nn.BCELoss, (randn(B, 3).sigmoid(),), (nn.Sigmoid(),)),
    "BCEWithLogitsLoss": LossCase(nn.BCEWithLogitsLoss, (randn(B, 3).sigmoid(),)),
    "BCEWithLogitsLoss pos_weight": LossCase(
        lambda **o: nn.BCEWithLogitsLoss(pos_weight=WEIGHT, **o), (randn(B, 3).sigmoid(),)
    ),
    "HuberLoss": LossCase(nn.HuberLoss, (randn(B, 3),)),
    "SmoothL1Loss": LossCase(nn.SmoothL1Loss, (randn(B, 3),)),
    "SoftMarginLoss": LossCase(nn.SoftMarginLoss, (signs(B, 3),)),
    "HingeEmbeddingLoss": LossCase(nn.HingeEmbeddingLoss, (signs(B, 3),)),
    "MultiMarginLoss": LossCase(nn.MultiMarginLoss, (labels(B),)),
    "MultiMarginLoss weight": LossCase(lambda **o: nn.MultiMarginLoss(weight=WEIGHT, **o), (labels(B),)),
    "MultiLabelMarginLoss": LossCase(nn.MultiLabelMarginLoss, (torch.tensor([[2, 0, -1]] * B),)),
    "MultiLabelSoftMarginLoss": LossCase(nn.MultiLabelSoftMarginLoss, (signs(B, 3).clamp(0),)),
    "CosineEmbeddingLoss": LossCase(nn.CosineEmbeddingLoss, (randn(B, 3), signs(B))),
    "MarginRankingLoss": LossCase(nn.MarginRankingLoss, (randn(B), signs(B)), (nn.Flatten(0),), outputs=1),
    "TripletMarginLoss": LossCase(nn.TripletMarginLoss, (randn(B, 3), -randn(B, 3))),
    "TripletMarginWithDistanceLoss": LossCase(nn.TripletMarginWithDistanceLoss, (randn(B, 3), -randn(B, 3))),
}
# They do not take (prediction, target) of B samples each, or bring parameters of their own; newest torch has the last.
REFUSABLE = {"CTCLoss", "AdaptiveLogSoftmaxWithLoss", "LinearCrossEntropyLoss"}


class Positions(nn.Module):
    """[B, 12] to [B, 3, 4]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(-1, 3, 4)


def build_model(case: LossCase) -> nn.Module:
    outputs = 12 if case.positions else case.outputs
    ending = (Positions(),) if case.positions else case.ending
    return nn.Sequential(nn.Linear(4, outputs), *ending).double()


def true_samples(
    case: LossCase, model: nn.Module, inputs: Tensor, reduction: str
) -> tuple[float, np.ndarray, np.ndarray]:
    """The loss, the individual losses [B] and gradients [B, D]: each sample alone, in its share of the whole."""
    whole = case.build(reduction=reduction)(model(inputs), *case.arguments)
    gradient = slow_truth.flatten(torch.autograd.grad(whole, list(model.parameters())))
    total = case.build(reduction="sum")
    alone = [total(model(inputs[n : n + 1]), *(a[n : n + 1] for a in case.arguments)) for n in range(B)]
    share = (whole / sum(alone)).item()
    G = [slow_truth.flatten(torch.autograd.grad(l_n, list(model.parameters()))) for l_n in alone]
    G = B * share * torch.stack(G).numpy()
    np.testing.assert_allclose(G.mean(0), gradient.numpy(), atol=1e-12)
    return whole.item(), B * share * np.array([l_n.item() for l_n in alone]), G


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")  # torch's own word on the mean of KLDivLoss
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", CASES)
def test_loss_is_taken_apart_rightly(name: str, reduction: str, tmp_path: Path) -> None:
    case, inputs = CASES[name], randn(B, 4)
    model, loss_fn = build_model(case), case.build(reduction=reduction)
    expected, losses, G = true_samples(case, model, inputs, reduction)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    config = quantities("Loss", "GradNorm", "NormTest", "InnerTest", "MeanGSNR", "Alpha")
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", config=config, on_error="raise") as run:
        for _ in range(2):
            optimizer.zero_grad()
            loss_fn(model(inputs), *case.arguments).backward()
            optimizer.step()
    assert by_step(run.data, "Loss")[0] == pytest.approx(expected)
    assert by_step(run.data, "GradNorm")[0] == pytest.approx(slow_truth.grad_norm(G))
    assert by_step(run.data, "NormTest")[0] == pytest.approx(slow_truth.norm_test(G))
    assert by_step(run.data, "InnerTest")[0] == pytest.approx(slow_truth.inner_test(G))
    assert by_step(run.data, "MeanGSNR")[0] == pytest.approx(slow_truth.mean_gsnr(G))
    (fit,) = run.data.alphas
    assert fit.loss_var_start == pytest.approx(losses.var(ddof=1) or 1e-10)


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize(
    "name", ["MSELoss", "CrossEntropyLoss", "BCEWithLogitsLoss", "KLDivLoss", "CrossEntropyLoss weight"]
)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_curvature_of_each_loss_is_that_of_the_scalar_that_is_differentiated(
    name: str, reduction: str, tmp_path: Path
) -> None:
    case, inputs = CASES[name], randn(B, 4)
    model, loss_fn = build_model(case), case.build(reduction=reduction)
    moment = slow_truth.freeze(model, loss_fn, inputs, case.arguments[0])
    H = slow_truth.hessian(moment, list(moment.parameters()))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    config = quantities("HessTrace", "HessMaxEV")
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", config=config, on_error="raise") as run:
        loop(model, loss_fn, optimizer, [(inputs, case.arguments[0])])
    assert by_step(run.data, "HessTrace")[0] == pytest.approx(np.trace(H), rel=1e-5)
    assert by_step(run.data, "HessMaxEV")[0] == pytest.approx(np.linalg.eigvalsh(H)[-1], rel=1e-3)


def test_mean_over_the_batch_of_a_divergence_is_a_mean_over_samples(tmp_path: Path) -> None:
    case = LossCase(nn.KLDivLoss, (randn(B, 3).softmax(1),), (nn.LogSoftmax(1),))
    model, inputs, loss_fn = build_model(case), randn(B, 4), nn.KLDivLoss(reduction="batchmean")
    _, losses, G = true_samples(case, model, inputs, "batchmean")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    config = quantities("NormTest", "Alpha")
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", config=config, on_error="raise") as run:
        loop(model, loss_fn, optimizer, [(inputs, case.arguments[0])] * 2)
    assert by_step(run.data, "NormTest")[0] == pytest.approx(slow_truth.norm_test(G))
    assert run.data.alphas[0].loss_var_start == pytest.approx(losses.var(ddof=1))


def test_every_loss_of_torch_is_in_the_list() -> None:
    """A loss that torch adds later shows up here, so that somebody decides what to do with it."""
    losses = {name for name in dir(nn) if name.endswith("Loss")} - {"NLLLoss2d"}
    assert losses - REFUSABLE == {name.split()[0] for name in CASES}


def explain(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def run_or_refuse(loss_fn: nn.Module, model: nn.Module, call: Callable[[], Tensor], logdir: Path) -> object:
    """The run, or the message with which the loss was refused: at track(), or once as a warning."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    config = quantities("Loss", "GradNorm", "NormTest")
    try:
        with cockpit_core.track(model, loss_fn, optimizer, logdir, config=config) as run:
            optimizer.zero_grad()
            call().backward()
            optimizer.step()
    except (ValueError, TypeError, NotImplementedError, UserWarning) as error:
        return explain(error)
    return run


def test_loss_without_reduction_is_handled_or_refused_clearly(tmp_path: Path) -> None:
    model, inputs, target, loss_fn = (
        nn.Linear(4, 3).double(),
        randn(B, 4),
        labels(B),
        nn.CrossEntropyLoss(reduction="none"),
    )
    _, _, G = true_samples(CASES["CrossEntropyLoss"], model, inputs, "mean")
    outcome = run_or_refuse(loss_fn, model, lambda: loss_fn(model(inputs), target).mean(), tmp_path / "run")
    if isinstance(outcome, str):
        assert "reduction" in outcome
        assert "run.backward" in outcome
    else:
        assert by_step(outcome.data, "NormTest")[0] == pytest.approx(slow_truth.norm_test(G))


class OwnLoss(nn.Module):
    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        return ((prediction - target) ** 2).mean()


def test_own_loss_module_is_handled_or_refused_clearly(tmp_path: Path) -> None:
    case, inputs, loss_fn = CASES["MSELoss"], randn(B, 4), OwnLoss()
    model = build_model(case)
    _, _, G = true_samples(case, model, inputs, "mean")
    outcome = run_or_refuse(loss_fn, model, lambda: loss_fn(model(inputs), *case.arguments), tmp_path / "run")
    if isinstance(outcome, str):
        assert "OwnLoss" in outcome
        assert "run.backward" in outcome
    else:
        assert by_step(outcome.data, "NormTest")[0] == pytest.approx(slow_truth.norm_test(G))


def test_loss_of_sequences_is_handled_or_refused_clearly(tmp_path: Path) -> None:
    """CTC takes [time, batch, classes] and lengths; what the batch is cannot be read from the prediction."""
    loss_fn, model = nn.CTCLoss(), nn.Sequential(nn.Linear(4, 5), nn.LogSoftmax(-1)).double()
    inputs, target = randn(8, B, 4), labels(B, 3) + 1
    lengths = torch.full((B,), 8), torch.full((B,), 3)
    outcome = run_or_refuse(loss_fn, model, lambda: loss_fn(model(inputs), target, *lengths), tmp_path / "run")
    if isinstance(outcome, str):
        assert "CTCLoss" in outcome
    else:
        loss = loss_fn(model(inputs), target, *lengths)
        gradient = slow_truth.flatten(torch.autograd.grad(loss, list(model.parameters())))
        assert by_step(outcome.data, "GradNorm").get(0, gradient.norm().item()) == pytest.approx(
            gradient.norm().item(), rel=1e-2
        )


def test_loss_with_parameters_of_its_own_is_handled_or_refused_clearly(tmp_path: Path) -> None:
    loss_fn, model = nn.AdaptiveLogSoftmaxWithLoss(4, 6, [3]).double(), nn.Linear(4, 4).double()
    with warnings.catch_warnings(record=True):
        outcome = run_or_refuse(loss_fn, model, lambda: loss_fn(model(randn(B, 4)), labels(B)).loss, tmp_path / "run")
    if isinstance(outcome, str):
        assert "AdaptiveLogSoftmaxWithLoss" in outcome
    else:
        loss = loss_fn(model(randn(B, 4)), labels(B)).loss
        assert by_step(outcome.data, "Loss").get(0, loss.item()) == pytest.approx(loss.item(), rel=1e-2)
