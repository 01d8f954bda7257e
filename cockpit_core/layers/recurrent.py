"""RNN, LSTM and GRU: two linear maps per layer and direction, applied at every time step.

Their individual gradients are those of a Linear with one position per time step, once the gradient at the gates is
known. It is computed by going back through the recurrence once for the whole batch (``recurrent_slopes``), instead of one
backward pass per sample.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cockpit_core.layers.contribution import Contribution, Positions, Rows
from cockpit_core.layers.recurrent_slopes import Layer, Walked, find_slopes, walk
from cockpit_core.layers.registry import Call, match_dtype, rule
from cockpit_core.layers.row_order import BySample, by_sample

Maps = dict[str, tuple[Tensor, Tensor]]
"""By suffix of the parameter names: the map's inputs and the gradient of its outputs, [R, T, features] each."""


ENDS = ("Transpose", "Stack", "Cat", "MkldnnRnnLayer", "CudnnRnn")
"""Where the hidden states of a recurrent module come from in the graph. Another end: a hook has changed them."""


def keep_hidden(call: Call, outputs: list[Tensor]) -> None:
    """All hidden states of the last layer are the first output. The graph keeps them too; nothing is to be read there."""
    end = outputs[0].grad_fn if outputs else None
    if end is not None and end.name().startswith(ENDS):
        call.inner = outputs[0].detach()
        call.inner_version = call.inner._version


def known_hidden(call: Call) -> Tensor | None:
    """[R, T, directions * H], where they are still what the module gave."""
    known, module = call.inner, call.module
    if known is None or known._version != call.inner_version or known.dtype != module.weight_ih_l0.dtype:
        return None
    return known if module.batch_first else known.transpose(0, 1)


@rule(nn.RNN, nn.LSTM, nn.GRU, repeats=True, find_inner=keep_hidden)
def recurrence(call: Call, outputs: dict[int, Tensor], scale: float) -> dict[str, Contribution] | None:
    """Contributions by local parameter name; None where the call has no rule (the fallback is used)."""
    module: nn.RNNBase = call.module  # type: ignore[assignment]
    given = dict(zip(("input", "hx"), call.inputs, strict=False)) | call.kwargs
    own = call.own_parameters()
    x: Any = given.get("input")
    if not has_rule(module, x, call.training):
        return None
    x = match_dtype(x if module.batch_first else x.transpose(0, 1), own["weight_ih_l0"])  # [R, T, features]
    gather = by_sample(call, outputs, x.shape[0])
    if gather is None:
        return None
    with torch.no_grad():
        layers = list_layers(module, own, initial_states(module, given.get("hx"), x))
        walked = go_forward(layers, x, known_hidden(call))
        return as_parts(own, go_back(layers, walked, given_slopes(module, outputs, x)), gather, scale)


def has_rule(module: nn.RNNBase, x: Any, training: bool) -> bool:
    """A packed sequence, a sample without a batch, projections and dropout between layers are left to the fallback."""
    drops = training and module.dropout > 0 and module.num_layers > 1
    whole = isinstance(x, Tensor) and x.dim() == 3 and x.numel() > 0
    return whole and not module.proj_size and not drops


def initial_states(module: nn.RNNBase, hx: Any, x: Tensor) -> list[Tensor]:
    """Hidden state (and cell state) of all layers and directions, [layers * directions, R, hidden] each."""
    count = 2 if module.mode == "LSTM" else 1
    if hx is None:
        rows = module.num_layers * (2 if module.bidirectional else 1)
        return [x.new_zeros(rows, x.shape[0], module.hidden_size) for _ in range(count)]
    return [match_dtype(state, x) for state in (hx if isinstance(hx, tuple) else (hx,))]


def given_slopes(module: nn.RNNBase, outputs: dict[int, Tensor], x: Tensor) -> dict[int, Tensor]:
    """Gradients of the module's outputs: of all hidden states [R, T, ...], of the last ones, of the last cell states."""
    known = {k: match_dtype(b, x) for k, b in outputs.items()}
    if 0 in known and not module.batch_first:
        known[0] = known[0].transpose(0, 1)
    return known


