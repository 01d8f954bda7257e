"""Logarithmic bins: nothing is outside, all paths agree to the bit, and a record holds the occupied ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cockpit_core.kernels import Counts, LogBins, Spec, count_outer, count_values, native, plain, prepare_parameter
from cockpit_core.kernels.native import counting, reducing
from tests.core.kernels.cases import DTYPES, LOGARITHMIC, Case, find_differences, form_products, make_cases

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
FINENESS = (1, 2, 3, 8)


@pytest.mark.parametrize("per_octave", FINENESS)
def test_edges_increase_by_one_factor_on_either_side_of_zero(per_octave: int) -> None:
    bins = LogBins(per_octave)
    assert len(bins.edges) == bins.count + 1 == 2 * 254 * per_octave + 2
    assert (np.diff(bins.edges) > 0).all()
    np.testing.assert_allclose(np.diff(np.log2(bins.magnitudes)), 1 / per_octave, rtol=1e-12)
    assert bins.edges[bins.steps + 1] == -bins.edges[bins.steps] == torch.finfo(torch.float32).tiny
    assert bins.edges[-1] > torch.finfo(torch.float32).max


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("per_octave", FINENESS)
def test_each_edge_is_in_the_bin_above_it_and_its_neighbour_below_is_not(per_octave: int, double: bool) -> None:
    """In the type of the numbers: the least one that is not below the edge, and the one before it."""
    bins, kind = LogBins(per_octave, -20, 10), np.float64 if double else np.float32
    for step, edge in enumerate(bins.magnitudes[:-1]):
        at = kind(edge) if kind(edge) >= edge else np.nextafter(kind(edge), kind(np.inf))
        assert bins.category(at, double) == bins.steps + 2 + step
        assert bins.category(-at, double) == bins.steps - step
        assert bins.category(np.nextafter(at, kind(0)), double) == bins.steps + 1 + step


@dtypes
def test_the_plain_path_follows_the_rule_value_by_value(dtype: torch.dtype) -> None:
    for case in make_cases(dtype):
        values = form_products(case).flatten()[:300]
        for bins in (LogBins(2), LogBins(3, -20, 10)):
            found = plain.categorise(plain.widen(values), bins).tolist()
            assert found == [bins.category(x, dtype == torch.float64) for x in values.double().tolist()], case.name


@pytest.mark.skipif(not native.list_levels(), reason="the native kernels were not built")
@dtypes
@pytest.mark.parametrize("level", native.list_levels())
def test_native_counts_are_the_plain_ones(level: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (reducing, counting):
        monkeypatch.setattr(module, "find_library", lambda: native.open_level(level))
    cases = [case._replace(spec=LOGARITHMIC) for case in make_cases(dtype)]
    assert [line for case in cases for line in find_differences(case, "native")] == []


@pytest.mark.skipif(not native.list_levels(), reason="the native kernels were not built")
@dtypes
@pytest.mark.parametrize("per_octave", FINENESS)
@pytest.mark.parametrize("level", native.list_levels())
def test_products_that_are_not_formed_are_counted_right(
    level: str, per_octave: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large enough for buckets of mantissas; magnitudes from where products vanish to where they overflow."""
    for module in (reducing, counting):
        monkeypatch.setattr(module, "find_library", lambda: native.open_level(level))
    torch.manual_seed(0)
    spread = 10 ** (3 * torch.randn(4, 500, dtype=torch.float64))
    spec = Spec(LogBins(per_octave))
    for left, right in ((1, 1), (1e-20, 1e-16), (1e-12, 1e-28), (1e19, 1e18), (1e-3, 1)):
        b, a = left * torch.randn(4, 45) * spread[:, :45], right * torch.randn(4, 500) * spread
        b[0, :9], a[1], a[2, 9:200], a[3, 7] = 0, a[1].abs(), 0, float("nan")
        assert count_outer_difference(b.to(dtype), a.to(dtype), spec) == 0


