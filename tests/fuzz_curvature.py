"""Trace and largest eigenvalue of random networks against all of the Hessian: ``python -m tests.fuzz_curvature --count 200``.

Pieces are those of ``fuzz_blocks`` that draw no numbers and keep nothing, and further functions that bend the loss. A batch may be
a single sample. The seed of a failure is printed; ``--seed`` tries it again.
"""

from __future__ import annotations

import copy
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cockpit_core
from tests.fuzz_blocks import BLOCKS, Sizes
from tests.fuzz_networks import run_from_command_line

STEPS, LIMIT = 2, 1e-4
NO_FUNCTION = ("remembers", "spectral norm", "dropout", "own function")
"""Their Hessian is not that of a function: they draw or keep something, or go back by a way of their own."""
ACTIVATIONS = (
    *(nn.ReLU, nn.GELU, nn.SiLU, nn.Softplus, nn.Tanh, nn.ELU, nn.PReLU, nn.LeakyReLU, nn.Hardswish, nn.Mish, nn.CELU),
    *(nn.Sigmoid, nn.LogSigmoid, nn.Softsign, nn.Hardtanh, nn.SELU, nn.Tanhshrink, nn.ReLU6, nn.Hardsigmoid),
)
NORMS: tuple[Callable[[int], nn.Module], ...] = (
    *(nn.BatchNorm1d, nn.InstanceNorm1d, lambda F: nn.InstanceNorm1d(F, affine=True), lambda F: nn.GroupNorm(1, F)),
    *(lambda F: nn.GroupNorm(F, F), lambda F: nn.BatchNorm1d(F, affine=False), lambda F: nn.BatchNorm1d(F).eval()),
)


class Normed(nn.Module):
    """A convolution along positions, a normalisation, an activation, and perhaps a way around them."""

    def __init__(self, size: Sizes, norm: nn.Module, act: nn.Module, around: bool):
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv1d(size.F, size.F, 3, padding=1), norm, act
        self.around = around

    def forward(self, x: Tensor) -> Tensor:
        out = self.act(self.norm(self.conv(x.transpose(1, 2)))).transpose(1, 2)
        return x + out if self.around else out


class Bent(nn.Module):
    """A linear map and a function behind it that no layer is."""

    def __init__(self, size: Sizes, function: Callable[[Tensor], Tensor]):
        super().__init__()
        self.map, self.function = nn.Linear(size.F, size.F), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.map(x))


FUNCTIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    *(torch.sin, lambda x: x * x, lambda x: x * x.sigmoid(), lambda x: x / (1 + x.abs()), lambda x: x.softmax(-1)),
    *(lambda x: x.softmax(1), lambda x: x.cumsum(1), lambda x: x.exp() / 3, lambda x: F.normalize(x + 1, dim=-1)),
    *(lambda x: x.flatten(1).softmax(1).view_as(x), lambda x: x - x.mean(1, keepdim=True), lambda x: x.pow(3) / 4),
    *(
        lambda x: torch.logsumexp(x, -1, keepdim=True) + x,
        lambda x: x.amax(1, keepdim=True) + x,
        lambda x: (x.abs() + 0.1).sqrt(),
    ),
    *(lambda x: torch.where(x > 0, x, x * x), lambda x: F.max_pool1d(x, 1), lambda x: F.layer_norm(x, x.shape[-1:])),
    *(lambda x: x.var(1, keepdim=True, unbiased=False) + x, lambda x: x @ x.transpose(1, 2) @ x / 4, torch.atan),
    *(lambda x: F.scaled_dot_product_attention(x, x, x), lambda x: x.sort(1).values, lambda x: x.abs().log1p()),
)
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross-entropy": F.cross_entropy,
    "sum": lambda out, y: F.cross_entropy(out, y, reduction="sum"),
    "smoothed": lambda out, y: F.cross_entropy(out, y, label_smoothing=0.1),
    "squares": lambda out, y: F.mse_loss(out, F.one_hot(y, out.shape[1]).to(out)),
    "huber": lambda out, y: F.smooth_l1_loss(out, 2.0 * F.one_hot(y, out.shape[1]).to(out)),
    "each class": lambda out, y: F.binary_cross_entropy_with_logits(out, F.one_hot(y, out.shape[1]).to(out)),
    "margin": lambda out, y: F.multi_margin_loss(out, y, p=2),
    "weighed": lambda out, y: F.cross_entropy(out, y, weight=torch.arange(1.0, 1 + out.shape[1]).to(out)),
    "penalised": lambda out, y: F.cross_entropy(out, y) + 0.1 * out.pow(4).mean(),
}


