"""One recurrent layer in one direction: the gradient at its two maps, from that of its hidden states.

All but the recurrence itself is computed for all time steps at once. Hidden states are those that the module gave, or that
torch's own kernel gives again; the gates follow from them. Only what gates hand on, and one product with the weight, is
left to do step by step, from the last to the first.

Everything is [R, T, ...]: rows of the module's own batch, then time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from cockpit_core.kernels.native import recurrent as native
from cockpit_core.kernels.native.reducing import can_reduce


class Layer(NamedTuple):
    """Weights, biases (none: empty), and the states that it starts from: hidden, and for an LSTM the cell's. [R, H] each."""

    mode: str
    weights: tuple[Tensor, Tensor]
    biases: tuple[Tensor, ...]
    start: list[Tensor]


class Walked(NamedTuple):
    """What the forward pass leaves: ``x`` [R, T, in], and hidden states before and after each step."""

    x: Tensor
    before: Tensor
    hidden: Tensor


class Slopes(NamedTuple):
    """The gradient at the outputs of both maps, [R, T, gates] each: the same where the outputs are added up."""

    at_input: Tensor
    at_hidden: Tensor


RUN: dict[str, Callable[..., Any]] = {
    "LSTM": torch.lstm,
    "GRU": torch.gru,
    "RNN_TANH": torch.rnn_tanh,
    "RNN_RELU": torch.rnn_relu,
}


def walk(layer: Layer, x: Tensor, hidden: Tensor | None = None) -> Walked:
    """Forward; with torch's own kernel, where hidden states are not known."""
    hidden = run_again(layer, x) if hidden is None else hidden
    return Walked(x, torch.cat([layer.start[0][:, None], hidden[:, :-1]], 1), hidden)


def run_again(layer: Layer, x: Tensor) -> Tensor:
    """All hidden states [R, T, H]."""
    states = [state[None].contiguous() for state in layer.start]
    given = states if layer.mode == "LSTM" else states[0]
    flat = [*layer.weights, *layer.biases]
    cudnn = torch._C._get_cudnn_enabled()
    torch._C._set_cudnn_enabled(cudnn and x.is_cpu)  # it warns where weights do not lie side by side
    try:  # has biases, layers, dropout, training, both directions, batch first
        hidden, *_ = RUN[layer.mode](x, given, flat, bool(layer.biases), 1, 0.0, False, False, True)
    finally:
        torch._C._set_cudnn_enabled(cudnn)
    return hidden


def find_slopes(layer: Layer, walked: Walked, b: Tensor, ends: list[Tensor | None]) -> Slopes:
    """``b`` [R, T, H] is the gradient of the hidden states; ``ends`` those of the states at the end, where there are some."""
    if ends[0] is not None:
        b = b.clone()
        b[:, -1] += ends[0]
    if layer.mode == "LSTM":
        return slopes_of_lstm(layer, walked, b, ends[1])
    return slopes_of_gru(layer, walked, b) if layer.mode == "GRU" else slopes_of_plain(layer, walked, b)


def slopes_of_lstm(layer: Layer, walked: Walked, b: Tensor, end: Tensor | None) -> Slopes:
    """``c = f c' + i g``, ``h = o tanh(c)`` with i, f, o logistic and g = tanh of what the maps give."""
    R, T, H = walked.hidden.shape
    bias = layer.biases[0] + layer.biases[1] if layer.biases else None
    gates = F.linear(walked.x, layer.weights[0], bias).view(R, T, 4, H)
    gates.view(R * T, -1).addmm_(walked.before.reshape(R * T, H), layer.weights[1].T)
    g = torch.tanh(gates[:, :, 2])
    torch.sigmoid_(gates)[:, :, 2] = g
    if can_reduce(gates, 0) and b.dtype == gates.dtype:
        at = native.go_back(gates, native.fill_cells(gates, layer.start[1]), b, end, layer.weights[1])
    else:
        at = go_back(gates, layer.start[1], b, end, layer.weights[1])
    slopes = at.view(R, T, -1)
    return Slopes(slopes, slopes)


