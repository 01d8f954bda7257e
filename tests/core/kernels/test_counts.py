"""What the tables say once they are read."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cockpit_core.kernels import Bins, Counts, Spec, count_outer, count_values, prepare_parameter

SPEC = Spec(Bins(-1, 1, 4), (Bins(-1, 1, 2), Bins(-2, 2, 4)))
INFINITY = float("inf")


def count(values: list[float], parameter: list[float], spec: Spec = SPEC) -> Counts:
    counts = Counts.zeros(spec)
    count_values(torch.tensor([values]), prepare_parameter(torch.tensor(parameter), spec), spec, counts)
    return counts


def test_outside_values_are_in_the_outermost_bins_and_counted_again() -> None:
    counts = count([-5.0, -1.0, -0.5, 0.0, 1.0, 1.5], [-3.0, 0.0, 0.0, 3.0, 3.0, -3.0])
    np.testing.assert_array_equal(counts.counts1d, [2, 1, 1, 2])
    assert (counts.below1d, counts.above1d) == (1, 1)
    np.testing.assert_array_equal(counts.counts2d, [[1, 0, 2, 0], [1, 0, 0, 2]])
    assert (counts.below2d, counts.above2d, counts.parameter_below, counts.parameter_above) == (1, 1, 2, 2)


def test_what_is_not_finite_is_counted_apart_and_in_no_bin() -> None:
    values = [float("nan"), INFINITY, -INFINITY, 0.1, 0.1, 0.1, 0.1]
    counts = count(values, [0.0, 0.0, 0.0, float("nan"), INFINITY, -INFINITY, 0.0])
    assert (counts.nan, counts.pos_inf, counts.neg_inf) == (1, 1, 1)
    assert (counts.below1d, counts.above1d, counts.below2d, counts.above2d) == (0, 0, 0, 0)
    assert counts.counts1d.sum() == 4
    assert counts.counts2d.sum() == 1
    assert counts.parameter_not_finite == 3
    record = counts.histogram2d(step=3)
    assert record.counts.sum() + record.nan + record.pos_inf + record.neg_inf == len(values)
    assert (record.parameter_below, record.parameter_above) == (0, 0)


def test_the_1d_histogram_is_the_marginal_of_the_2d_one_where_the_bins_agree() -> None:
    values, parameter = torch.randn(5, 40).tolist(), torch.randn(40)
    parameter[:2] = torch.tensor([float("nan"), INFINITY])
    values[0][:3] = [float("nan"), INFINITY, 7.0]
    shared = Spec(Bins(-1, 1, 2), (Bins(-1, 1, 2), Bins(-2, 2, 4)))
    alone = Spec(Bins(-1, 1, 2))
    marginal, counted = Counts.zeros(shared), Counts.zeros(alone)
    count_values(torch.tensor(values), prepare_parameter(parameter, shared), shared, marginal)
    count_values(torch.tensor(values), None, alone, counted)
    assert marginal.table1d is None
    np.testing.assert_array_equal(marginal.counts1d, counted.counts1d)
    assert marginal.histogram1d(0).above == counted.histogram1d(0).above
    assert (marginal.nan, marginal.pos_inf) == (counted.nan, counted.pos_inf) == (1, 1)


def test_layers_add_up_to_the_network() -> None:
    first, second = count([0.1, -0.3], [0.0, 1.0]), count([5.0], [0.0])
    total = first + second
    np.testing.assert_array_equal(total.counts1d, first.counts1d + second.counts1d)
    np.testing.assert_array_equal(total.counts2d, first.counts2d + second.counts2d)
    assert first.counts1d.sum() == 2, "adding must not change the layer"
    assert first.merge(second) is first
    assert first.counts1d.sum() == 3


def test_counts_over_different_bins_are_not_added() -> None:
    with pytest.raises(ValueError, match="different bins"):
        count([0.1], [0.0]).merge(Counts.zeros(Spec(Bins(-1, 1, 5))))


def test_reading_between_two_blocks_of_samples_does_not_freeze_the_counts() -> None:
    counts = count([0.1, 0.2], [0.0, 0.0])
    assert counts.counts1d.sum() == 2
    count_values(torch.tensor([[0.3, 0.4]]), prepare_parameter(torch.zeros(2), SPEC), SPEC, counts)
    assert counts.counts1d.sum() == 4


def test_records_carry_edges_and_names() -> None:
    record = count([0.1], [0.0]).histogram2d(step=7, layer="fc.weight")
    assert (record.quantity, record.step, record.layer) == ("GradHist2d", 7, "fc.weight")
    assert record.parameter_edges is not None
    assert record.counts.shape == (len(record.edges) - 1, len(record.parameter_edges) - 1) == (2, 4)


def test_a_histogram_that_was_not_asked_for_is_refused() -> None:
    with pytest.raises(ValueError, match="2D histogram was not asked for"):
        _ = Counts.zeros(Spec(Bins(-1, 1, 4))).counts2d


def test_no_sample_gives_no_count() -> None:
    counts = Counts.zeros(SPEC)
    bins = prepare_parameter(torch.zeros(3, 4), SPEC)
    count_values(torch.zeros(0, 3, 4), bins, SPEC, counts)
    count_outer(torch.zeros(0, 3), torch.zeros(0, 4), bins, SPEC, counts)
    count_outer(torch.zeros(5, 0), torch.zeros(5, 4), prepare_parameter(torch.zeros(0, 4), SPEC), SPEC, counts)
    assert counts.counts1d.sum() == counts.counts2d.sum() == 0


def test_wrong_inputs_say_what_is_wrong() -> None:
    counts, bins = Counts.zeros(SPEC), prepare_parameter(torch.zeros(3, 4), SPEC)
    with pytest.raises(TypeError, match="cast one first"):
        count_outer(torch.zeros(2, 3), torch.zeros(2, 4).half(), bins, SPEC, counts)
    with pytest.raises(ValueError, match="n, out"):
        count_outer(torch.zeros(2, 3), torch.zeros(3, 4), bins, SPEC, counts)
    with pytest.raises(ValueError, match="do not fit"):
        count_values(torch.zeros(2, 5), bins, SPEC, counts)
    with pytest.raises(ValueError, match="prepare_parameter"):
        count_values(torch.zeros(2, 5), None, SPEC, counts)
    with pytest.raises(TypeError, match="int64"):
        count_values(torch.zeros(2, 3, 4, dtype=torch.int64), bins, SPEC, counts)
    with pytest.raises(ValueError, match="unknown path"):
        count_values(torch.zeros(2, 3, 4), bins, SPEC, counts, path="fast")
    assert counts.counts1d.sum() == 0


def test_parameter_bins_know_how_many_elements_lie_outside() -> None:
    parameter = torch.tensor([-9.0, -2.0, 0.0, 2.0, 9.0, 9.0, float("nan"), INFINITY])
    bins = prepare_parameter(parameter, SPEC)
    assert bins is not None
    assert (bins.below, bins.above, bins.not_finite) == (1, 2, 2)
    assert bins.categories.dtype == torch.uint8
    assert prepare_parameter(parameter, Spec(Bins(-1, 1, 4))) is None
