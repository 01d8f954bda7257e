"""Is the loss a sum over samples? Walks from the scalar to the model's outputs (see ``replay``).

A sum or mean of terms, each of which depends on one sample's outputs, gives individual gradients. Where terms see several
samples (contrastive losses), or the sum passes through a curved function, what a sample contributes is still defined and
adds up to the gradient, but it is not the gradient of that sample's loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from cockpit_core.curvature.autograd_graph import WRAPPER
from cockpit_core.engine.samples.behind import find_region
from cockpit_core.engine.samples.layout import lies_along, weigh
from cockpit_core.engine.samples.replay import (
    Pair,
    Places,
    Reading,
    call_node,
    fit,
    is_packed,
    name_of,
    pull,
    shape_of,
)

SUMS = (
    *("SumBackward", "MeanBackward", "NllLoss", "MseLoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "KlDiv"),
    *("BinaryCrossEntropy", "SoftMarginLoss", "DotBackward", "MultiMarginLoss", "MultilabelMarginLoss"),
)
"""Sums over all elements of their input, weighted with constants."""
SCALED = ("MulBackward", "DivBackward", "AddBackward", "SubBackward", "NegBackward", "ToCopyBackward")
SHAPES = (
    *("ViewBackward", "ReshapeAliasBackward", "UnsafeViewBackward", "SqueezeBackward", "UnsqueezeBackward"),
    *("CloneBackward", "AliasBackward", "SelectBackward", "StackBackward", "CatBackward", "UnbindBackward"),
)


SEVERAL = "a term of the loss depends on the outputs of several samples"
MOST_ROWS = 64
"""If no dimension of a term counts samples, this many of its entries are looked at one by one."""


class Curved(Exception):
    """The message names the function that is not a sum."""


class Unknown(Exception):
    """This cannot be seen without running the user's code."""


def is_scalar(node: Any) -> bool:
    return all(torch.Size(meta.shape).numel() == 1 for meta in node._input_metadata)


def find_sums(root: Any, region: set[Any], samples: int) -> Iterator[tuple[Any, int, Tensor]]:
    """(node, input, gradient at the input) of each sum over several elements below the scalar ``root``. Several scalars in
    one tensor (``torch.stack(losses).mean()``) are seen one by one, unless there is one for each sample."""
    one = torch.ones(shape_of(root, 0), dtype=root._input_metadata[0].dtype, device=root._input_metadata[0].device)
    waiting = [(root, {0: one})]
    while waiting:
        node, gradients = waiting.pop()
        name = name_of(node)
        below = [(k, child, index) for k, (child, index) in enumerate(node.next_functions) if child in region]
        if node.name() == WRAPPER:
            waiting += [(child, {index: gradients[k]}) for k, child, index in below if k in gradients]
            continue
        wide = [k for k, child, index in below if is_wide(child, index, samples)]
        if not name.startswith((*SCALED, *SHAPES, *SUMS)) or (wide and not name.startswith((*SUMS, "SelectBackward"))):
            raise Curved(name)
        if name.startswith(("MulBackward", "DivBackward", "DotBackward")) and len(below) > 1:
            raise Curved(name)
        if name.startswith("DivBackward") and any(k == 1 for k, _, _ in below):
            raise Curved(name)
        if is_packed(node, careful=False):
            raise Unknown
        results = call_node(node, gradients)
        for k, child, index in below:
            gradient = results[k]
            if gradient is None:
                continue
            if k in wide:
                yield child, index, fit(gradient, child, index)
            else:
                waiting.append((child, {index: fit(gradient, child, index)}))


def is_wide(node: Any, index: int, samples: int) -> bool:
    count = shape_of(node, index).numel()
    return count > 1 and (count == samples or not joins_scalars(node))


