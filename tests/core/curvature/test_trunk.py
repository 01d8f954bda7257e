"""Products with blocks that are crossed by hand, against the full matrices."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from cockpit_core.curvature import NoCurvature, blocks, trunk
from cockpit_core.curvature.operators import GGNOperator, HessianOperator, flatten, unflatten
from cockpit_core.curvature.trunk import Trunk
from cockpit_core.kernels import native
from cockpit_core.kernels.native import columns as kernels
from tests.core.curvature.points import BATCH, LOSSES, full_ggn, full_hessian, point_of
from tests.core.curvature.test_blocks import NETWORKS, _chain, make

pytestmark = pytest.mark.skipif(not native.list_levels(), reason="blocks are crossed by native kernels")

KINDS = {"hessian": (HessianOperator, full_hessian), "ggn": (GGNOperator, full_ggn)}
LENGTHS = {
    "chain": [2], "in place": [2], "a weight that is not trained": [1], "nothing below is trained": [1],
    "stride and dilation": [1], "volume": [2], "groups": [], "two poolings": [1], "a path around": [1],
    "a path out of the middle": [],
}  # fmt: skip


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trunks are worth it, however small they are."""
    monkeypatch.setattr(trunk, "_saving", lambda block: 1.0)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_products_are_those_of_the_full_matrix(name: str, kind: str) -> None:
    point = make(name, "not convex")
    operator, full = KINDS[kind][0](point), KINDS[kind][1](point)
    lengths = [len(stem._layers) for stem in operator._ways.stems if isinstance(stem, Trunk)]
    assert lengths == LENGTHS[name]
    vectors = torch.randn(3, len(full), dtype=torch.float64)
    one_by_one = [flatten(operator.matvec(unflatten(v, operator.parameters))) for v in vectors]
    together = operator.matmat(unflatten(vectors, operator.parameters))
    for found in (torch.stack(one_by_one), torch.cat([part.flatten(1) for part in together], 1)):
        torch.testing.assert_close(found, vectors @ full, rtol=1e-9, atol=1e-12)
    operator.close()


@pytest.mark.usefixtures("always")
def test_products_without_the_library_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    point = make("chain")
    operator = HessianOperator(point)
    vector = [torch.randn_like(p) for p in operator.parameters]
    found = operator.matvec(vector)
    monkeypatch.setattr(kernels, "find_library", lambda: None)
    plain = HessianOperator(point)
    assert not any(isinstance(stem, Trunk) for stem in plain._ways.stems)
    torch.testing.assert_close(found, plain.matvec(vector), rtol=1e-9, atol=1e-12)


def test_a_trunk_ends_where_torch_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    point = make("chain")
    for savings, length in (([-1.0, -1.0], 0), ([-1.0, 2.0], 2), ([1.0, -2.0], 1)):
        first, second = savings
        monkeypatch.setattr(trunk, "_saving", lambda b, at=(first, second): at[b.below[0] is not None])
        found = trunk.find_trunks(point.loss, list(point.trainable.values()))
        assert sum(len(one._layers) for one in found) == length


def test_wide_sparse_convolutions_save_and_narrow_dense_ones_do_not() -> None:
    def saving(channels: int, rows: int, pooling: int) -> float:
        model = nn.Sequential(nn.Conv2d(channels, rows, 3), nn.ReLU(), nn.MaxPool2d(pooling))
        outputs = model(torch.randn(2, channels, 14, 14))
        (block,) = blocks.find_blocks(outputs.grad_fn, None, math.inf, 1.0)
        return trunk._saving(block)

    assert saving(64, 16, 3) > 0 > saving(3, 16, 2)
    assert saving(64, 16, 1) < 0


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("where", ["image", "weight"])
def test_what_is_not_finite_has_no_value(where: str) -> None:
    torch.manual_seed(1)
    model, x = _chain().double(), torch.randn(BATCH, 2, 6, 6, dtype=torch.float64)
    point = point_of(model, model(x), LOSSES["cross entropy"])
    (x if where == "image" else model[3].weight).data.view(-1)[-1] = float("inf")
    vector = [torch.randn_like(p) for p in point.trainable.values()]
    with pytest.raises(NoCurvature, match="not finite"):
        HessianOperator(point).matvec(vector)
