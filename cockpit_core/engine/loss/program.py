"""From the model's outputs to the loss: what its graph says was computed, so that it can be computed again.

``F.cross_entropy(model(x).view(-1, C), y).backward()`` has no module that could be called once more. Its graph has all that
is needed: node by node, from the model's outputs (and from parameters, for a penalty) up to the scalar. A node that is
not known ends the search with a reason. What the loss does not differentiate (masks, targets, detached values, the entries
that an index chose) stays as it was. The program is tried at once, on the outputs as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from cockpit_core.curvature.autograd_graph import WRAPPER
from cockpit_core.engine.loss.constants import Parents, find_constant, lacks_operand
from cockpit_core.engine.loss.functions import Function, Unknown, read_function
from cockpit_core.engine.loss.graph import is_sink
from cockpit_core.engine.precision import plain_precision
from cockpit_core.layers.module_state import NotRepeatable

MOST_NODES = 4096
"""Between the outputs and the loss."""
SAME = {torch.float64: 1e-8, torch.float32: 1e-4}
Place = tuple[Any, int]
"""A node of the graph, and which of its outputs."""
Slot = tuple[int, int]
"""A step of the program, and which of its results."""


@dataclass
class Step:
    """``function`` of other steps' results. At the bottom: an output of the model (``end``), or a tensor (``leaf``)."""

    function: Function | None = None
    operands: Sequence[Slot | None] = ()
    end: Any = None
    leaf: Tensor | None = None
    constants: dict[int, Tensor] = field(default_factory=dict)
    """By result: what is added to it, and is in no node."""

    def compute(self, values: list[tuple], outputs: Mapping[Any, Tensor]) -> tuple:
        if self.function is None:
            return (outputs[self.end] if self.leaf is None else self.leaf,)
        results = self.function(*(None if slot is None else values[slot[0]][slot[1]] for slot in self.operands))
        results = tuple(results) if isinstance(results, (tuple, list)) else (results,)
        return tuple(value + self.constants[k] if k in self.constants else value for k, value in enumerate(results))


@dataclass
class Program:
    steps: list[Step] = field(default_factory=list)
    roots: list[tuple[Slot, Tensor | None]] = field(default_factory=list)
    """The roots, with the seed that each is differentiated with; no seed for an argument of a loss module."""
    versions: list[tuple[Tensor, int]] = field(default_factory=list)
    """Versions of the user's tensors that it uses."""
    offset: Tensor | None = None
    """A constant that was added to the loss."""

    @property
    def ends(self) -> list[Any]:
        return [step.end for step in self.steps if step.function is None and step.leaf is None]

    @property
    def is_output(self) -> bool:
        """Is it one of the model's outputs, with nothing done to it?"""
        return len(self.steps) == 1 and len(self.ends) == 1

    def run(self, outputs: Mapping[Any, Tensor]) -> Tensor:
        if any(tensor._version != version for tensor, version in self.versions):
            raise NotRepeatable("a tensor that the loss uses was changed in place since")
        values: list[tuple] = []
        with torch.enable_grad(), plain_precision():  # what was cast has a node of its own
            for step in self.steps:
                values.append(step.compute(values, outputs))
            return self.finish(values)

    def finish(self, values: list[tuple]) -> Tensor:
        """One tensor as it is; with seeds, the scalar that was differentiated."""
        parts = [(values[k][number], seed) for (k, number), seed in self.roots]
        if len(parts) == 1 and parts[0][1] is None:
            total = parts[0][0]
        else:
            total = torch.stack([(t if seed is None else t * seed).sum() for t, seed in parts]).sum()
        return total if self.offset is None else total + self.offset


@dataclass
class Around:
    """Where a program may begin: the model's outputs by place in the graph, and its parameters."""

    ends: Mapping[Place, Any]
    old: Callable[[Any], Tensor | None]
    """What the output was; None where somebody has written into it."""
    parameters: set[int]
    """By id."""


def write_program(roots: Sequence[tuple[Place, Tensor | None]], around: Around, known: Tensor | None) -> Program:
    """``roots`` with the seeds that they are differentiated with; ``known``: what must come out at the old outputs.
    Unknown where a part of it cannot be computed again."""
    writer = _Writer(around, [follow(place, around.ends) for place, _ in roots])
    writer.write()
    program = writer.program
    program.roots = [(writer.slots[follow(place, around.ends)], seed) for place, seed in roots]
    if known is not None and writer.values is not None:
        is_shifted = any(follow(place, around.ends) in writer.shifted for place, _ in roots)
        _settle(program, writer.values, known, lacks=is_shifted)
    return program


def _settle(program: Program, values: list[tuple], known: Tensor, lacks: bool) -> None:
    """The old outputs must give the old loss; what is left is a constant that was added."""
    with torch.no_grad(), plain_precision():
        value = program.finish(values)
    if value.shape != known.shape:
        raise Unknown(f"computed again it has the shape {tuple(value.shape)}, not {tuple(known.shape)}")
    if lacks:
        program.offset = known - value
        return
    away, size = (value - known).double().abs().max(), known.double().abs().max()
    if bool(torch.isfinite(size)) and not bool(away <= SAME.get(known.dtype, 3e-2) * size.clamp(min=1e-30)):
        raise Unknown(f"computed again from its graph it is off by {float(away):.2g}")