def joins_scalars(node: Any) -> bool:
    """Is it several scalars side by side, perhaps each with a factor?"""
    name, below = name_of(node), [edge for edge in node.next_functions if edge[0] is not None]
    if name.startswith(("StackBackward", "CatBackward")):
        return all(shape_of(*edge).numel() == 1 for edge in below)
    return name.startswith((*SCALED, *SHAPES)) and len(below) == 1 and joins_scalars(below[0][0])


def places_of_samples(shape: torch.Size, samples: int, batch_dim: int) -> list[int]:
    """Dimensions that may count the samples, the likeliest first."""
    exact = sorted((d for d, size in enumerate(shape) if size == samples), key=lambda d: d != batch_dim)
    several = [d for d, size in enumerate(shape) if size > samples and size % samples == 0]
    return [*exact, *several]


def why_not_a_sum(root: Any, outputs: dict[Any, dict[int, int]], samples: int, batch_dim: int, reading: Reading) -> str:
    """ "" where the loss is a sum over samples; else what makes it something else.

    ``outputs``: node -> output -> the dimension of the model's output that counts samples.
    """
    region = find_region([root], set(outputs))
    if root in outputs or not is_scalar(root) or root not in region:
        return ""
    reason = SEVERAL
    for joined in (samples, 0):  # as many scalars in one tensor as there are samples may be anything else
        try:
            with torch.no_grad():
                sums = find_sums(root, region, joined)
                if all(is_sum_over_samples(*one, outputs, samples, batch_dim, reading) for one in sums):
                    return ""
        except Unknown:
            return ""
        except Curved as function:
            reason = curved(function)
            break
    return reason


def curved(function: Curved) -> str:
    return f"the loss is a curved function ({function}) of a sum over samples"


def is_sum_over_samples(
    node: Any,
    index: int,
    gradient: Tensor,
    outputs: dict[Any, dict[int, int]],
    samples: int,
    batch_dim: int,
    reading: Reading,
) -> bool:
    reading.unsettled |= not bool(gradient.any())  # a term with a weight of zero
    for dim in places_of_samples(gradient.shape, samples, batch_dim):
        if is_along({node: {index: (gradient, weigh(gradient, dim, samples))}}, outputs, samples, reading):
            return True
    return all(len(owners_of(node, index, part, outputs, reading)) < 2 for part in rows_of(gradient))


def is_along(seeds: Places, outputs: dict[Any, dict[int, int]], samples: int, reading: Reading) -> bool:
    """Do these seeds, one weight for each sample, arrive along the dimensions that count samples in ``outputs``?"""
    apart: list[bool] = []

    def visit(z: Any, pairs: dict[int, Pair]) -> None:
        known = [(pair, outputs[z][nr]) for nr, pair in pairs.items() if nr in outputs[z]]
        apart.extend(lies_along(pair, place, samples) for pair, place in known)

    pull(seeds, set(outputs), visit, reading, stop=set(outputs))
    return all(apart)


def rows_of(gradient: Tensor) -> Iterator[Tensor]:
    """A term written sample by sample (``loss(output[n], ...)``) as a whole; else row by row, where those are few."""
    if not gradient.dim() or len(gradient) > MOST_ROWS:
        yield gradient
        return
    for n in range(len(gradient)):
        only = torch.zeros_like(gradient)
        only[n] = gradient[n]
        yield only


def owners_of(
    node: Any, index: int, gradient: Tensor, outputs: dict[Any, dict[int, int]], reading: Reading
) -> set[int]:
    """On the outputs of which samples does this part of a sum depend?"""
    owners: set[int] = set()

    def visit(place: Any, pairs: dict[int, Pair]) -> None:
        for nr, (c, _) in pairs.items():
            if nr in outputs[place]:
                first = c.movedim(outputs[place][nr], 0)
                touched = first.reshape(len(first), -1).any(1)
                owners.update(torch.nonzero(touched).flatten().tolist())

    pull({node: {index: (gradient, gradient)}}, set(outputs), visit, reading, stop=set(outputs))
    return owners
