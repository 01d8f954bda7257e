"""Histograms of individual gradients: exact, never storing what can be formed on the fly, identical on every path."""

from cockpit_core.kernels.bins import AnyBins, Bins, Spec
from cockpit_core.kernels.counts import Counts
from cockpit_core.kernels.door import count_outer, count_values
from cockpit_core.kernels.log_bins import LogBins
from cockpit_core.kernels.parameters import ParameterBins, prepare_parameter

__all__ = [
    "AnyBins",
    "Bins",
    "Counts",
    "LogBins",
    "ParameterBins",
    "Spec",
    "count_outer",
    "count_values",
    "prepare_parameter",
]