class Network(nn.Module):
    def __init__(self, size: Sizes, blocks: list[nn.Module], classes: int):
        super().__init__()
        self.blocks, self.head = nn.ModuleList(blocks), nn.Linear(size.F, classes)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def draw(seed: int) -> tuple[Network, str, list[tuple[Tensor, Tensor]], str]:
    """The network, its loss, batches, and what it is in words."""
    chance = random.Random(seed)
    B = chance.choice([1, 1, 2, 3, 4])
    size = Sizes(B, chance.choice([2, 3, 4]), chance.choice([2, 4]))
    torch.manual_seed(seed)
    blocks, names = [], []
    for _ in range(chance.choice([1, 2, 2, 3])):
        kind = chance.choice(["block", "normed", "bent"])
        if kind == "block":
            name = chance.choice([name for name in BLOCKS if name not in NO_FUNCTION])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                blocks.append(BLOCKS[name](size, chance.randrange))
        elif kind == "normed":
            norm, act = chance.choice(NORMS)(size.F), chance.choice(ACTIVATIONS)()
            name = f"{norm}, {act}"
            blocks.append(Normed(size, norm, act, bool(chance.randrange(2))))
        else:
            which = chance.randrange(len(FUNCTIONS))
            name = f"function {which}"
            blocks.append(Bent(size, FUNCTIONS[which]))
        names.append(name)
    loss, classes = chance.choice(list(LOSSES)), chance.choice([2, 3])
    model = Network(size, blocks, classes).double()
    batches = [(torch.randn(B, size.T, size.F).double(), torch.randint(classes, (B,))) for _ in range(STEPS)]
    return model, loss, batches, f"{size}, {' + '.join(names)}, {loss}"


def hessian(model: nn.Module, loss: str, x: Tensor, y: Tensor) -> Tensor:
    """All of it, row by row."""
    own = copy.deepcopy(model)
    values = [p for p in own.parameters() if p.requires_grad]
    first = torch.autograd.grad(LOSSES[loss](own(x), y), values, create_graph=True, materialize_grads=True)
    flat = torch.cat([g.reshape(-1) for g in first])
    rows = []
    for entry in flat:
        if entry.requires_grad:
            row = torch.autograd.grad(entry, values, retain_graph=True, materialize_grads=True)
            rows.append(torch.cat([g.reshape(-1) for g in row]))
        else:
            rows.append(torch.zeros_like(flat))
    return torch.stack(rows).detach()


def try_network(seed: int, folder: Path) -> tuple[str, list[str]]:
    """A kind, and what is wrong."""
    model, loss, batches, _ = draw(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    truths = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with cockpit_core.track(model, None, optimizer, folder, config="full", on_error="raise") as run:
            for x, y in batches:
                try:
                    truths.append(hessian(model, loss, x, y))
                except (RuntimeError, ValueError):  # torch has no second derivative, or no batch of one
                    return "no truth", []
                optimizer.zero_grad()
                LOSSES[loss](model(x), y).backward()
                optimizer.step()
    wrong, kinds = [], set()
    for name, truth in (("HessTrace", torch.trace), ("HessMaxEV", largest)):
        kind, own = compare(run.data, name, [float(truth(H)) for H in truths], truths)
        kinds.add(kind)
        wrong += own
    return "wrong" if wrong else " and ".join(sorted(kinds)), wrong


def largest(H: Tensor) -> Tensor:
    return torch.linalg.eigvalsh((H + H.T) / 2)[-1]


def compare(data: cockpit_core.RunData, name: str, expected: list[float], H: list[Tensor]) -> tuple[str, list[str]]:
    if name not in data.names:
        return "refused", []
    steps, values = data.scalars(name)
    estimates = data.estimates.get(name)
    errors = dict(zip(estimates.steps.tolist(), estimates.errors.tolist(), strict=True)) if estimates else {}
    wrong = []
    for step, value in zip(steps.tolist(), values.tolist(), strict=True):
        if not torch.isfinite(H[step]).all() or (H[step] - H[step].T).abs().max() > 1e-9 * H[step].abs().max() + 1e-12:
            continue  # torch's own second derivative is not one
        size = float(H[step].diagonal().abs().sum()) + float(H[step].abs().max())
        error = errors.get(step, 0.0)
        if not abs(value - expected[step]) <= LIMIT * size + 6 * error + 1e-9:
            wrong.append(f"{name} at {step}: {value:.6g} (error {error:.2g}) for {expected[step]:.6g}")
    return "estimated" if any(errors.values()) else "exact" if len(values) else "refused", wrong


def run(seeds: range, report_every: float = 10.0) -> tuple[Counter, list[int]]:
    kinds: Counter = Counter()
    wrong, said = [], time.monotonic()
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            try:
                kind, faults = try_network(seed, Path(folder) / "run")
            except Exception as error:
                kind, faults = "raised", [f"{type(error).__name__}: {str(error)[:300]}"]
        kinds[kind] += 1
        if faults:
            wrong.append(seed)
            print(f"seed {seed}: {draw(seed)[3]}\n  " + "\n  ".join(faults[:3]), flush=True)
        if time.monotonic() - said > report_every:
            said = time.monotonic()
            print(f"{sum(kinds.values())} of {len(seeds)}: {dict(kinds)}", file=sys.stderr, flush=True)
    return kinds, wrong


if __name__ == "__main__":
    raise SystemExit(run_from_command_line(run, __doc__, 0))
