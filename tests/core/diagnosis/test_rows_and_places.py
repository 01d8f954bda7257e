"""What a graph, a translator, pictures of labels and embeddings without labels taught: labels that are rows of the batch, places
that were mistaken for one another, layers between others that get no gradient."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cockpit_core
from cockpit_core.recording.mixing import measure_looking_ahead
from cockpit_core.signals.tensors import choose_inputs
from tests.core.diagnosis.test_at_the_end import LONG, at
from tests.core.diagnosis.test_diagnoses import FLAT, both, put, vectors
from tests.core.diagnosis.test_harm import severity
from tests.core.diagnosis.test_samples_mixed import forward_of
from tests.histories import LAYERS, find, make_header

ROWS = {"classes": 32, "label_count": 32, "label_entropy": np.log(32), "label_top_share": 1 / 32}


def test_labels_that_are_rows_of_the_batch_are_not_compared_with_validation() -> None:
    """Which of 64 views is the other one of a sign is harder than which of ten signs it is."""
    asked = both(at(0.6, accuracy=0.24, label_rows=32), put(**ROWS))
    looks = {"logged": lambda i: {"valid_accuracy": 0.87, "valid_loss": 1.0}, **LONG}
    assert severity("label_noise", asked, **looks) == ""
    classes = both(at(0.6, accuracy=0.24, label_rows=32), put(classes=10))
    assert severity("label_noise", classes, **looks) == "likely"


def test_answers_that_always_stand_first_are_no_class_that_dominates() -> None:
    always = put(label_top_share=1.0, guess_top_share=0.3, label_entropy=0.0, classes=65, accuracy=0.3)
    assert severity("class_imbalance", both(at(0.6), always), **LONG) != "likely"


@pytest.mark.parametrize("name", ["labels_off_by_one", "target_in_inputs"])
def test_validation_that_has_nothing_of_it_follows_from_the_cause(name: str) -> None:
    known = {"accuracy": 0.98, "label_top_share": 0.7, "label_rows": 32, "classes": 4, "label_max": 3}
    cause = {"label_min": 1} if name == "labels_off_by_one" else {"label_given": 1.0, "label_given_where": 2}
    told = find(both(at(0.05), put(**known, **cause)), logged=lambda i: {"valid_accuracy": 0.05}, **LONG)
    assert "class_imbalance" not in told
    assert "class_imbalance" in told[name].explains


def test_scores_that_were_taken_out_of_order_are_told_at_the_first_record() -> None:
    told = find(put(scrambled=1.0), n=1)["samples_mixed"]
    assert told.severity == "broken"
    assert "transpose(1, 2)" in told.remedy
    assert "samples_mixed" not in find(n=1)


def test_attention_over_the_queries() -> None:
    told = find(put(query_softmax=1.0))["softmax_over_batch"]
    assert told.severity == "likely"
    assert "over the queries" in told.text


def without_gradient(*names: str):
    row = np.array([np.nan if name in names else 0.4 for name in LAYERS])
    return {"layers": vectors(GradNorm=row)}


def header_of_fresh_layers():
    header = make_header()
    header.options["fresh weights"] = "\n".join(name for name in LAYERS if "weight" in name)
    return header


def test_layers_between_others_without_a_gradient() -> None:
    cut, options = (
        put(ungraded_inside=2.0),
        {"header": header_of_fresh_layers(), **without_gradient("b.weight", "b.bias")},
    )
    told = find(both(at(0.25), cut), **options, **LONG)["graph_detached"]
    assert told.severity == "likely"
    assert told.layers == ["b.weight", "b.bias"]
    assert find(both(at(0.02), cut), **options, **LONG)["graph_detached"].severity == "advice", "nothing is missing"
    assert "graph_detached" not in find(at(0.25), **options, **LONG), "nobody has called them"


def test_gradients_of_exactly_zero_are_dead_units_and_no_decay() -> None:
    """A network of layers of one's own, whose units nobody looks at."""
    zero = np.array([0.0, 0.0, 0.0, 0.0, 0.4, 0.4])

    def unseen(i: int, scalars: dict[str, float]) -> None:
        for name in ("signal/dead", "signal/dead_where", "signal/activation_first", "signal/activation_last"):
            scalars.pop(name)

    dead = {"layers": vectors(GradNorm=zero), "header": make_header(weight_decay="0.1"), "n": 60}
    decays = put(**FLAT, GradNorm=0.01, GradNormClipped=0.01, ParamNorm=lambda i: 10 - i / 30)
    told = find(both(decays, unseen), **dead)
    assert told["dead_units"].severity == "likely"
    assert "weight_decay_too_high" not in told
    assert "weight_decay_too_high" in find(decays, header=dead["header"], n=60)


def test_who_is_whose_neighbour_is_no_sample() -> None:
    nodes, edges = torch.randn(40, 12), torch.zeros(40, 40)
    assert choose_inputs([nodes, edges], 40)[0] is nodes
    assert choose_inputs([edges, nodes], 40)[0] is nodes
    assert choose_inputs([edges], 40)[0] is edges


class Writer(nn.Module):
    """Writes the words of one text into another that is shorter."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.rnn = nn.Embedding(9, 8), nn.GRU(8, 8, batch_first=True, bidirectional=not causal)
        self.out = nn.Linear(8 if causal else 16, 9)

    def forward(self, source: Tensor, written: Tensor) -> Tensor:
        return self.out(self.rnn(self.tokens(written) + self.tokens(source).mean(1, keepdim=True))[0])


@pytest.mark.parametrize("causal", [True, False])
def test_two_texts_of_different_lengths(causal: bool) -> None:
    texts = torch.randint(0, 9, (6, 11)), torch.randint(0, 9, (6, 8))
    moved = measure_looking_ahead(Writer(causal), forward_of(Writer(causal), *texts))
    assert moved < 1e-6 if causal else moved > 0.01


class Plotted(nn.Module):
    """Somebody keeps what a layer gives for a picture, and cuts the graph there."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter, self.gate, self.out, self.cut = nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 3), cut

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x).relu()
        gate = self.gate(h).sigmoid()
        return self.out(h * (gate.detach() if self.cut else gate))


@pytest.mark.parametrize("cut", [True, False])
def test_a_layer_that_was_cut_off_is_seen(cut: bool, tmp_path: Path) -> None:
    model, loss_fn = Plotted(cut), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path, config=["Loss", "GradNorm"], on_error="raise"):
        for _ in range(6):
            optimizer.zero_grad()
            loss_fn(model(torch.randn(16, 6)), torch.randint(3, (16,))).backward()
            optimizer.step()
    assert ("graph_detached" in {f.name for f in cockpit_core.diagnose(tmp_path)}) is cut