class _Writer:
    """Walks up from the outputs, and computes the old values along the way: constants that no node keeps follow from
    them, and from what the nodes above have kept."""

    def __init__(self, around: Around, roots: Sequence[Place]):
        self.around, self.roots = around, roots
        self.program, self.slots = Program(), dict[Place, Slot]()
        self.values: list[tuple] | None = []
        self.shifted = set[Place]()
        """Off by a constant; once all is written, only those that the loss itself is linear in."""

    def write(self) -> None:
        order = sort_places(self.roots, self.around.ends)
        nodes = [place[0] for place in order if place not in self.around.ends]
        parents: Parents = {}
        for node in nodes:
            for k, edge in enumerate(node.next_functions):
                if edge[0] is not None:
                    parents.setdefault(follow(edge, self.around.ends), []).append((node, k))
        for place in order:
            if place in self.around.ends:
                self._add_end(place)
            elif getattr(place[0], "variable", None) is not None:
                self._add_leaf(place)
            else:
                self._add_function(place[0], parents)

    def _add(self, step: Step, places: Sequence[Place], old: tuple | None) -> None:
        self.program.steps.append(step)
        number = len(self.program.steps) - 1
        self.slots |= {place: (number, k) for k, place in enumerate(places)}
        self.values = None if self.values is None or old is None else [*self.values, old]

    def _add_end(self, place: Place) -> None:
        end = self.around.ends[place]
        old = self.around.old(end)
        self._add(Step(end=end), [place], None if old is None else (old,))

    def _add_leaf(self, place: Place) -> None:
        leaf = place[0].variable
        if isinstance(leaf, nn.Parameter) and id(leaf) not in self.around.parameters:
            raise Unknown("it has a parameter that is not the model's, which the step may move too")
        if not isinstance(leaf, nn.Parameter):
            self.program.versions.append((leaf, leaf._version))
            leaf = leaf.detach()
        self._add(Step(leaf=leaf), [place], (leaf.detach(),))

    def _add_function(self, node: Any, parents: Parents) -> None:
        read, below = read_function(node), [follow(edge, self.around.ends) for edge in node.next_functions]
        operands = [None if place[0] is None else self.slots[place] for place in below]
        self.program.versions += [(tensor, tensor._version) for tensor in read.tensors]
        step, places = Step(read.function, operands), [(node, k) for k in range(len(node._input_metadata))]
        is_shifted = lacks_operand(node) or any(place in self.shifted for place in below)
        old = None
        try:
            with torch.no_grad(), plain_precision():
                if self.values is not None:
                    old = step.compute(self.values, {})
                    if is_shifted:
                        old = self._unshift(step, places, old, parents)
        except (RuntimeError, TypeError, IndexError) as error:
            raise Unknown(f"{node.name()} cannot be computed again ({str(error).splitlines()[0][:120]})") from error
        if old is None and is_shifted:
            raise Unknown(
                "it adds a constant that its graph does not keep, and an output of the model was written into"
            )
        self._add(step, places, old)

    def _unshift(self, step: Step, places: Sequence[Place], old: tuple, parents: Parents) -> tuple:
        """Find the constant where it must be known, else leave it to what comes after."""
        for k, place in enumerate(places):
            constant = find_constant(place, old[k], parents) if place in parents else None
            if constant is None:
                self.shifted.add(place)
            else:
                step.constants[k] = constant
        return step.compute(self.values or [], {})


def follow(place: Place, ends: Mapping[Place, Any]) -> Place:
    """Through nodes that do nothing; all outputs of a node are one place for those who sort."""
    while place not in ends and place[0] is not None and (place[0].name() == WRAPPER or is_sink(place[0])):
        node, number = place
        ahead = len(node.next_functions) - len(node._input_metadata) if is_sink(node) else 0
        place = node.next_functions[ahead + number]
    return place


def sort_places(roots: Sequence[Place], ends: Mapping[Place, Any]) -> list[Place]:
    """All that the roots are computed from down to the ends, operands first. A node stands there once, an end by place."""
    places: dict[Any, Place] = {}
    waiting = [(place, False) for place in roots]
    while waiting:
        place, is_ready = waiting.pop()
        node, key = place[0], place if place in ends else place[0]
        if key in places:
            continue
        if node is None:
            raise Unknown("a part of it has no graph")
        if place in ends or is_ready:
            places[key] = place
            continue
        if len(places) > MOST_NODES:
            raise Unknown(f"its graph has more than {MOST_NODES} nodes above the model's outputs")
        waiting.append((place, True))
        waiting += [(follow(edge, ends), False) for edge in node.next_functions if edge[0] is not None]
    return list(places.values())
