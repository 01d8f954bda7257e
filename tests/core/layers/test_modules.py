"""Every parameterised module of ``torch.nn`` is tried; the table in the documentation is what came out.

``COCKPIT_WRITE_MODULES=1 pytest tests/core/layers/test_modules.py`` writes ``docs/modules.md``; otherwise it is compared.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cockpit_core
from tests import slow_truth
from tests.training import by_step, quantities

DOCUMENT = Path(__file__).parents[3] / "docs" / "modules.md"
B = 5


@dataclass(frozen=True)
class Case:
    """How to build a module, what to feed it, and what of its output to train on."""

    build: Callable[[], nn.Module]
    feed: Callable[[torch.Generator], tuple[Any, ...]]
    take: Callable[[Any], Tensor] = lambda out: out
    mixes: bool = False  # samples depend on one another: contributions instead of gradients of single losses
    options: tuple[tuple[str, Any], ...] = ()


def randn(*shape: int) -> Callable[[torch.Generator], tuple[Any, ...]]:
    return lambda g: (torch.randn(B, *shape, generator=g, dtype=torch.float64),)


def twice(*shape: int, count: int = 2, batch_first: bool = True) -> Callable[[torch.Generator], tuple[Any, ...]]:
    return lambda g: tuple(torch.randn(B, *shape, generator=g, dtype=torch.float64) for _ in range(count))


def tokens(g: torch.Generator) -> tuple[Any, ...]:
    return (torch.randint(7, (B, 4), generator=g),)


def classes_too(g: torch.Generator) -> tuple[Any, ...]:
    return torch.randn(B, 6, generator=g, dtype=torch.float64), torch.randint(12, (B,), generator=g)


def first(out: Any) -> Tensor:
    return out[0]


TRANSFORMER = {"d_model": 4, "nhead": 2, "dim_feedforward": 6, "dropout": 0.0, "batch_first": True}

CASES: dict[str, Case] = {
    "Linear": Case(lambda: nn.Linear(4, 3), randn(2, 4)),
    "Bilinear": Case(lambda: nn.Bilinear(3, 4, 2), lambda g: (*randn(3)(g), *randn(4)(g))),
    "Conv1d": Case(lambda: nn.Conv1d(2, 4, 3, groups=2), randn(2, 7)),
    "Conv2d": Case(lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1), randn(2, 5, 5)),
    "Conv3d": Case(lambda: nn.Conv3d(1, 2, 2), randn(1, 3, 3, 3)),
    "ConvTranspose1d": Case(lambda: nn.ConvTranspose1d(2, 3, 3, stride=2), randn(2, 4)),
    "ConvTranspose2d": Case(lambda: nn.ConvTranspose2d(2, 3, 3, stride=2), randn(2, 3, 3)),
    "ConvTranspose3d": Case(lambda: nn.ConvTranspose3d(1, 2, 2), randn(1, 2, 2, 2)),
    "Embedding": Case(lambda: nn.Embedding(7, 3), tokens),
    "EmbeddingBag": Case(lambda: nn.EmbeddingBag(7, 3), tokens),
    "LayerNorm": Case(lambda: nn.LayerNorm(4), randn(3, 4)),
    "RMSNorm": Case(lambda: nn.RMSNorm(4), randn(3, 4)),
    "GroupNorm": Case(lambda: nn.GroupNorm(2, 4), randn(4, 3)),
    "InstanceNorm1d": Case(lambda: nn.InstanceNorm1d(3, affine=True), randn(3, 5)),
    "InstanceNorm2d": Case(lambda: nn.InstanceNorm2d(3, affine=True), randn(3, 4, 4)),
    "InstanceNorm3d": Case(lambda: nn.InstanceNorm3d(2, affine=True), randn(2, 2, 3, 3)),
    "BatchNorm1d": Case(lambda: nn.BatchNorm1d(3), randn(3), mixes=True),
    "BatchNorm2d": Case(lambda: nn.BatchNorm2d(3), randn(3, 2, 2), mixes=True),
    "BatchNorm3d": Case(lambda: nn.BatchNorm3d(2), randn(2, 2, 2, 2), mixes=True),
    "SyncBatchNorm": Case(lambda: nn.SyncBatchNorm(3), randn(3), mixes=True),
    "PReLU": Case(lambda: nn.PReLU(3), randn(3, 4)),
    "RNN": Case(lambda: nn.RNN(3, 4, batch_first=True), randn(4, 3), first),
    "LSTM": Case(lambda: nn.LSTM(3, 4, batch_first=True), randn(4, 3), first),
    "GRU": Case(lambda: nn.GRU(3, 4, batch_first=True), randn(4, 3), first),
    "RNNCell": Case(lambda: nn.RNNCell(3, 4), randn(3)),
    "LSTMCell": Case(lambda: nn.LSTMCell(3, 4), randn(3), first),
    "GRUCell": Case(lambda: nn.GRUCell(3, 4), randn(3)),
    "MultiheadAttention": Case(lambda: nn.MultiheadAttention(4, 2, batch_first=True), twice(3, 4, count=3), first),
    "TransformerEncoderLayer": Case(lambda: nn.TransformerEncoderLayer(**TRANSFORMER), randn(3, 4)),
    "TransformerDecoderLayer": Case(lambda: nn.TransformerDecoderLayer(**TRANSFORMER), twice(3, 4)),
    "TransformerEncoder": Case(
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(**TRANSFORMER), 1, enable_nested_tensor=False), randn(3, 4)
    ),
    "TransformerDecoder": Case(
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(**TRANSFORMER), 1), twice(3, 4)
    ),
    "Transformer": Case(
        lambda: nn.Transformer(num_encoder_layers=1, num_decoder_layers=1, **TRANSFORMER), twice(3, 4)
    ),
    "AdaptiveLogSoftmaxWithLoss": Case(
        lambda: nn.AdaptiveLogSoftmaxWithLoss(6, 12, cutoffs=[4, 8], div_value=2.0), classes_too, lambda out: out.output
    ),
}  # fmt: skip

LAZY = {
    f"Lazy{name}" for name in
    ("Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "BatchNorm1d",
     "BatchNorm2d", "BatchNorm3d", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d")
}  # fmt: skip
ABSTRACT = {"RNNBase", "RNNCellBase", "Module", "Container"}
CONTAINERS = {"Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict", "DataParallel"}


def parameterised_modules() -> set[str]:
    """Names in ``torch.nn`` whose constructor makes parameters, found by what their source mentions."""
    found = set()
    for name, kind in vars(nn).items():
        if inspect.isclass(kind) and issubclass(kind, nn.Module) and not name.startswith("_"):
            sources = "".join(inspect.getsource(base) for base in kind.__mro__ if base.__module__.startswith("torch.nn.modules")
                              and base is not nn.Module)  # fmt: skip
            if "Parameter(" in sources or "self.layers" in sources or "TransformerEncoderLayer(" in sources:
                found.add(name)
    return found - ABSTRACT - CONTAINERS


def test_no_parameterised_module_is_forgotten() -> None:
    known = set(CASES) | LAZY
    assert parameterised_modules() - known - {"NLLLoss2d", "Softmax2d"} == set()


class Middle(nn.Module):
    """The module behind a weight of its own, so that gradients have to pass through it."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.inner, self.take = case.build(), case.take
        self.scale = nn.Linear(1, 1)

    def forward(self, *inputs: Tensor) -> Tensor:
        head, *rest = inputs
        if head.is_floating_point():
            head = self.scale(head.unsqueeze(-1)).squeeze(-1)
        return torch.tanh(self.take(self.inner(head, *rest))).reshape(len(head), -1)


