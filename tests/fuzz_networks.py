"""Random networks against plain autograd, one sample at a time: exact, marked, or refused; never wrong.

``python -m tests.fuzz_networks --count 2000`` tries so many and prints the seed of each that is wrong;
``--seed N`` repeats one and says what it is made of.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import cockpit_core
from cockpit_core import quantities
from tests import slow_truth
from tests import slow_truth_instruments as instruments
from tests.fuzz_blocks import BLOCKS, REGROUPED, Sizes

STEPS = 3
TESTS = ("NormTest", "InnerTest", "OrthoTest")
AGREEMENT = {
    "Coherence": instruments.coherence,
    "ConflictShare": instruments.conflict_share,
    "EffectiveRank": instruments.effective_rank,
}
"""Of the Gram matrix of the whole network."""
LIMIT = 1e-5
ALL_PIECES = 10_000
"""Seeds below draw from the first pieces only: one that was wrong once stays what it was."""


class TokenLoss(nn.CrossEntropyLoss):
    """One prediction per position, flattened as language models do: [B, C, T] and [B, T]."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return super().forward(input.transpose(1, 2).reshape(-1, input.shape[1]), target.reshape(-1))


class Network(nn.Module):
    """Blocks one behind the other, then a head for the sample or for each position."""

    def __init__(self, size: Sizes, blocks: list[nn.Module], classes: int, pool: str):
        super().__init__()
        self.blocks, self.head, self.pool = nn.ModuleList(blocks), nn.Linear(size.F, classes), pool

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        if self.pool == "each":
            return self.head(x).transpose(1, 2)
        if self.pool == "sum of rows":
            owner = torch.arange(len(x)).repeat_interleave(x.shape[1])
            return self.head(x.new_zeros(len(x), x.shape[2]).index_add(0, owner, x.flatten(0, 1)))
        return self.head(x.mean(1) if self.pool == "mean" else x[:, -1])


@dataclass
class Draw:
    """What one seed stands for."""

    size: Sizes
    names: list[str]
    pool: str
    reduction: str
    model: Network
    loss_fn: nn.Module
    batches: list[tuple[Tensor, Tensor]]

    def __str__(self) -> str:
        return f"{self.size}, {' + '.join(self.names)}, head: {self.pool}, {self.reduction}"


def draw_network(seed: int) -> Draw:
    chance = random.Random(seed)
    B = chance.choice([2, 3, 4, 6])
    size = Sizes(B, chance.choice([B, 2, 3, 4, 2 * B]), chance.choice([B, 4, 6]))
    known = list(BLOCKS) if seed >= ALL_PIECES else [name for name in BLOCKS if name not in REGROUPED]
    names = [chance.choice(known) for _ in range(chance.choice([1, 2, 2, 3, 4]))]
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        blocks = [BLOCKS[name](size, chance.randrange) for name in names]
    if chance.random() < 0.15 and names[0] not in ("remembers", "spectral norm"):
        blocks.append(blocks[0])
        names.append(f"{names[0]} again")
    pool, classes = chance.choice(["mean", "last", "each", "sum of rows"]), chance.choice([B, 3, 5])
    reduction = chance.choice(["mean", "mean", "sum"])
    loss_fn: nn.Module = (TokenLoss if pool == "each" else nn.CrossEntropyLoss)(reduction=reduction)
    model = Network(size, blocks, classes, pool).double()
    shape = (B, size.T) if pool == "each" else (B,)
    batches = [(torch.randn(B, size.T, size.F).double(), torch.randint(classes, shape)) for _ in range(STEPS)]
    return Draw(size, names, pool, reduction, model, loss_fn, batches)


@dataclass
class Verdict:
    """Of one network: how many of its layers are exact, marked or refused, and what is wrong."""

    exact: int = 0
    marked: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)
    error: str = ""
    changed: bool = False
    """The training came out differently because it was tracked."""

    @property
    def kind(self) -> str:
        if self.changed:
            return "changed"
        if self.wrong:
            return "wrong"
        if self.error:
            return "error"
        return "refused in part" if self.refused else "marked" if self.marked else "exact"


