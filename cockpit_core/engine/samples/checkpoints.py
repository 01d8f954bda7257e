"""Reentrant checkpoints (``use_reentrant=True``) hide what they do to rows until the backward pass.

The function inside runs once more, on copies, and every tensor on the way from its outputs to its inputs is looked at.
Where each has its samples in their places, so have the layers inside. Where rows move or samples meet, which layer is on
which side of that cannot be told: everything is marked.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from cockpit_core.engine.samples.behind import find_region, mixes_batch
from cockpit_core.engine.samples.layout import find_layout
from cockpit_core.engine.samples.own_functions import Doubt
from cockpit_core.layers.seeds import copy_inputs, flatten_tensors

Pairs = dict[int, tuple[Tensor, Tensor]]
Pull = Callable[[dict[Any, Pairs], set[Any], Callable[[Any, Pairs], None]], None]
"""From seeds to wanted nodes, each of which is shown what arrives at it."""
MOVED = "samples meet or change places inside it"


def run_inside(node: Any) -> tuple[list[Tensor], list[Tensor]]:
    """The function inside with its own graph: the inputs that need a gradient, and its outputs."""
    given = list(node.inputs)
    for place, tensor in zip(node.tensor_indices, node.saved_tensors, strict=True):
        given[place] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    inputs = [given[place] for place in node.tensor_indices if given[place].requires_grad]
    with torch.enable_grad(), torch.amp.autocast("cpu", **node.cpu_autocast_kwargs), autocast_of(node):
        outputs = node.run_function(*(v if isinstance(v, Tensor) else copy_inputs(v) for v in given))
    return inputs, flatten_tensors(outputs)


def autocast_of(node: Any) -> Any:
    """The autocast settings of the device, as the call had them."""
    options = node.device_autocast_kwargs
    return nullcontext() if options is None else torch.amp.autocast(node.device_type, **options)


def pull_through_checkpoint(node: Any, pairs: Pairs, samples: int, pull: Pull) -> Pairs:
    """From its outputs to its inputs, by edge. Doubt where a tensor on the way has its samples elsewhere."""
    try:
        inputs, outputs = run_inside(node)
    except Exception as error:  # whatever the user's code does when it runs at another time
        raise Doubt(f"{type(error).__name__} when it runs again") from error
    seeds: dict[Any, Pairs] = {}
    for k, pair in pairs.items():
        if k >= len(outputs) or outputs[k].shape != pair[0].shape:
            raise Doubt("it gives something else when it runs again")
        if outputs[k].grad_fn is not None:
            seeds.setdefault(outputs[k].grad_fn, {})[outputs[k].output_nr] = pair
    ends = [torch.autograd.graph.get_gradient_edge(tensor).node for tensor in inputs]
    on_the_way = find_region(seeds, set(ends))
    if any(mixes_batch(place) for place in on_the_way):
        raise Doubt(MOVED)
    by_place: dict[Any, tuple[Tensor, Tensor]] = {}

    def visit(place: Any, arrived: Pairs) -> None:
        for pair in arrived.values():
            if place in on_the_way and not is_still(pair, samples):
                raise Doubt(MOVED)
        if place in ends:
            by_place[place] = arrived[0]

    pull(seeds, on_the_way, visit)
    edges = [k for k, (child, _) in enumerate(node.next_functions) if child is not None]
    if len(edges) != len(ends):
        raise Doubt("its inputs do not match its gradients")
    return {edge: by_place[end] for edge, end in zip(edges, ends, strict=True) if end in by_place}


def is_still(pair: tuple[Tensor, Tensor], samples: int) -> bool:
    """Samples are counted by one dimension, by the first one wherever that could count them, or by a part of one."""
    shape = pair[0].shape
    layout = find_layout(pair, samples, 0, tuple(range(1, len(shape) + 1)))
    if layout.rows is not None:
        return is_strided(layout.rows, samples)
    return not layout.mixed and (layout.dim in (0, None) or shape[0] != samples)


def is_strided(rows: Tensor, samples: int) -> bool:
    """``(place // k) % B`` for some k: what reshaping and transposing make of a batch. -1 is nobody's row."""
    places = torch.arange(len(rows), device=rows.device)
    for k in (k for k in range(1, len(rows) // samples + 1) if len(rows) % (k * samples) == 0):
        if bool(((places // k % samples == rows) | (rows < 0)).all()):
            return True
    return False