class SquaredSum(nn.Module):
    """``mean_n sum_j y_nj^2 (1 + j / 3)``: uneven, so that no gradient vanishes by symmetry."""

    def __init__(self) -> None:
        super().__init__()
        self.reduction = "mean"

    def forward(self, y: Tensor) -> Tensor:
        y = y.reshape(len(y), -1)
        weights = 1 + torch.arange(y.shape[1], dtype=y.dtype) / 3
        losses = (weights * (y + 0.3) ** 2).sum(1)
        return losses if self.reduction == "none" else losses.mean()


def make(case: Case) -> tuple[nn.Module, tuple[Any, ...]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Middle(case).double()
        for p in model.parameters():
            p.data += 0.2 * torch.randn(p.shape, dtype=torch.float64)
    return model, case.feed(torch.Generator().manual_seed(1))


def true_rows(case: Case) -> dict[str, np.ndarray]:
    """``g_n`` of the inner module's parameters: of single losses, or of its own output gradient, sample by sample."""
    model, inputs = make(case)
    named = {n: p for n, p in model.named_parameters() if n.startswith("inner.")}
    if case.mixes:
        kept: list[Tensor] = []
        handle = model.inner.register_forward_hook(lambda m, a, out: kept.extend((a[0].detach(), out)))
        b = torch.autograd.grad(SquaredSum()(model(*inputs)), kept[1])[0]
        handle.remove()
        out = model.inner(kept[0])
        pieces = [torch.autograd.grad(out[n], list(named.values()), B * b[n], retain_graph=True) for n in range(B)]
    else:
        loss_fn = SquaredSum()
        loss_fn.reduction = "none"
        losses = loss_fn(model(*inputs))
        pieces = [
            torch.autograd.grad(loss, list(named.values()), retain_graph=True, materialize_grads=True)
            for loss in losses
        ]
    return {name: torch.stack([piece[i] for piece in pieces]).flatten(1).numpy() for i, name in enumerate(named)}


def measure(case: Case, folder: Path) -> cockpit_core.RunData:
    model, inputs = make(case)
    loss_fn, optimizer = SquaredSum(), torch.optim.SGD(model.parameters(), lr=0.01)
    config = quantities("NormTest", "InnerTest", "GradNorm", "GradHist1d", "MeanGSNR", "HessTrace")
    with cockpit_core.track(model, loss_fn, optimizer, folder, config=config, on_error="raise"):
        loss_fn(model(*inputs)).backward()
        optimizer.step()
    return cockpit_core.load(folder)


RESULTS: dict[str, tuple[str, str]] = {}


@pytest.mark.parametrize("name", CASES)
def test_individual_gradients_of_the_module_are_exact(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    data = measure(case, tmp_path / "run")
    assert data.header.covered == 1.0
    for layer, G in true_rows(case).items():
        if np.abs(G.mean(0)).max() > 1e-12:  # key biases have no effect on a softmax
            assert by_step(data, "GradNorm", layer)[0] == pytest.approx(slow_truth.grad_norm(G), rel=1e-5), layer
            assert by_step(data, "NormTest", layer)[0] == pytest.approx(slow_truth.norm_test(G), rel=1e-5, abs=1e-7), (
                layer
            )
            assert by_step(data, "InnerTest", layer)[0] == pytest.approx(slow_truth.inner_test(G), rel=1e-5, abs=1e-7)
    RESULTS[name] = status_of(data, case)


def status_of(data: cockpit_core.RunData, case: Case) -> tuple[str, str]:
    methods = sorted({info.method for info in data.header.layers if info.name.startswith("inner.")} - {"no gradient"})
    told = {"rule": "exact rule", "fallback": "fallback"}
    status = " and ".join(told.get(method, method) for method in methods)
    if case.mixes:
        status = "contribution"
    missing = [m.reason for m in data.missing if m.name == "HessTrace"]
    return status, "no value: " + missing[0].split(" (")[0] if missing else "yes"


@pytest.mark.parametrize("name", sorted(LAZY))
def test_lazy_module_is_its_ordinary_self_after_the_first_batch(name: str) -> None:
    """``track`` needs parameters that exist; a lazy module becomes an ordinary one with its first batch."""
    ordinary = name.removeprefix("Lazy")
    assert getattr(nn, name).cls_to_become is getattr(nn, ordinary)
    assert ordinary in CASES


def test_uninitialised_parameters_are_refused_with_what_to_do(tmp_path: Path) -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that lazy modules are new
        optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    with pytest.raises(ValueError, match="run one batch"):
        cockpit_core.track(model, nn.MSELoss(), optimizer, tmp_path / "run", config="economy")


INTRODUCTION = """# Every parameterised module of torch.nn

Generated by `tests/core/layers/test_modules.py`, which trains each of them and compares its individual gradients with
plain autograd, one sample at a time, to 1e-5 in float64.

*Exact rule*: the module has a rule of its own, which forms individual gradients only where nothing cheaper is exact.
*Fallback*: exact too, but slower: vector-Jacobian products of that one module, sample by sample.
*Contribution*: samples mix, so there is no gradient of one sample alone; the contributions add up to the gradient.
With several processes `SyncBatchNorm` has contributions, from the statistics of all processes, but no curvature: its
products would wait for processes that do not answer.
The last column says whether curvature has a value with `curvature="hessian"`. Modules that are not listed, such as your own, are
measured by the fallback. The header of a run says for each parameter which way was taken.

| module | individual gradients | curvature |
|---|---|---|
"""


def make_document() -> str:
    rows = {name: f"{status} | {curvature}" for name, (status, curvature) in RESULTS.items()}
    rows |= {
        name: f"as {name.removeprefix('Lazy')}, once it has seen a batch (track after that) | as there" for name in LAZY
    }
    return INTRODUCTION + "".join(f"| `{name}` | {rows[name]} |\n" for name in sorted(rows))


def test_document_says_what_was_found() -> None:
    """Last in this file: it needs what the others found."""
    if set(RESULTS) != set(CASES):
        pytest.skip("only a part of the modules was tried in this run")
    if os.environ.get("COCKPIT_WRITE_MODULES"):
        DOCUMENT.write_text(make_document())
    assert DOCUMENT.read_text() == make_document(), "run with COCKPIT_WRITE_MODULES=1 to write it anew"