def try_network(seed: int, folder: Path) -> Verdict:
    """Train with tracking, train without, compare."""
    drawn, tracked = draw_network(seed), draw_network(seed)
    try:
        data = train(tracked, seed, folder)
        truth = watch(drawn, seed)
    except Exception as error:
        return Verdict(error=f"{type(error).__name__}: {error}")
    pairs = zip(drawn.model.state_dict().values(), tracked.model.state_dict().values(), strict=True)
    if not all(torch.equal(a, b) for a, b in pairs):
        return Verdict(changed=True)
    return compare(data, truth)


def make_optimizer(seed: int, model: nn.Module) -> torch.optim.Optimizer:
    if seed % 2:
        return torch.optim.SGD(model.parameters(), lr=0.05)
    return torch.optim.Adam(model.parameters(), lr=0.01)


def train(drawn: Draw, seed: int, folder: Path) -> cockpit_core.RunData:
    optimizer = make_optimizer(seed, drawn.model)
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = [*quantities.configuration("economy"), *AGREEMENT]
        with cockpit_core.track(
            drawn.model, drawn.loss_fn, optimizer, folder, config=config, schedule=1, on_error="raise"
        ) as run:
            for x, y in drawn.batches:
                optimizer.zero_grad()
                drawn.loss_fn(drawn.model(x), y).backward()
                optimizer.step()
    return run.data


def watch(drawn: Draw, seed: int) -> slow_truth.RunTruth:
    torch.manual_seed(seed)
    moments = slow_truth.watch_loop(drawn.model, drawn.loss_fn, make_optimizer(seed, drawn.model), drawn.batches)
    original = slow_truth.individual_gradients
    slow_truth.individual_gradients = gradients_of_single_losses  # type: ignore[assignment]
    try:
        with np.errstate(all="ignore"):  # a layer without a gradient
            return slow_truth.truth_of_moments(moments, None)
    finally:
        slow_truth.individual_gradients = original  # type: ignore[assignment]


def gradients_of_single_losses(moment: slow_truth.Moment) -> dict[str, Tensor]:
    """Where samples interact, this is not what a contribution is: such layers have to be marked."""
    theta = moment.parameters()
    losses = slow_truth.individual_losses(moment.loss_fn, moment.predict(theta), moment.targets)
    rows = [torch.autograd.grad(loss, theta.values(), retain_graph=True, materialize_grads=True) for loss in losses]
    return {name: torch.stack([row[i] for row in rows]) for i, name in enumerate(theta)}


def compare(data: cockpit_core.RunData, truth: slow_truth.RunTruth) -> Verdict:
    verdict = Verdict()
    for info in data.header.layers:
        if info.method == "no gradient":
            continue
        before = len(verdict.wrong)
        if info.method == "contribution":
            verdict.marked += 1
            continue
        found = check_layer(data, truth, info.name, verdict)
        if not found or info.method == "not covered":
            verdict.refused += 1
        elif len(verdict.wrong) == before:
            verdict.exact += 1
    if not verdict.marked:
        check_alphas(data, truth, verdict)
    if not verdict.marked and not verdict.refused:
        check_network(data, truth, verdict)
        check_agreement(data, truth, verdict)
    return verdict


def check_layer(data: cockpit_core.RunData, truth: slow_truth.RunTruth, layer: str, verdict: Verdict) -> int:
    """How many values there are; those that are wrong are noted."""
    found = 0
    for name in TESTS:
        try:
            steps, values = data.scalars(name, layer)
        except KeyError:
            continue
        for step, value in zip(steps.tolist(), values.tolist(), strict=True):
            expected = truth.layers[name][layer][step]
            weight = np.linalg.norm(truth.G[step][layer])
            tiny = weight < 1e-9 * max(np.linalg.norm(G) for G in truth.G[step].values())
            if np.isnan(value) or expected is None or np.isnan(expected) or tiny:
                continue
            found += 1
            size = truth.layers["NormTest"][layer][step] or 0.0
            if abs(value - expected) > LIMIT * (abs(expected) + size) + 1e-7:
                verdict.wrong.append(f"{name} of {layer} at {step}: {value:.6g} for {expected:.6g}")
    return found


