"""All paths give the same counts, bit for bit: those of numpy, and those of the rule applied value by value."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from cockpit_core.kernels import Bins, Counts, Spec, count_outer, count_values, plain, prepare_parameter
from cockpit_core.kernels.door import is_there
from tests.core.kernels.cases import (
    AWAY_FROM_ZERO,
    DEFAULT,
    DTYPES,
    NARROW,
    ZERO_INSIDE_A_BIN,
    Case,
    find_differences,
    form_products,
    make_cases,
)  # fmt: skip

SPECS = [DEFAULT, NARROW, AWAY_FROM_ZERO, ZERO_INSIDE_A_BIN]
FAST = [path for path in ("native",) if is_there(path)]
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@dtypes
@pytest.mark.parametrize("path", FAST)
def test_fast_paths_give_the_plain_counts(dtype: torch.dtype, path: str) -> None:
    assert [line for case in make_cases(dtype) for line in find_differences(case, path)] == []


@dtypes
@pytest.mark.parametrize("path", ["plain", *FAST])
def test_factors_and_stored_products_give_the_same_counts(dtype: torch.dtype, path: str) -> None:
    for case in make_cases(dtype):
        bins = prepare_parameter(case.parameter, case.spec)
        outer, stored = Counts.zeros(case.spec), Counts.zeros(case.spec)
        count_outer(case.b, case.a, bins, case.spec, outer, path=path)
        count_values(form_products(case), bins, case.spec, stored, path=path)
        np.testing.assert_array_equal(outer.counts1d, stored.counts1d, case.name)
        np.testing.assert_array_equal(outer.counts2d, stored.counts2d, case.name)
        assert (outer.nan, outer.pos_inf, outer.neg_inf) == (stored.nan, stored.pos_inf, stored.neg_inf)


@dtypes
def test_the_plain_path_follows_the_rule_value_by_value(dtype: torch.dtype) -> None:
    for case in make_cases(dtype):
        gradient, parameter = case.spec.joint or ()
        rows = [gradient.category(x, dtype == torch.float64) for x in form_products(case).double().flatten().tolist()]
        columns = [parameter.category(x, dtype == torch.float64) for x in case.parameter.double().flatten().tolist()]
        expected = np.zeros((gradient.count + 5, parameter.count + 3), np.int64)
        np.add.at(expected, (rows, np.minimum(columns * len(case.b), parameter.count + 2)), 1)
        counts = Counts.zeros(case.spec)
        count_outer(case.b, case.a, prepare_parameter(case.parameter, case.spec), case.spec, counts, path="plain")
        assert counts.table2d is not None
        np.testing.assert_array_equal(counts.table2d.numpy(), expected, case.name)


@pytest.mark.parametrize("path", ["plain", *FAST])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_counts_are_numpy_s_up_to_values_next_to_an_edge(dtype: torch.dtype, path: str) -> None:
    for case in make_cases(dtype):
        products = form_products(case).double().numpy().ravel()
        if not np.isfinite(products).all():
            continue
        bins = case.spec.gradient
        assert bins is not None
        counts = Counts.zeros(Spec(bins))
        count_outer(case.b, case.a, None, Spec(bins), counts, path=path)
        expected, _ = np.histogram(products.clip(bins.low, bins.high), bins.edges)
        slack = 2.0**-20 if dtype == torch.float32 else 2.0**-48
        distance = np.abs(products[:, None] - bins.edges).min(axis=1)
        # A value this close to an edge may be in the next bin: missing in one, too much in the other.
        close = int((distance <= slack * np.maximum(np.abs(products), bins.zero_edge is None)).sum())
        assert np.abs(counts.counts1d - expected).sum() <= 2 * close, case.name
        assert counts.counts1d.sum() == products.size


def test_default_bins_agree_with_numpy_exactly_on_ordinary_gradients() -> None:
    torch.manual_seed(3)
    b, a, parameter = 0.05 * torch.randn(32, 40), torch.randn(32, 60).relu(), 0.5 * torch.randn(40, 60)
    counts = Counts.zeros(DEFAULT)
    count_outer(b, a, prepare_parameter(parameter, DEFAULT), DEFAULT, counts)
    products = (b[:, :, None] * a[:, None, :]).double().numpy()
    expected, _ = np.histogram(products.clip(-2, 2), np.linspace(-2, 2, 101))
    np.testing.assert_array_equal(counts.counts1d, expected)
    pairs = np.broadcast_to(parameter.double().numpy(), products.shape).ravel().clip(-2, 2)
    edges = [np.linspace(-1, 1, 41), np.linspace(-2, 2, 51)]
    expected2d, *_ = np.histogram2d(products.ravel().clip(-1, 1), pairs, bins=edges)
    np.testing.assert_array_equal(counts.counts2d, expected2d)


def test_a_million_values_in_one_bin_are_all_counted() -> None:
    values = torch.full((4, 250_001), 0.01)
    values[:, ::1000] = 0.5
    bins = prepare_parameter(torch.zeros(250_001), DEFAULT)
    for path in ("plain", *FAST):
        counts = Counts.zeros(DEFAULT)
        count_values(values, bins, DEFAULT, counts, path=path)
        assert counts.counts1d[50] == counts.counts2d[20, 25] == 4 * (250_001 - 251)
        assert counts.counts1d[62] == counts.counts2d[30, 25] == 4 * 251


def test_views_are_counted_like_copies() -> None:
    torch.manual_seed(5)
    values = torch.randn(6, 10, 8).transpose(1, 2)[::2]
    b, a = torch.randn(8, 6).t()[::2], torch.randn(6, 20)[::2, ::2]
    parameter = torch.randn(10, 8).t()
    bins = prepare_parameter(parameter, DEFAULT)
    for path in ("plain", *FAST):
        view, copy = Counts.zeros(DEFAULT), Counts.zeros(DEFAULT)
        count_values(values, bins, DEFAULT, view, path=path)
        count_values(values.clone(), prepare_parameter(parameter.clone(), DEFAULT), DEFAULT, copy, path=path)
        count_outer(b, a, bins, DEFAULT, view, path=path)
        count_outer(b.clone(), a.clone(), bins, DEFAULT, copy, path=path)
        np.testing.assert_array_equal(view.counts2d, copy.counts2d)
        np.testing.assert_array_equal(view.counts1d, copy.counts1d)


def test_plain_blocks_do_not_change_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = list(make_cases(torch.float32))
    whole = [find_differences(case, "native") for case in cases]
    monkeypatch.setattr(plain, "BLOCK", 7)
    assert [find_differences(case, "native") for case in cases] == whole == [[]] * len(cases)


@dtypes
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_paths_agree_on_whatever_hypothesis_finds(dtype: torch.dtype, data: st.DataObject) -> None:
    width = 64 if dtype == torch.float64 else 32
    kind = np.float64 if dtype == torch.float64 else np.float32
    special = st.sampled_from([0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, 1e-30, -1e-30, 1e30])
    numbers = st.one_of(st.floats(width=width), st.floats(-2, 2, width=width), special.map(lambda x: float(kind(x))))
    samples, out = data.draw(array_shapes(min_dims=2, max_dims=2, max_side=4))
    inner = data.draw(st.integers(1, 9))
    b, a, parameter = (
        torch.from_numpy(data.draw(arrays(kind, shape, elements=numbers))).to(dtype)
        for shape in ((samples, out), (samples, inner), (out, inner))
    )
    case = Case("found", b, a, parameter, data.draw(st.sampled_from(SPECS)))
    assert [line for path in FAST for line in find_differences(case, path)] == []


def test_a_broken_rule_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above must fail if one path rounds differently: here the plain one forgets the anchor at zero."""
    monkeypatch.setattr(Bins, "zero_edge", None)
    broken = {case.name: count_table(case) for case in make_cases(torch.float32)}
    monkeypatch.undo()
    changed = [case.name for case in make_cases(torch.float32) if not torch.equal(count_table(case), broken[case.name])]
    assert {"underflow", "half underflow", "default edges"} <= set(changed)


def count_table(case: Case) -> torch.Tensor:
    counts = Counts.zeros(case.spec)
    count_outer(case.b, case.a, prepare_parameter(case.parameter, case.spec), case.spec, counts, path="plain")
    table = counts.table2d
    assert table is not None
    return table
