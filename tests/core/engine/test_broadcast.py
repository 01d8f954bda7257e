"""Parameters that all samples share before they meet the batch: learned positions, class tokens, queries."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cockpit_core
from tests import slow_truth
from tests.networks import classify, labels_per_position, tokens
from tests.problems import Problem
from tests.training import ECONOMY, OPTIMIZERS, assert_true, by_step, linear, loop, train_tracked, with_config


class PositionedDecoder(nn.Module):
    """GPT-style with learned positions. With as many positions as samples, shapes cannot tell one from the other."""

    def __init__(self, embedded: bool) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(7, 4), nn.Embedding(9, 4) if embedded else None
        self.table = None if embedded else nn.Parameter(0.1 * torch.randn(9, 4))
        self.layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True, norm_first=True)
        self.output = nn.Linear(4, 7, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        T = ids.shape[1]
        positions = self.table[:T] if self.positions is None else self.positions(torch.arange(T))
        mask = nn.Transformer.generate_square_subsequent_mask(T, dtype=positions.dtype)
        return self.output(self.layer(self.embedding(ids) + positions, mask)).transpose(1, 2)


class VisionTransformer(nn.Module):
    """Patches, a class token, learned positions, and ``nn.TransformerEncoder``."""

    def __init__(self, repeats: bool = False) -> None:
        super().__init__()
        self.patches, self.repeats = nn.Conv2d(1, 4, 2, stride=2), repeats
        self.token = nn.Parameter(torch.full((1, 1, 4), 0.3))
        self.positions = nn.Parameter(0.1 * torch.randn(1, 5, 4))
        layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2)
        token = self.token.repeat(len(x), 1, 1) if self.repeats else self.token.expand(len(x), -1, -1)
        h = torch.cat([token, h], 1) + self.positions
        return self.head(self.encoder(h)[:, 0])


class Queries(nn.Module):
    """Learned queries go through a Linear of their own before they meet a sample; there are as many as samples."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.project = nn.Parameter(torch.randn(4, 4)), nn.Linear(4, 4)
        self.features, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.features(x)[:, None] - 0.5 * self.project(self.queries)
        return self.head(torch.tanh(h).mean(1))


class CentredAndShifted(nn.Module):
    """A mean over the batch has no batch dimension, but its samples are known; the parameter beside it has none."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head, self.shift = nn.Linear(4, 5), nn.Linear(5, 3), nn.Parameter(torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.head(torch.tanh(h - h.detach().mean(0) + self.shift))


PROBLEMS: dict[str, Problem] = {
    problem.name: problem
    for problem in (
        classify(
            "gpt_embedded_positions", lambda: PositionedDecoder(True), (),
            target=labels_per_position(7, 4), batch_size=4, build_input=tokens(4),
        ),
        classify(
            "gpt_table", lambda: PositionedDecoder(False), (),
            target=labels_per_position(7, 6), batch_size=3, build_input=tokens(6),
        ),
        classify("vit", VisionTransformer, (1, 4, 4), batch_size=5),
        classify("vit_repeat", lambda: VisionTransformer(True), (1, 4, 4), batch_size=5),
        classify("queries", Queries, (4,), batch_size=4),
        classify("centred", CentredAndShifted, (4,), batch_size=6),
    )
}  # fmt: skip


@pytest.mark.parametrize("name", PROBLEMS)
def test_broadcast_parameters_are_exact(name: str, tmp_path: Path) -> None:
    problem = PROBLEMS[name]
    data = train_tracked(problem, "momentum", 3, tmp_path / "run", config=linear("economy"))
    truth = slow_truth.truth_of_run(problem, OPTIMIZERS["momentum"], 3, None)
    assert data.header.covered == 1.0
    assert_true(data, truth, ECONOMY)
    G = slow_truth.matrix(truth.G[0], truth.names, problem.batch_size)
    expected, _ = slow_truth.histogram_1d(G)
    assert np.abs(data.histogram("GradHist1d", 0).counts.astype(int) - expected).sum() <= 0.05 * G.size


@pytest.mark.parametrize("name", PROBLEMS)
def test_no_broadcast_parameter_runs_the_whole_network_again(name: str, tmp_path: Path) -> None:
    """Measured at the place where it meets the batch, not by the fallback of the enclosing module."""
    data = train_tracked(PROBLEMS[name], "sgd", 1, tmp_path / "run", config="economy")
    own = {"table", "token", "positions", "positions.weight", "queries", "project.weight", "project.bias", "shift"}
    methods = {info.name: info.method for info in data.header.layers if info.name in own}
    assert methods and set(methods.values()) == {"rule"}


@pytest.mark.parametrize("curvature", ["hessian", "ggn"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_curvature_with_broadcast_parameters(name: str, curvature: str, tmp_path: Path) -> None:
    problem = PROBLEMS[name]
    data = train_tracked(problem, "sgd", 1, tmp_path / "run", config="business", curvature=curvature)
    truth_of = slow_truth.hessian if curvature == "hessian" else slow_truth.gauss_newton
    truth = slow_truth.truth_of_run(problem, OPTIMIZERS["sgd"], 1, truth_of)
    measured = by_step(data, "HessTrace")
    errors = data.estimates["HessTrace"].errors if "HessTrace" in data.estimates else np.zeros(1)
    error = float(np.nan_to_num(errors[0]))
    assert abs(measured[0] - truth.scalars["HessTrace"][0]) <= 4 * error + 1e-5 * abs(measured[0])


@pytest.mark.parametrize("name", PROBLEMS)
def test_training_is_bit_for_bit_the_same(name: str, tmp_path: Path) -> None:
    results = []
    for tracked in (False, True):
        model, loss_fn, batches = PROBLEMS[name].make()
        optimizer = OPTIMIZERS["adam"](list(model.parameters()))
        options = {"config": "economy", "on_error": "raise", "schedule": 2}
        run = (
            cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", **with_config(options))
            if tracked
            else nullcontext()
        )
        with run:
            loop(model, loss_fn, optimizer, batches(5))
        results.append([*model.parameters(), *(p.grad for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