@pytest.mark.skipif(not native.list_levels(), reason="the native kernels were not built")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_products_of_all_kinds_of_half_numbers_are_rounded_first(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    bits = torch.randint(-(2**15), 2**15, (8, 400)).to(torch.int16).view(dtype)
    numbers = torch.where(bits.isfinite(), bits, 1)
    assert count_outer_difference(numbers[:4, :60].contiguous(), numbers[4:], Spec(LogBins(3))) == 0


def count_outer_difference(b: torch.Tensor, a: torch.Tensor, spec: Spec) -> int:
    ours, plainly = Counts.zeros(spec), Counts.zeros(spec)
    count_outer(b, a, None, spec, ours, path="native")
    count_outer(b, a, None, spec, plainly, path="plain")
    assert ours.table1d is not None
    assert plainly.table1d is not None
    assert int(plainly.table1d.sum()) == b.numel() * a.shape[1]
    return int((ours.table1d - plainly.table1d).abs().sum())


@settings(max_examples=40, deadline=None)
@given(values=st.lists(st.floats(width=32), min_size=1, max_size=30))
def test_nothing_is_outside_and_each_value_lies_between_its_edges(values: list[float]) -> None:
    numbers = torch.tensor(values, dtype=torch.float32)
    counts = Counts.zeros(Spec(LogBins(2)))
    count_values(numbers[None], None, Spec(LogBins(2)), counts)
    record = counts.histogram1d(0)
    assert (record.below, record.above) == (0, 0)
    assert record.counts.sum() + record.nan + record.pos_inf + record.neg_inf == len(values)
    assert (np.diff(record.edges) > 0).all()
    finite = numbers[numbers.isfinite()].double().numpy()
    magnitudes = np.where(np.abs(finite) < record.edges[len(record.edges) // 2], 0.0, finite)
    # by magnitude, as bins of negative numbers hold their upper edge
    positive, _ = np.histogram(magnitudes[magnitudes > 0], record.edges)
    negative, _ = np.histogram(-magnitudes[magnitudes < 0], record.edges)
    expected = positive + negative[::-1]
    expected[len(expected) // 2] += int((magnitudes == 0).sum())
    np.testing.assert_array_equal(record.counts, expected)


def test_a_record_holds_the_occupied_magnitudes_and_neighbours_share_them() -> None:
    torch.manual_seed(0)
    spec = Spec(LogBins(2), (LogBins(1), LogBins(1, -40, 24)))
    sizes = []
    for step in range(3):
        counts, values = Counts.zeros(spec), 1e-2 * torch.randn(8, 50)
        values[:, :3] = 0
        count_values(values, prepare_parameter(torch.linspace(-1, 1, 50), spec), spec, counts)
        one, two = counts.histogram1d(step), counts.histogram2d(step)
        middle = len(one.counts) // 2
        assert one.counts[middle] == 24
        assert one.counts.sum() == two.counts.sum() == 400
        assert (two.below, two.above, two.parameter_below, two.parameter_above) == (0, 0, 0, 0)
        assert len(one.counts) < 120
        assert two.counts.shape == (len(two.edges) - 1, len(two.parameter_edges) - 1)
        np.testing.assert_array_equal(one.edges, -one.edges[::-1])
        assert np.log2(one.edges[-1]) % 8 == 0
        sizes.append((one.edges[-1], len(two.parameter_edges)))
    assert len(set(sizes)) == 1


def test_zeros_alone_still_make_a_record_with_a_bin_around_zero() -> None:
    counts = Counts.zeros(Spec(LogBins(2)))
    record = counts.histogram1d(0)
    assert record.counts.sum() == 0
    count_values(torch.zeros(2, 7), None, Spec(LogBins(2)), counts)
    record = counts.histogram1d(0)
    assert record.counts[len(record.counts) // 2] == 14
    assert (np.diff(record.edges) > 0).all()


def test_what_double_precision_has_beyond_is_in_the_zero_bin_or_in_the_outermost() -> None:
    bins = LogBins(2)
    assert [bins.category(x) for x in (1e-300, -1e-40, 1e300, -1e300)] == [bins.steps + 1] * 2 + [bins.count, 1]
    case = Case(
        "beyond",
        torch.tensor([[1e-300, 1e300, -1.0]]).double(),
        torch.ones(1, 2).double(),
        torch.ones(3, 2),
        Spec(bins),
    )
    assert [line for path in ("native",) if native.list_levels() for line in find_differences(case, path)] == []


@pytest.mark.parametrize(("options", "error"), [
    ({"per_octave": 0}, "per_octave must be"), ({"per_octave": 9}, "per_octave must be"),
    ({"lowest": -127}, "go from"), ({"lowest": 3, "highest": 3}, "go from"), ({"highest": 129}, "go from"),
])  # fmt: skip
def test_impossible_logarithmic_bins_are_refused(options: dict[str, int], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        LogBins(**options)
    with pytest.raises(TypeError, match="integer"):
        LogBins(per_octave=2.5)  # type: ignore[arg-type]


def test_limits_within_an_octave_are_exact() -> None:
    """By whole numbers: the least mantissa whose power reaches the limit, and not its predecessor's."""
    for per_octave in range(2, 9):
        for double, bits in ((False, 23), (True, 52)):
            for j, mantissa in enumerate(LogBins(per_octave).thresholds(double), start=1):
                number, limit = (1 << bits) + mantissa, 1 << (bits * per_octave + j)
                assert number**per_octave >= limit > (number - 1) ** per_octave
                assert math.isclose(number / 2**bits, 2 ** (j / per_octave), rel_tol=2.0**-bits * 2)
