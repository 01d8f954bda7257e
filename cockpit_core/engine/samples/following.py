"""Which rows of a layer's output belong to which sample, read off the graph (see ``replay``).

The model's outputs count samples along ``batch_dim``; from there the samples are followed to every hooked call. A call
whose rows belong to one sample each is measured, in whatever order they lie; one whose rows belong to several (learned
positions, a weight that a parametrization computes) is left to the module around it; one behind which samples meet
gives contributions, and is marked.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from cockpit_core.engine.samples.behind import CALLED, GIVEN, reachable
from cockpit_core.engine.samples.layout import Layout, is_in_order
from cockpit_core.engine.samples.looking import Finding, leads_of, look
from cockpit_core.engine.samples.own_functions import Room, is_checkpoint, own_functions
from cockpit_core.engine.samples.parts import PARTS, GivenSamples, are_parts
from cockpit_core.engine.samples.replay import Reading, name_of
from cockpit_core.layers.module_state import NotRepeatable
from cockpit_core.layers.registry import Call

RESHAPES = frozenset({"Unsqueeze", "View", "ReshapeAlias", "Stack", "Expand", "ToCopy", "Clone", "Alias"})


@dataclass(frozen=True)
class Arguments:
    """What a call of the model was given, as far as it may count samples."""

    lengths: set[int] = field(default_factory=set)
    """The lengths of lists: they may have one entry for each sample, or count anything else."""
    sizes: set[int] = field(default_factory=set)
    """The sizes of tensors, along the dimension that counts samples."""


@dataclass(eq=False)
class Follower:
    """Looks at the first tracked steps, at every step where rows are routed or something is new, and now and then."""

    calls: list[weakref.ref] = field(default_factory=list)
    """Those of the step so far."""
    inputs: set[tuple] = field(default_factory=set)
    """Places of the model's inputs: a call on one of them knows its samples."""
    memories: set[int | None] = field(default_factory=set)
    """Memory of the model's inputs; None: one has none of its own."""
    steps: set[tuple[int, int, int]] = field(default_factory=set)
    """Memory of the model's inputs, how many samples are there, and how far it is from one to the next: views have the same."""
    given: GivenSamples = field(default_factory=GivenSamples)
    """By call of the model: which samples it was given."""
    singles: set[int] = field(default_factory=set)
    """Numbers of dimensions with which inputs of the model were single samples, as seen by a layer that may not be
    asked again."""
    known: dict[Any, Finding] = field(default_factory=dict)
    told: dict[int, list[tuple]] = field(default_factory=dict)
    """By call of the model: what each call in it was told, for a repetition."""

    def begin(self) -> None:
        self.calls.clear()
        self.told.clear()
        self.inputs.clear()
        self.memories.clear()
        self.steps.clear()
        self.given.clear()

    def resize(self, forward: int, samples: int) -> None:
        """The outputs of this call of the model count other samples than its inputs: graphs, not nodes."""
        for ref in self.calls:
            call = ref()
            if call is not None and call.forward == forward:
                call.batch_size = samples

    def rows_of(self, forward: int) -> list[tuple[int, ...]]:
        """The leading sizes of what the layers have given in this call of the model: those that may count rows."""
        calls = [call for ref in self.calls if (call := ref()) is not None and call.forward == forward]
        firsts = [(call, call.shapes[0]) for call in calls if call.shapes and call.shapes[0]]
        return [shape[: max(1, *leads_of(call, len(shape)))] for call, shape in firsts]

    def note_inputs(self, tensors: list[Tensor], batch_dim: int, forward: int) -> None:
        self.inputs |= {place_of(tensor) for tensor in tensors}
        self.memories |= {memory_of(tensor) for tensor in tensors}
        self.given.note(forward, tensors, batch_dim)
        self.steps |= {step for tensor in tensors if (step := step_of(tensor, batch_dim)) is not None}

    def note_call(self, call: Call, outputs: list[Tensor]) -> None:
        """Mark the node of each output; the node holds the call, never the other way round."""
        self.calls.append(weakref.ref(call))
        call.shapes = tuple(tuple(output.shape) for output in outputs)
        given = given_tensors(call)
        if given and any(self._may_be_input(tensor) for tensor in given):  # most are not, and need no closer look
            call.from_data = any(place_of(tensor) in self.inputs for tensor in given)
            dims = [dim for dim in range(given[0].dim()) if step_of(given[0], dim) in self.steps]
            call.data_dim = dims[0] if len(dims) == 1 else None
            call.in_blocks = not dims and self._is_in_blocks(given[0])
        for position, output in enumerate(outputs):
            if output.grad_fn is not None:
                marks: Any = output.grad_fn.metadata
                marks.setdefault(CALLED, []).append((call, position, output.output_nr))

    def _may_be_input(self, tensor: Tensor) -> bool:
        """Does it lie in the memory of an input of the model? Yes, where one of them has no memory of its own."""
        memory = memory_of(tensor)
        return memory is None or memory in self.memories or None in self.memories

    def _is_in_blocks(self, tensor: Tensor) -> bool:
        """Is it an input with two dimensions flattened into one?"""
        own = step_of(tensor, 0)
        return own is not None and any(
            memory == own[0] and own[1] > size and own[1] % size == 0 and own[2] * (own[1] // size) == step
            for memory, size, step in self.steps
        )

    def is_single(self, call: Call) -> bool:
        """Does this layer see an input of the model as one sample without a batch: a vector, one image, one sequence?"""
        given = next((tensor for tensor in given_tensors(call)), None)
        if given is None or not is_without_batch(call.module, given):
            return False
        if call.from_data or any(len(place) > 1 and place[1] == given.shape for place in self.inputs):
            self.singles.add(given.dim())
            return True
        return False

    def follow(
        self,
        root: Any,
        origin: tuple[int, int],
        batch_dim: int,
        entries: list[tuple[Any, int]],
        built: int,
        careful: bool,
        room: Room,
    ) -> Finding:
        """What is known of the calls below this loss; their ``Call`` objects are told.

        ``entries``: nodes with the dimension at which they are taken to count samples. ``built``: the outline of the graph.
        ``room``: where functions of the user's own may run.
        """
        calls = [call for ref in self.calls if (call := ref()) is not None]
        others = self.given.others()
        key = (*((id(call.module), call.shapes) for call in calls), origin[1], built, careful, bool(others))
        finding = self.known.get(key)
        if finding is not None and finding.is_trusted:
            finding.uses += 1
        else:
            uses = finding.uses if finding is not None else 0
            with reading_of(root, origin[1], careful, room) as reading:
                finding = look(root, calls, origin, batch_dim, entries, reading, others)
            finding.uses = uses + 1
            self.known = {**dict(list(self.known.items())[-31:]), key: finding}
        self.told.clear()
        for call, layouts, marks in zip(calls, finding.layouts, finding.marks, strict=True):
            call.batch_size = call.batch_size or origin[1]
            if call.batch_size == origin[1]:
                tell(call, layouts, *marks)
            own = (call.module, call.dims, call.rows, call.in_order, call.refusal, call.followed)
            self.told.setdefault(call.forward, []).append(own)
        return finding

    def doubt_calls(self, root: Any) -> str:
        """Why calls below this loss may have other samples, where nothing else is asked of the graph."""
        return PARTS if are_parts(root, self.given.others()) else ""

    def repeat(self, call: Call, forward: int, place: int) -> None:
        """The same call of a forward pass that is repeated."""
        known = self.told.get(forward, [])
        if place >= len(known):
            return
        module, call.dims, call.rows, call.in_order, call.refusal, call.followed = known[place]
        if module is call.module:
            return
        call.dims, call.rows, call.in_order, call.followed = {}, {}, frozenset(), False
        call.refusal = "the forward pass took another way when it was repeated"


@contextmanager
def reading_of(root: Any, samples: int, careful: bool, room: Room) -> Iterator[Reading]:
    """Functions of the user may run inside, if all that they can reach can be copied."""
    nodes = reachable(root)
    functions = own_functions(nodes)
    with ExitStack() as stack:
        closed = ""
        if functions or any(is_checkpoint(node) for node in nodes):
            try:
                stack.enter_context(room(functions))
            except NotRepeatable as reason:
                closed = str(reason)
        yield Reading(careful, closed, samples)


def is_without_batch(module: nn.Module, given: Tensor) -> bool:
    """Layers of torch that take an input with one dimension less as a single sample."""
    if isinstance(module, nn.Linear):
        return given.dim() == 1
    if isinstance(module, nn.modules.conv._ConvNd):
        return given.dim() == len(module.kernel_size) + 1
    return isinstance(module, (nn.RNNBase, nn.MultiheadAttention)) and given.dim() == 2


def place_of(tensor: Tensor) -> tuple:
    try:
        return tensor.data_ptr(), tensor.shape, tensor.stride()
    except RuntimeError:  # nested, sharded or functional tensors have no place of their own
        return (id(tensor),)


def memory_of(tensor: Tensor) -> int | None:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return None


def step_of(tensor: Tensor, dim: int) -> tuple[int, int, int] | None:
    if tensor.dim() <= dim or tensor.shape[dim] < 2:
        return None
    try:
        return tensor.untyped_storage().data_ptr(), tensor.shape[dim], tensor.stride(dim)
    except (RuntimeError, NotImplementedError):  # no memory of its own
        return None


def given_tensors(call: Call) -> list[Tensor]:
    """Its arguments, including integer tensors."""
    values = [*call.inputs, *call.kwargs.values()]
    return [value for value in values if isinstance(value, Tensor) and value.layout == torch.strided]


def tell(call: Call, layouts: dict[int, Layout], refusal: str, interacts: str) -> None:
    call.refusal, call.interacts = call.refusal or refusal, call.interacts or interacts
    for position, layout in layouts.items():
        call.followed |= layout.known
        if layout.dim is not None:
            call.dims[position] = layout.dim
        elif layout.rows is not None:
            call.rows[position] = (layout.rows, layout.lead)
            if is_ordinary(layout.rows, call, position):
                call.in_order |= {position}


def is_ordinary(rows: Tensor, call: Call, position: int) -> bool:
    """``x.view(B * T, F)``: what every rule can unflatten."""
    return call.batch_dim == 0 and call.shapes[position][0] == len(rows) and is_in_order(rows, call.batch_size)


def samples_of_outputs(
    outputs: list[Tensor], given: int, batch_dim: int, arguments: Arguments, rows: list[tuple[int, ...]]
) -> int:
    """How many samples a model returned whose first input has ``given`` rows. Fewer, where it pools them (nodes of
    graphs); as many as another argument has, where that one counts the samples (a list of images).

    Where another dimension of the outputs has ``given`` entries, the first may count anything: heads of an ensemble, steps
    of time. Then ``rows``, the leading sizes of what the layers gave, must speak for a list of samples.
    """
    counting = [o for o in outputs if o.requires_grad and o.dim() > batch_dim and not holds_scalars(o.grad_fn)]
    sizes = {output.shape[batch_dim] for output in counting}
    if not sizes:
        return next((n for n in arguments.lengths if n and n != given and is_rather(n, given, rows)), given)
    size = sizes.pop() if len(sizes) == 1 else given
    if size == given or (size > given and size not in arguments.lengths | arguments.sizes):
        return given
    if size and any(given in output.shape for output in counting):
        return size if size in arguments.lengths and is_rather(size, given, rows) else given
    return size


def is_rather(size: int, given: int, rows: list[tuple[int, ...]]) -> bool:
    """Do the rows of the layers speak for a list of ``size`` samples, and against ``given``? They have gone through the
    layers side by side, or one by one."""
    exact = {count for own in rows for count in own}
    fits = all(set(own) == {1} or any(count % size == 0 for count in own) for own in rows)
    return fits and given not in exact and (size in exact or exact == {1})


def holds_scalars(node: Any) -> bool:
    """Is it a scalar in another shape, or several? A loss for each device (DataParallel) counts no samples."""
    while node is not None and name_of(node).split("Backward")[0] in RESHAPES:
        below = [child._input_metadata[k].shape for child, k in node.next_functions if child is not None]
        if below and all(len(shape) == 0 for shape in below):
            return True
        node = node.next_functions[0][0]
    return False


def mark_outputs(outputs: list[Tensor], forward: int) -> None:
    for output in outputs:
        if output.grad_fn is not None and output.dim():
            marks: Any = output.grad_fn.metadata
            marks.setdefault(GIVEN, []).append((forward, output.output_nr))
