"""From captured calls to contributions: what each sample adds to the gradient of a parameter, not yet formed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from cockpit_core.engine.capture import Captured, Pass
from cockpit_core.engine.cover import Cover
from cockpit_core.foundation.faults import describe_error
from cockpit_core.foundation.ungraded import Ungraded
from cockpit_core.layers.contribution import Contribution, Joined, Rows, Same, Summed, Zeros
from cockpit_core.layers.fallback import fallback
from cockpit_core.layers.registry import Call, NotCovered, Repeating, find_rule
from cockpit_core.layers.standing_in import Tried


class Maker:
    """Makes contributions by the rules of the layers, or by the generic fallback, in passes of our own that no hook
    sees."""

    def __init__(self, cover: Cover, memory_budget: int, mute: Callable[[], Any]):
        self.cover, self.memory_budget, self.mute = cover, memory_budget, mute

    def of_call(self, held: Captured, scale: float) -> dict[str, Contribution]:
        """The contributions of one call, by local parameter name: the module's rule, or the generic fallback."""
        call, seeds = held.call, held.gradients
        held.check_unchanged()
        if call.refusal:
            raise NotCovered(call.refusal)
        with Ungraded():
            parts = apply_rule(call, seeds, held.names, scale, self.cover)
            rest, method = [local for local in held.names if local not in parts], call.method
            if rest:
                others = fallback(call, seeds, rest, scale, self.memory_budget, self.mute)
                call.method = "fallback" if not parts else method
                return parts | others
        if isinstance(find_rule(call.module), Repeating):
            make = partial(fallback, call, seeds, held.names, scale, self.memory_budget, self.mute)
            behind = Behind(make, call, self.cover)
            return {local: Tried(part, partial(behind.get, local)) for local, part in parts.items()}
        return parts

    def of_parameter(self, pass_: Pass, name: str, scale: float) -> Contribution:
        """``g_n`` of one parameter in one pass, all its uses summed per sample."""
        places, direct = pass_.by_parameter.get(name, ()), pass_.direct.get(name)
        if len(places) == 1 and not direct and name not in pass_.shared and not pass_.is_union:
            return self.of_use(*places[0], scale)
        shape = self.cover.parameters[name].shape
        parts: list[tuple[int, Contribution]] = []
        for forward, rows in (direct or {}).items():
            parts.append((forward, Rows(rows, shape, scale)))
        for held, local in places if not parts else ():
            parts.append((held.call.forward, self.of_use(held, local, scale)))
        row = pass_.shared[name] / pass_.batch_size if name in pass_.shared else None
        if pass_.is_union and (parts or row is not None):
            each = [[part for own, part in parts if own == forward] for forward in sorted(pass_.sizes)]
            sizes = [size for _, size in sorted(pass_.sizes.items())]
            pairs = list(zip(each, sizes, strict=True))
            if row is not None:
                pairs = [([*some, Same(row, size, scale)], size) for some, size in pairs]
            return Joined([sum_up(some) if some else Zeros(size, shape, scale) for some, size in pairs])
        also = [] if row is None else [Same(row, pass_.batch_size, scale)]
        return sum_up([*(part for _, part in parts), *also])

    def of_use(self, held: Captured, local: str, scale: float) -> Contribution:
        """What one call contributes to one of its parameters."""
        if held.contributions is None:
            held.contributions = self.of_call(held, scale)
        if local not in held.contributions:
            raise NotCovered(
                f"{type(held.call.module).__name__} has no parameter {local} any more (pruning, a parametrization)"
            )
        held.waiting.discard(local)
        return held.contributions[local].resolve()

    def nothing(self, pass_: Pass, name: str, scale: float) -> Contribution:
        """The contribution of a pass that does not go through this parameter."""
        return Zeros(pass_.batch_size, self.cover.parameters[name].shape, scale)


def apply_rule(
    call: Call, seeds: dict[int, Tensor], names: list[str], scale: float, cover: Cover
) -> dict[str, Contribution]:
    """What the module's own rule gives. Nothing where it has none, or where it fails: then the fallback is used."""
    rule = find_rule(call.module) if cover.trusts(call.module) else None
    if rule is None:
        return {}
    try:
        if isinstance(rule, Repeating):
            parts = rule(call, seeds, scale)
            return {name: part for name, part in parts.items() if name in names}
        own = [local for local in names if "." not in local]  # others belong to modules inside this one
        if own:
            parts = rule(call, seeds[0], scale)
            return {name: parts[name] for name in own if name in parts}
    except NotCovered:
        raise
    except Exception as error:
        call.reason = f"its rule failed: {describe_error(error)}"
        cover.distrust(call.module, error)
    return {}


class Behind:
    """The fallback of one call whose rule did not add up; made once for all its parameters."""

    def __init__(self, make: Callable[[], dict[str, Contribution]], call: Call, cover: Cover):
        self.make, self.call, self.cover = make, call, cover
        self.parts: dict[str, Contribution] | None = None

    def get(self, local: str) -> Contribution:
        if self.parts is None:
            self.parts = self.make()
            self.call.reason = "its rule did not add up to its gradient"
            self.cover.distrust(self.call.module)
        return self.parts[local]


def sum_up(parts: list[Contribution]) -> Contribution:
    """All uses of the same samples."""
    if not parts:
        raise NotCovered(
            "its module was not seen in this backward pass: a function uses the weight, another pass made its gradient, or "
            "one compiled function around model and loss hides the call (compile the model alone)"
        )
    if any(part.samples != parts[0].samples for part in parts):
        raise NotCovered("its uses see different numbers of samples")
    return parts[0] if len(parts) == 1 else Summed(parts)