def list_layers(module: nn.RNNBase, own: dict[str, Tensor], states: list[Tensor]) -> list[list[tuple[str, Layer]]]:
    """By layer and direction, with the suffix of its parameters."""
    directions = 2 if module.bidirectional else 1
    layers = []
    for k in range(module.num_layers):
        sides = []
        for direction in range(directions):
            suffix = f"l{k}" + ("_reverse" if direction else "")
            weights = own[f"weight_ih_{suffix}"].detach(), own[f"weight_hh_{suffix}"].detach()
            names = [f"bias_{kind}_{suffix}" for kind in ("ih", "hh")] if module.bias else []
            start = [state[k * directions + direction] for state in states]
            sides.append((suffix, Layer(module.mode, weights, tuple(own[name].detach() for name in names), start)))
        layers.append(sides)
    return layers


def go_forward(layers: list[list[tuple[str, Layer]]], x: Tensor, known: Tensor | None) -> list[list[Walked]]:
    """The second direction sees time the other way round, in what it was given and in what it leaves. ``known``: what the
    last layer has left."""
    walked = []
    for number, sides in enumerate(layers):
        is_last = number + 1 == len(layers)
        given = known.chunk(len(sides), -1) if known is not None and is_last else [None] * len(sides)
        walked.append(
            [go_along(layer, x, own, k > 0) for k, ((_, layer), own) in enumerate(zip(sides, given, strict=True))]
        )
        if not is_last:
            x = torch.cat([own.hidden.flip(1) if k else own.hidden for k, own in enumerate(walked[-1])], -1)
    return walked


def go_along(layer: Layer, x: Tensor, hidden: Tensor | None, reverse: bool) -> Walked:
    if not reverse:
        return walk(layer, x, hidden)
    return walk(layer, x.flip(1), None if hidden is None else hidden.flip(1))


def go_back(layers: list[list[tuple[str, Layer]]], walked: list[list[Walked]], outputs: dict[int, Tensor]) -> Maps:
    """From the last layer to the first; what a layer hands back is the gradient of all hidden states of the one before."""
    maps: Maps = {}
    b = outputs.get(0)
    for number in range(len(layers) - 1, -1, -1):
        sides, passed, before = layers[number], walked[number], None
        for k, ((suffix, layer), own) in enumerate(zip(sides, passed, strict=True)):
            H = own.hidden.shape[2]
            mine = torch.zeros_like(own.hidden) if b is None else b[..., k * H : (k + 1) * H]
            ends = [outputs[j][number * len(sides) + k] if j in outputs else None for j in (1, 2)]
            slopes = find_slopes(layer, own, mine.flip(1) if k else mine, ends)
            maps[f"ih_{suffix}"], maps[f"hh_{suffix}"] = (own.x, slopes.at_input), (own.before, slopes.at_hidden)
            if number:
                back = slopes.at_input @ layer.weights[0]
                back = back.flip(1) if k else back
                before = back if before is None else before + back
        b = before
    return maps


def as_parts(own: dict[str, Tensor], maps: Maps, gather: BySample, scale: float) -> dict[str, Contribution]:
    parts: dict[str, Contribution] = {}
    sums: dict[int, tuple[Tensor, Tensor]] = {}  # the two maps of a layer may share their gradient
    for suffix, (inputs, slopes) in maps.items():
        if id(slopes) not in sums:
            b = gather(slopes)  # [B, S, gates]
            sums[id(slopes)] = b, b.sum(1)
        b, rows = sums[id(slopes)]
        parts[f"weight_{suffix}"] = Positions(b, gather(inputs), own[f"weight_{suffix}"].shape, scale)
        if f"bias_{suffix}" in own:
            parts[f"bias_{suffix}"] = Rows(rows, own[f"bias_{suffix}"].shape, scale)
    return parts