def check_network(data: cockpit_core.RunData, truth: slow_truth.RunTruth, verdict: Verdict) -> None:
    """All layers together, where all are exact."""
    for name in TESTS:
        steps, values = data.scalars(name)
        for step, value in zip(steps.tolist(), values.tolist(), strict=True):
            expected, size = truth.scalars[name][step], truth.scalars["NormTest"][step] or 0.0
            if expected is not None and abs(value - expected) > LIMIT * (abs(expected) + size) + 1e-7:
                verdict.wrong.append(f"{name} at {step}: {value:.6g} for {expected:.6g}")


def check_agreement(data: cockpit_core.RunData, truth: slow_truth.RunTruth, verdict: Verdict) -> None:
    for name, function in AGREEMENT.items():
        for step, value in zip(*(column.tolist() for column in data.scalars(name)), strict=True):
            G = np.concatenate([own.reshape(len(own), -1) for own in truth.G[step].values()], 1)
            K = G @ G.T
            doubtful = name == "ConflictShare" and np.any(np.abs(K) < 1e-9 * np.abs(K).max())  # a sign may be either
            expected = function(G)
            if not doubtful and abs(value - expected) > 10 * LIMIT * abs(expected) + 1e-7:
                verdict.wrong.append(f"{name} at {step}: {value:.6g} for {expected:.6g}")


def check_alphas(data: cockpit_core.RunData, truth: slow_truth.RunTruth, verdict: Verdict) -> None:
    for fit in data.alphas:
        expected = truth.alphas[fit.step]
        for key in ("loss_start", "slope_start", "slope_end", "slope_var_start", "slope_var_end", "alpha"):
            value, true = getattr(fit, key), expected[key]
            if (value is None) != (true is None) or (value is not None and abs(value - true) > 1e-4 * abs(true) + 1e-7):
                verdict.wrong.append(f"Alpha {key} at {fit.step}: {value} for {true}")


def run(seeds: range, report_every: float = 10.0) -> tuple[Counter, list[int]]:
    kinds: Counter = Counter()
    wrong, said = [], time.monotonic()
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            verdict = try_network(seed, Path(folder) / "run")
        kinds[verdict.kind] += 1
        if verdict.changed:
            print(f"seed {seed}: {draw_network(seed)}\n  the training has changed", flush=True)
        if verdict.wrong:
            wrong.append(seed)
            print(f"seed {seed}: {draw_network(seed)}\n  " + "\n  ".join(verdict.wrong[:3]), flush=True)
        elif verdict.error:
            print(f"seed {seed}: {draw_network(seed)}\n  {verdict.error[:300]}", flush=True)
        if time.monotonic() - said > report_every:
            said = time.monotonic()
            print(f"{sum(kinds.values())} of {len(seeds)}: {dict(kinds)}", file=sys.stderr, flush=True)
    return kinds, wrong


def run_from_command_line(try_all: Callable[[range], tuple[Counter, list[int]]], about: str | None, start: int) -> int:
    """The exit code: 1 if a network is wrong, changed, or ends with an error."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--count", type=int, default=50, help="how many networks")
    parser.add_argument("--start", type=int, default=start, help="the first seed")
    parser.add_argument("--seed", type=int, help="only this one")
    options = parser.parse_args()
    first, count = (options.start, options.count) if options.seed is None else (options.seed, 1)
    torch.set_num_threads(1)
    kinds, wrong = try_all(range(first, first + count))
    print(f"{count} networks: {dict(kinds)}; wrong: {wrong}")
    return 1 if wrong or kinds["error"] or kinds["changed"] else 0


if __name__ == "__main__":
    raise SystemExit(run_from_command_line(run, __doc__, ALL_PIECES))
