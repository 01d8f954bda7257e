"""One look through the graph of what is differentiated: does it belong to this model, and to which of its calls?"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from cockpit_core.curvature.autograd_graph import output_shape
from cockpit_core.engine.broadcast import TAG
from cockpit_core.engine.loss.graph import GIVEN, roots_of
from cockpit_core.engine.loss.roots import Root
from cockpit_core.foundation.graph_leaves import has_variable


@dataclass
class Survey:
    """``given``: how many individual losses the user handed over, 0 if none. ``shapes``: of the first layers' outputs."""

    is_mine: bool = False
    forwards: set[int] = field(default_factory=set)
    given: int = 0
    shapes: list[tuple[int, ...]] = field(default_factory=list)

    def rows(self, batch_dim: int) -> int:
        """Samples, where no call of the model tells: entries of what the loss is computed from."""
        sizes = {shape[batch_dim] for shape in self.shapes[:1] if len(shape) > batch_dim}
        return sizes.pop() if sizes else 0


def survey(
    root: Root, names: Mapping[int, str], hooked: Container[Any], was_called: bool, swapped: bool = False
) -> Survey:
    """``names`` by id of the parameters, ``hooked``: modules whose calls are tagged. What a checkpointed block hides is
    taken for the model's where the model has been called. ``swapped``: the graph holds other objects than the parameters
    (fully_shard), so losses that were handed over are taken for the model's. Otherwise they may belong to another
    run."""
    answer, seen, waiting = Survey(), set(), [node for node, _ in roots_of(root)]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if has_variable(node.__class__):
            answer.is_mine |= id(node.variable) in names
            continue
        marks = node.metadata
        if marks:
            _take_marks(answer, node, marks, hooked)
            answer.is_mine |= swapped and bool(answer.given)
        answer.is_mine |= was_called and node.name() == "CheckpointFunctionBackward"
        waiting += [child for child, _ in node.next_functions if child is not None]
    return answer


def _take_marks(answer: Survey, node: Any, marks: Any, hooked: Container[Any]) -> None:
    for given in marks.get(GIVEN, {}).values():
        answer.given = len(given.losses)
    for call, _, _ in marks.get(TAG, ()):
        if call.module in hooked:
            answer.is_mine = True
            answer.forwards.add(call.forward)
            if output_shape(node):
                answer.shapes.append(output_shape(node))
