"""Which loss a function has computed, from what its graph keeps: ``F.cross_entropy(model(x), y)`` has no module to ask.

Also finds losses inside the user's own modules, inside the model, and squares or distances that were written out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

from cockpit_core.curvature.autograd_graph import kind_of, output_shape

MOST = 24  # nodes between what is differentiated and the loss itself
_PASSED = ("Mean", "Sum", "Add", "Sub", "Neg", "Mul", "Div", "View", "ReshapeAlias", "Squeeze", "Unsqueeze", "ToCopy")
_SHAPES = ("View", "ReshapeAlias", "Squeeze", "Unsqueeze", "Select", "UnsafeView")
SAME_BOTH_WAYS = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)
REDUCTIONS = ("none", "mean", "sum")


class Given(NamedTuple):
    """What the model gave, and the node that made it; ``others``: the same of each part, where it gave several."""

    value: Tensor
    node: Any
    others: tuple[tuple[Tensor, Any], ...] = ()

    def made(self, difference: Any) -> tuple[Tensor, bool] | None:
        """The part that one side of a difference is, and whether it is the first side; the other is a constant."""
        for value, node in ((self.value, self.node), *self.others):
            sides = [is_made_by(child, node) for child, _ in difference.next_functions] if node is not None else []
            if sides in ([True, None], [None, True]):
                return value, bool(sides[0])
        return None


class GraphLoss(NamedTuple):
    """``factor * module(output, target)``, perhaps with something added. ``addends``: how many elements of the loss are
    added up, 1 for a mean; ``growth``: its elements over those of its inputs, 1 unless shapes were broadcast (the target
    may be unknown then); ``alone``: nothing is added to it."""

    module: nn.Module
    output: Tensor
    target: Tensor | None
    factor: float
    addends: float
    elements: int
    growth: float
    alone: bool


Reading = tuple[nn.Module, Tensor, Tensor | None, int, float]
Weighed = tuple[float, Reading]


def read_graph_loss(root: Any, given: Given | None) -> GraphLoss | None:
    """The first loss on the way down from ``root``; ``given`` is what the model gave."""
    # node, factor, weight that means give an element, whether nothing is added to it
    waiting: list[tuple[Any, float, float, bool]] = [(root, 1.0, 1.0, True)]
    for _ in range(MOST):
        if not waiting:
            return None
        node, factor, share, alone = waiting.pop(0)
        kind = kind_of(node)
        parts = READERS[kind](node, given) if kind in READERS else None
        if parts is None and alone and kind in LIKELIHOODS:  # they have no zero: what is added would count
            for read in LIKELIHOODS[kind]:
                weight, parts = read(node, given) or (1.0, None)
                if parts is not None:
                    factor *= weight
                    break
        if parts is not None:
            module, output, target, elements, growth = parts
            addends = 1.0 if module.reduction == "mean" else share * elements
            hidden = None if target is None else target.detach()
            return GraphLoss(module, output.detach(), hidden, factor, addends, elements, growth, alone)
        scale = factor_of(node, kind) if kind in _PASSED else None
        if scale is not None:
            for place, (child, _) in enumerate(node.next_functions):
                if child is not None:
                    thinner = share / shrinkage(node, child) if kind == "Mean" else share
                    sign = -1.0 if kind == "Sub" and place == 1 else 1.0
                    waiting.append((child, sign * factor * scale, thinner, alone and kind not in ("Add", "Sub")))
    return None


def shrinkage(node: Any, child: Any) -> float:
    return math.prod(output_shape(child)) / max(1, math.prod(output_shape(node)))


def factor_of(node: Any, kind: str) -> float | None:
    """What a node multiplies with; None where it weighs elements one by one, or two losses with each other."""
    if kind == "Neg":
        return -1.0
    if kind not in ("Mul", "Div"):
        return 1.0
    if sum(child is not None for child, _ in node.next_functions) != 1:
        return None
    other = node._saved_other if node.next_functions[0][0] is not None else node._saved_self
    if other is None or (isinstance(other, Tensor) and other.numel() != 1) or (kind == "Div" and not float(other)):
        return None
    return float(other) if kind == "Mul" else 1 / float(other)


def _classes(node: Any, given: Given | None) -> Reading | None:
    """Scores are not kept where a log_softmax is in between; those of the model stand in where they fit."""
    logs, labels = node._saved_self, node._saved_target
    ignored = node._saved_ignore_index
    settings = {"ignore_index": ignored - 2**64 if ignored >= 2**63 else ignored,
                "reduction": REDUCTIONS[node._saved_reduction]}  # fmt: skip
    above = skip_shapes(node.next_functions[0][0])
    if above is None or kind_of(above) != "LogSoftmax":
        return nn.NLLLoss(**settings), logs, labels, labels.numel(), 1.0
    source, logs = above.next_functions[0][0], above._saved_result
    labels = labels.reshape(labels_shape(logs, labels))
    if source is not None and kind_of(source) == "Softmax":
        scores = source._saved_result
    else:
        scores = given.value if given is not None and given.value.shape == logs.shape else logs
    return nn.CrossEntropyLoss(**settings), scores, labels, labels.numel(), 1.0


def _pair(make: Callable[[Any], nn.Module]) -> Callable[[Any, Given | None], Reading | None]:
    def read(node: Any, given: Given | None) -> Reading | None:
        first, second = node._saved_self, node._saved_target
        module = make(node)
        z, y = output_and_target(first, second, module)
        return module, z, y, z.numel(), z.numel() / max(1, own_elements(first), own_elements(second))

    return read


def output_and_target(first: Tensor, second: Tensor, loss_fn: Any) -> tuple[Tensor, Tensor | None]:
    """Which of the two the network gave, and its target. What hangs on parameters itself is no target (two views of a sample);
    losses that are the same both ways are often given the target first. Others mean it: that is a finding."""
    if not second.requires_grad:
        return first, second
    if first.requires_grad:
        return first, None
    return (second, first) if isinstance(loss_fn, SAME_BOTH_WAYS) else (first, second)


def own_elements(tensor: Tensor) -> int:
    """Without those that an expansion repeats."""
    return math.prod(n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)


def _written(
    make: Callable[..., nn.Module], fits: Callable[[Any], bool]
) -> Callable[[Any, Given | None], Reading | None]:
    """Squares or distances of a difference to what the model gave: that and the difference tell the target."""

    def read(node: Any, given: Given | None) -> Reading | None:
        gap, source = node._saved_self, node.next_functions[0][0]
        if not fits(node) or source is None or kind_of(source) != "Sub" or given is None:
            return None
        made = given.made(source)
        if made is None:  # another tensor, or two that depend on parameters
            return None
        module, (z, is_first) = make(reduction="none"), made
        if gap.numel() == z.numel():
            z = z.reshape(gap.shape)
            return module, z, z - gap if is_first else z + gap, gap.numel(), 1.0
        square = gap.dim() == 2 and gap.shape[0] == gap.shape[1] == z.numel()
        return (module, z, None, gap.numel(), gap.numel() / z.numel()) if square else None

    return read


def is_made_by(node: Any, maker: Any) -> bool | None:
    """Is it this node, perhaps in another shape? None: a constant."""
    node = skip_shapes(node, maker)
    return None if node is None else node is maker


def skip_shapes(node: Any, until: Any = None) -> Any:
    """The node behind those that give the same numbers another shape."""
    for _ in range(4):
        if node is None or node is until or kind_of(node) not in _SHAPES:
            break
        node = node.next_functions[0][0]
    return node


def labels_shape(logs: Tensor, labels: Tensor) -> tuple[int, ...]:
    """As the user gave them: torch folds several positions of a sample for the node."""
    plain = (logs.shape[0], *logs.shape[2:]) if logs.dim() > 1 else ()
    return plain if math.prod(plain) == labels.numel() else tuple(labels.shape)


def _reduction(node: Any) -> str:
    return REDUCTIONS[node._saved_reduction]


def _counts(node: Any, given: Given | None) -> Weighed | None:
    """``exp(z) - y z``: counts with the logarithm of their rate."""
    rate, product = (child for child, _ in node.next_functions)
    if rate is None or product is None or (kind_of(rate), kind_of(product)) != ("Exp", "Mul"):
        return None
    source = rate.next_functions[0][0]
    factors = [child for child, _ in product.next_functions]
    if source is None or source not in factors or None not in factors:
        return None
    y = product._saved_self if factors[0] is None else product._saved_other
    z = rate._saved_result.log()
    if not isinstance(y, Tensor):
        return None
    if tuple(y.shape) != tuple(z.shape):  # [B] against [B, 1]
        grown = math.prod(output_shape(node))
        square = y.numel() == z.numel() and grown > y.numel()
        return (1.0, (nn.PoissonNLLLoss(reduction="none"), z, None, grown, grown / y.numel())) if square else None
    return 1.0, (nn.PoissonNLLLoss(reduction="none"), z, y, y.numel(), 1.0)


def _density(node: Any, given: Given | None) -> Weighed | None:
    """``log v + (z - y)^2 / v``, of which a half is a normal density; the target is known where z is what the model gave."""
    children = [child for child, _ in node.next_functions]
    if [kind_of(child) if child is not None else "" for child in children] != ["Log", "Div"] or given is None:
        return None
    square, spread = (child for child, _ in children[1].next_functions)
    if square is None or kind_of(square) != "Pow" or square._saved_exponent != 2:
        return None
    if spread is None or spread is not children[0].next_functions[0][0]:
        return None
    return _of_square(square, given, 2.0)


def _of_square(square: Any, given: Given, weight: float) -> Weighed | None:
    """A normal density whose squared difference is this node; ``weight``: how many times the density of torch it is."""
    gap, source = square._saved_self, square.next_functions[0][0]
    made = given.made(source) if source is not None and kind_of(source) == "Sub" else None
    if made is None or gap.numel() != made[0].numel():
        return None
    z, is_first = made[0].reshape(gap.shape), made[1]
    y = z - gap if is_first else z + gap
    return weight, (nn.GaussianNLLLoss(reduction="none"), z, y, y.numel(), 1.0)


def strip(node: Any) -> tuple[float, Any]:
    """The node behind numbers that it is multiplied with and other shapes, and the product of these numbers."""
    product = 1.0
    for _ in range(8):
        kind = kind_of(node) if node is not None else ""
        scale = factor_of(node, kind) if kind in ("Neg", "Mul", "Div") else 1.0 if kind in _SHAPES else None
        if scale is None:
            break
        product *= scale
        node = next(child for child, _ in node.next_functions if child is not None)
    return product, node


def _log_density(node: Any, given: Given | None) -> Weighed | None:
    """``c s + d (z - y)^2 exp(-k s)``: a normal density whose variance is ``exp(k s)``, times ``2 c / k = 2 d``."""
    children = [strip(child) for child, _ in node.next_functions]
    if given is None or len(children) != 2:
        return None
    for (c, spread), (d, product) in (children, children[::-1]):
        if spread is None or product is None or kind_of(product) not in ("Mul", "Div"):
            continue
        (a, square), (b, power) = (strip(child) for child, _ in product.next_functions)
        if kind_of(product) == "Mul" and square is not None and kind_of(square) == "Exp":
            (a, square), (b, power) = (b, power), (a, square)
        if square is None or power is None or (kind_of(square), kind_of(power)) != ("Pow", "Exp"):
            continue
        k, source = strip(power.next_functions[0][0])
        k = -k if kind_of(product) == "Mul" else k
        weight = 2 * d * a * (b if kind_of(product) == "Mul" else 1 / b)
        if square._saved_exponent == 2 and source is spread and k > 0 and abs(2 * c / k - weight) < 1e-3 * abs(weight):
            return _of_square(square, given, weight)
    return None


def _picked(node: Any, given: Given | None) -> Weighed | None:
    """``log_softmax(z).gather(1, y)`` or ``[arange, y]``: the likelihood of labels, of which a cross-entropy is the negative."""
    above = skip_shapes(node.next_functions[0][0])
    if above is None or kind_of(above) != "LogSoftmax" or len(output_shape(above)) != 2:
        return None
    logs = above._saved_result
    if kind_of(node) == "Gather":
        labels = node._saved_index
        if node._saved_dim % 2**64 not in (1, 2**64 - 1) or labels.shape != (len(logs), 1):
            return None
    else:
        places = node._saved_indices
        if len(places) != 2 or any(place is None or place.shape != (len(logs),) for place in places):
            return None
        rows, labels = places
        if not bool((rows.diff() == 1).all()):
            return None
    scores = given.value if given is not None and given.value.shape == logs.shape else logs
    return -1.0, (nn.CrossEntropyLoss(reduction="none"), scores, labels.reshape(-1), labels.numel(), 1.0)


def _binary(node: Any, given: Given | None) -> Weighed | None:
    """``y log(p) + (1 - y) log(1 - p)``: the likelihood of answers, of which the binary cross-entropy is the negative."""
    terms = []
    for product, _ in node.next_functions:
        if product is None or kind_of(product) != "Mul" or len(product.next_functions) != 2:
            return None
        first, second = (child for child, _ in product.next_functions)
        log, y = (second, product._saved_self) if first is None else (first, product._saved_other)
        if None not in (first, second) or log is None or kind_of(log) != "Log" or not isinstance(y, Tensor):
            return None
        terms.append((y, log._saved_self))
    (y, p), (no, rest) = terms
    whole = y.shape == no.shape and p.shape == rest.shape and bool((y + no == 1).all())
    if not whole or not bool(((p + rest - 1).abs() < 1e-3).all()):  # something small may be added to both
        return None
    elements = math.prod(output_shape(node))
    growth = elements / max(1, p.numel(), y.numel())
    target = y if y.shape == p.shape else y.reshape(p.shape) if y.numel() == p.numel() else None
    p = p.clamp(0.0, 1.0)
    return -1.0, (nn.BCELoss(reduction="none"), p, None if growth > 1 else target, elements, growth)


Likelihood = Callable[[Any, Given | None], Weighed | None]
LIKELIHOODS: dict[str, tuple[Likelihood, ...]] = {
    "Sub": (_counts,),
    "Add": (_binary, _density, _log_density),
    "Gather": (_picked,),
    "Index": (_picked,),
}
READERS: dict[str, Callable[[Any, Given | None], Reading | None]] = {
    "NllLoss": _classes,
    "NllLoss2D": _classes,
    "MseLoss": _pair(lambda node: nn.MSELoss(reduction=_reduction(node))),
    "SmoothL1Loss": _pair(lambda node: nn.SmoothL1Loss(reduction=_reduction(node), beta=node._saved_beta)),
    "HuberLoss": _pair(lambda node: nn.HuberLoss(reduction=_reduction(node), delta=node._saved_delta)),
    "BinaryCrossEntropy": _pair(lambda node: nn.BCELoss(reduction=_reduction(node))),
    "BinaryCrossEntropyWithLogits": _pair(lambda node: nn.BCEWithLogitsLoss(reduction=_reduction(node))),
    "Pow": _written(nn.MSELoss, lambda node: node._saved_exponent == 2),
    "Abs": _written(nn.L1Loss, lambda node: True),
}
