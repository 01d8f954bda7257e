"""An LSTM between its products of matrices: cells forward, and gradients back from step to step."""

from __future__ import annotations

import torch
from torch import Tensor

from cockpit_core.kernels.native import find_library


def fill_cells(gates: Tensor, start: Tensor) -> Tensor:
    """Cell states [R, T + 1, H] from the gates i, f, g, o as they act [R, T, 4, H], and from where they start [R, H]."""
    library = find_library()
    assert library is not None
    rows, steps, four, size = gates.shape
    if four != 4 or not gates.is_contiguous() or start.shape != (rows, size) or start.dtype != gates.dtype:
        raise ValueError(f"gates {tuple(gates.shape)} and a start {tuple(start.shape)} do not fit each other")
    cells = gates.new_empty(rows, steps + 1, size)
    cells[:, 0] = start
    library.function("fill_cells", gates.dtype)(gates.data_ptr(), cells.data_ptr(), rows, steps, size)
    return cells


def go_back(gates: Tensor, cells: Tensor, b: Tensor, end: Tensor | None, weight: Tensor) -> Tensor:
    """The gradient at the gates [R, T, 4, H], from that of the hidden states, ``b`` [R, T, H], and of the cell at the end.

    ``weight`` [4 H, H] takes the hidden state to the gates.
    """
    library = find_library()
    assert library is not None
    rows, steps, four, size = gates.shape
    fits = four == 4 and cells.shape == (rows, steps + 1, size) and b.shape == (rows, steps, size)
    alike = gates.is_contiguous() and cells.is_contiguous() and {cells.dtype, b.dtype, weight.dtype} == {gates.dtype}
    if not fits or not alike or weight.shape != (4 * size, size) or (end is not None and end.shape != (rows, size)):
        raise ValueError(f"gates {tuple(gates.shape)}, cells {tuple(cells.shape)} and {tuple(b.shape)} do not fit")
    bent, slopes = torch.tanh(cells[:, 1:]).contiguous(), torch.empty_like(gates)
    cell = b.new_zeros(rows, size) if end is None else end.to(b.dtype).clone(memory_format=torch.contiguous_format)
    b = b if size < 2 or b.stride(2) == 1 else b.contiguous()
    given, at = b.unbind(1), slopes.view(rows, steps, 4 * size).unbind(1)
    kernel, known = library.function("step_back", gates.dtype), (gates.data_ptr(), cells.data_ptr(), bent.data_ptr())
    hidden, behind = given[-1], (cell.data_ptr(), slopes.data_ptr(), rows, steps, size)
    for t in range(steps - 1, -1, -1):
        kernel(*known, hidden.data_ptr(), hidden.stride(0), *behind, t)
        if t:
            hidden = torch.addmm(given[t - 1], at[t], weight)
    return slopes