def go_back(gates: Tensor, start: Tensor, b: Tensor, end: Tensor | None, weight: Tensor) -> Tensor:
    """As the native one: the gradient at the gates i, f, g, o [R, T, 4, H], which are given as they act."""
    (R, T, _, H), (i, f, g, o) = gates.shape, gates.unbind(2)
    cells = [start]
    for t in range(T):
        cells.append(torch.addcmul(i[:, t] * g[:, t], f[:, t], cells[-1]))
    before, tanh = torch.stack(cells[:-1], 1), torch.tanh(torch.stack(cells[1:], 1))
    by_cell = torch.stack([g * i * (1 - i), before * f * (1 - f), i * (1 - g * g)], 2)  # [R, T, 3, H]
    by_hidden, to_cell = tanh * o * (1 - o), o * (1 - tanh * tanh)
    at = torch.empty_like(gates)
    h, c = b[:, T - 1], b.new_zeros(R, H) if end is None else end
    for t in range(T - 1, -1, -1):
        c = torch.addcmul(c, h, to_cell[:, t])
        at[:, t, :3], at[:, t, 3] = c[:, None] * by_cell[:, t], h * by_hidden[:, t]
        if t:
            h = torch.addmm(b[:, t - 1], at[:, t].reshape(R, -1), weight)
            c = c * f[:, t]
    return at


def slopes_of_gru(layer: Layer, walked: Walked, b: Tensor) -> Slopes:
    """``h = (1 - z) n + z h'`` with r, z logistic and ``n = tanh(of input + r * of hidden state)``."""
    R, T, H = walked.hidden.shape
    biases = layer.biases or (None, None)
    own = F.linear(walked.x, layer.weights[0], biases[0]).view(R, T, 3, H)
    other = F.linear(walked.before, layer.weights[1], biases[1]).view(R, T, 3, H)
    r, z = torch.sigmoid(own[:, :, :2] + other[:, :, :2]).unbind(2)
    n = torch.tanh(own[:, :, 2] + r * other[:, :, 2])
    by_new = (1 - z) * (1 - n * n)
    by_reset, by_kept = by_new * other[:, :, 2] * r * (1 - r), (walked.before - n) * z * (1 - z)
    shares = torch.stack([by_reset, by_kept, by_new * r], 2)  # of what comes from the hidden state
    slopes, hidden = b.new_empty(R, T, 3, H), b.new_empty(R, T, H)
    h = b[:, T - 1]
    for t in range(T - 1, -1, -1):
        hidden[:, t] = h
        torch.mul(h[:, None], shares[:, t], out=slopes[:, t])
        if t:
            h = torch.addmm(torch.addcmul(b[:, t - 1], h, z[:, t]), slopes[:, t].view(R, -1), layer.weights[1])
    from_input = torch.cat([slopes[:, :, :2], (hidden * by_new)[:, :, None]], 2)
    return Slopes(from_input.view(R, T, -1), slopes.view(R, T, -1))


def slopes_of_plain(layer: Layer, walked: Walked, b: Tensor) -> Slopes:
    """``h = tanh(...)`` or ``relu(...)``"""
    hidden, T = walked.hidden, walked.hidden.shape[1]
    bends = layer.mode == "RNN_TANH"
    shares = 1 - hidden * hidden if bends else hidden <= 0  # not a product: what is infinite stays out of it
    slopes, h = torch.empty_like(hidden), b[:, T - 1]
    for t in range(T - 1, -1, -1):
        slopes[:, t] = h * shares[:, t] if bends else h.masked_fill(shares[:, t], 0)
        if t:
            h = torch.addmm(b[:, t - 1], slopes[:, t], layer.weights[1])
    return Slopes(slopes, slopes)
