"""Our layer rules as a BackPACK extension, for people who use BackPACK themselves.

    from backpack import backpack, extend
    from cockpit_core.backpack import GradientStatistics

    with backpack(GradientStatistics(norms=True, squares=True)):
        loss_fn(model(inputs), labels).backward()
    for p in model.parameters():
        p.gradient_statistics.norms      # ||g_n||^2 [B], reduced layer by layer; no individual gradient is stored

``g_n`` is scaled as in Cockpit: ``g = (1/B) sum_n g_n``. Inside ``cockpit_core.track`` the same rules are reached by
hooks that allow what BackPACK's do not: in-place activations, modules called twice, shared parameters.
"""

from __future__ import annotations

from typing import Any

from backpack.extensions.firstorder.base import FirstOrderBackpropExtension, FirstOrderModuleExtension
from torch import Tensor, nn

import cockpit_core.layers  # noqa: F401 - importing the folder registers its rules
from cockpit_core.engine.clock import Clock
from cockpit_core.engine.statistics import LayerStatistics, Request, reduce_layer
from cockpit_core.kernels import Spec, prepare_parameter
from cockpit_core.layers.registry import RULES, Call, Repeating


class GradientStatistics(FirstOrderBackpropExtension):
    """Saves a ``LayerStatistics`` as ``p.gradient_statistics``.

    norms: ``||g_n||^2`` [B]. squares: ``sum_n g_n^2``. spec: histograms (``cockpit_core.kernels.Spec``).
    """

    def __init__(
        self, *, norms: bool = True, squares: bool = False, spec: Spec | None = None, memory_budget: int = 256 * 2**20
    ):
        self.request = Request(norms, squares, spec, memory_budget)
        plain = [kind for kind, rule in RULES.items() if not isinstance(rule, Repeating)]
        super().__init__(
            "gradient_statistics", {kind: _ByRule(params=["weight", "bias"]) for kind in plain}, fail_mode="SILENT"
        )


class _ByRule(FirstOrderModuleExtension):
    """BackPACK asks for each parameter by a method of its name."""

    def weight(
        self, extension: GradientStatistics, module: nn.Module, g_inp: Any, g_out: Any, _: Any
    ) -> LayerStatistics:
        return self._reduce(extension, module, "weight", g_out[0])

    def bias(self, extension: GradientStatistics, module: nn.Module, g_inp: Any, g_out: Any, _: Any) -> LayerStatistics:
        return self._reduce(extension, module, "bias", g_out[0])

    def _reduce(self, extension: GradientStatistics, module: nn.Module, name: str, b: Tensor) -> LayerStatistics:
        inputs = module.input0.detach()  # type: ignore[operator]
        B = len(inputs)
        call = Call(module, (inputs,), {}, B, 0, training=module.training)
        part = RULES[type(module)](call, b.detach(), float(B))[name]
        parameter: nn.Parameter = getattr(module, name)
        bins = None if extension.request.spec is None else prepare_parameter(parameter, extension.request.spec)
        return reduce_layer(part, {}, extension.request, bins, Clock())
