"""RNN, LSTM and GRU: two linear maps per layer and direction, applied at every time step.

Their individual gradients are those of a Linear with one position per time step, once the gradient at the gates is
known. It is computed by repeating the recurrence once for the whole batch, step by step, instead of one backward pass
per sample.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cockpit_core.layers.contribution import Contribution, Positions, Rows
from cockpit_core.layers.registry import Call, match_dtype, rule
from cockpit_core.layers.row_order import BySample, by_sample

Maps = dict[str, tuple[list[Tensor], list[Tensor]]]
"""By suffix of the parameter names: inputs and outputs of the map at each time step, [R, features] each."""


@rule(nn.RNN, nn.LSTM, nn.GRU, repeats=True)
def recurrence(call: Call, outputs: dict[int, Tensor], scale: float) -> dict[str, Contribution] | None:
    """Contributions by local parameter name; None where the call has no rule (the fallback is used)."""
    module: nn.RNNBase = call.module  # type: ignore[assignment]
    given = dict(zip(("input", "hx"), call.inputs, strict=False)) | call.kwargs
    own = call.own_parameters()
    x: Any = given.get("input")
    if not has_rule(module, x, call.training):
        return None
    x = match_dtype(x.transpose(0, 1) if module.batch_first else x, own["weight_ih_l0"])  # [T, R, features]
    gather = by_sample(call, outputs, x.shape[1])
    if gather is None:
        return None
    with torch.enable_grad():
        maps: Maps = {}
        results = run_layers(module, own, x, initial_states(module, given.get("hx"), x), maps)
        ends = [(results[k], match_dtype(b, x)) for k, b in outputs.items()]
        at_maps = [out for _, outs in maps.values() for out in outs]
        slopes = torch.autograd.grad([e for e, _ in ends], at_maps, [b for _, b in ends], materialize_grads=True)
    return as_parts(own, maps, list(slopes), gather, scale)


def has_rule(module: nn.RNNBase, x: Any, training: bool) -> bool:
    """A packed sequence, a sample without a batch, projections and dropout between layers are left to the fallback."""
    drops = training and module.dropout > 0 and module.num_layers > 1
    return isinstance(x, Tensor) and x.dim() == 3 and not module.proj_size and not drops


def initial_states(module: nn.RNNBase, hx: Any, x: Tensor) -> list[Tensor]:
    """Hidden state (and cell state) of all layers and directions, [layers * directions, B, hidden] each."""
    count = 2 if module.mode == "LSTM" else 1
    if hx is None:
        rows = module.num_layers * (2 if module.bidirectional else 1)
        return [x.new_zeros(rows, x.shape[1], module.hidden_size) for _ in range(count)]
    return [match_dtype(state, x) for state in (hx if isinstance(hx, tuple) else (hx,))]


def run_layers(module: nn.RNNBase, own: dict[str, Tensor], x: Tensor, states: list[Tensor], maps: Maps) -> list[Tensor]:
    """The module's outputs in the order of its tuple: all hidden states, the last ones, the last cell states."""
    directions, last = 2 if module.bidirectional else 1, []
    for layer in range(module.num_layers):
        sides = []
        for direction in range(directions):
            suffix = f"l{layer}" + ("_reverse" if direction else "")
            start = [state[layer * directions + direction] for state in states]
            steps = x.flip(0) if direction else x
            hidden, end = run_steps(module.mode, own, suffix, steps, start, maps)
            sides.append(hidden.flip(0) if direction else hidden)
            last.append(end)
        x = torch.cat(sides, -1)
    out = x.transpose(0, 1) if module.batch_first else x
    return [out, *(torch.stack(ends) for ends in zip(*last, strict=True))]


def run_steps(
    mode: str, own: dict[str, Tensor], suffix: str, x: Tensor, state: list[Tensor], maps: Maps
) -> tuple[Tensor, list[Tensor]]:
    """One layer in one direction. What comes out of its two maps is noted: the gradient is wanted there."""
    weights = [own[f"weight_{kind}_{suffix}"].detach() for kind in ("ih", "hh")]
    biases = [
        own[f"bias_{kind}_{suffix}"].detach() if f"bias_{kind}_{suffix}" in own else None for kind in ("ih", "hh")
    ]
    from_input = F.linear(x, weights[0], biases[0])
    if not from_input.requires_grad:
        from_input.requires_grad_()
    inputs, hiddens, at_input, at_hidden = list(x.detach()), [], list(from_input), []
    results = []
    for a in at_input:
        hiddens.append(state[0].detach())
        h = F.linear(state[0], weights[1], biases[1])
        at_hidden.append(h if h.requires_grad else h.requires_grad_())
        state = advance(mode, a, at_hidden[-1], state)
        results.append(state[0])
    maps[f"ih_{suffix}"], maps[f"hh_{suffix}"] = (inputs, at_input), (hiddens, at_hidden)
    return torch.stack(results), state


def advance(mode: str, a: Tensor, b: Tensor, state: list[Tensor]) -> list[Tensor]:
    """One time step from what the input (a) and the hidden state (b) contribute to the gates."""
    if mode == "LSTM":
        i, f, g, o = (a + b).chunk(4, -1)
        cell = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        return [torch.sigmoid(o) * torch.tanh(cell), cell]
    if mode == "GRU":
        (r, z, n), (hr, hz, hn) = a.chunk(3, -1), b.chunk(3, -1)
        reset, keep = torch.sigmoid(r + hr), torch.sigmoid(z + hz)
        return [(1 - keep) * torch.tanh(n + reset * hn) + keep * state[0]]
    return [torch.tanh(a + b) if mode == "RNN_TANH" else torch.relu(a + b)]


def as_parts(
    own: dict[str, Tensor], maps: Maps, gradients: list[Tensor], gather: BySample, scale: float
) -> dict[str, Contribution]:
    parts: dict[str, Contribution] = {}
    for suffix, (inputs, outs) in maps.items():
        b, gradients = gather(torch.stack(gradients[: len(outs)], 1)), gradients[len(outs) :]  # [B, S, gates]
        weight = own[f"weight_{suffix}"]
        parts[f"weight_{suffix}"] = Positions(b, gather(torch.stack(inputs, 1)), weight.shape, scale)
        if f"bias_{suffix}" in own:
            parts[f"bias_{suffix}"] = Rows(b.sum(1), own[f"bias_{suffix}"].shape, scale)
    return parts
