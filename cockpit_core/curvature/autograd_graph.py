"""What a network is made of, read from the autograd graph of its outputs: no hooks, no module types, any wiring.

Answers two questions. Which node uses which parameter, so that individual gradients can be had from the node's saved
input and its output gradient? And is the network such that its Hessian diagonal is a sum of squares: every operation
linear, piecewise linear, linear in activation and parameter each, or acting on each element by itself?
Samples must stay apart and lead dimension 0 all the way; a node that is not known to respect this is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Size, Tensor
from torch.autograd.graph import Node

from .elementwise import SECOND_DERIVATIVES
from .point import NoCurvature, Point, explained

# Linear in the activation, and safe for samples that lead dimension 0 (those with dims are checked below).
_LINEAR = set(
    """View UnsafeView Reshape Permute Transpose T Squeeze Unsqueeze Expand Mean Sum Cat Stack ConstantPadNd
    ReflectionPad1D ReflectionPad2D ReflectionPad3D ReplicationPad1D ReplicationPad2D ReplicationPad3D AvgPool2D
    AvgPool3D AdaptiveAvgPool2D AdaptiveAvgPool3D UpsampleNearest1D UpsampleNearest2D UpsampleNearest3D
    UpsampleBilinear2D UpsampleLinear1D UpsampleTrilinear3D Slice Select Split SplitWithSizes Narrow Add Sub Neg Mul
    Div Clone ToCopy Alias Flip Roll NativeDropout PixelShuffle PixelUnshuffle Unbind Unflatten AsStrided
    """.split()
)
_PIECEWISE = set(
    """Relu LeakyRelu Threshold Hardtanh Hardshrink Softshrink Abs MaxPool2DWithIndices MaxPool3DWithIndices
    AdaptiveMaxPool2D AdaptiveMaxPool3D Clamp ClampMin ClampMax RreluWithNoise""".split()
)
# Nonlinear and across elements, but within a sample: fine for Gauss-Newton, not for the Hessian.
_WITHIN_SAMPLE = set(
    """Softmax LogSoftmax NativeLayerNorm NativeGroupNorm Bmm ScaledDotProductFlashAttentionForCpu
    ScaledDotProductEfficientAttention ScaledDotProductFlashAttention Rsqrt Sqrt Log Glu LinalgVectorNorm
    Norm""".split()
)
# Which operand of a node that has parameters may be an activation, and what its parameters are to the rules.
_ACTIVATION_OPERAND = {"Addmm": 1, "Mm": 0, "Convolution": 0, "NativeBatchNorm": 0, "NativeLayerNorm": 0}
_ACTIVATION_OPERAND |= {"NativeGroupNorm": 0, "PreluKernel": 0, "Embedding": -1}
ROLES = {
    "Addmm": ("bias", "", "weight"),
    "Mm": ("", "weight"),
    "Convolution": ("", "weight", "bias"),
    "NativeBatchNorm": ("", "weight", "bias"),
    "NativeLayerNorm": ("", "weight", "bias"),
    "NativeGroupNorm": ("", "weight", "bias"),
    "PreluKernel": ("", "weight"),
    "Embedding": ("weight",),
    "Add": ("bias0", "bias1"),
    "Mul": ("factor0", "factor1"),
}
_REDUCING = ("Mean", "Sum")
_ONE_DIM = ("Cat", "Stack", "Select", "Slice", "Split", "SplitWithSizes", "Softmax", "LogSoftmax", "Unbind", "Glu")


WRAPPER = "BackwardHookFunctionBackward"
"""Torch puts this node, which does nothing, around the inputs and outputs of a module with a full backward hook."""


@dataclass(frozen=True)
class Use:
    """One node that consumes one parameter; ``role`` names the operand ("weight", "bias")."""

    node: Node
    kind: str
    name: str
    role: str
    operand: tuple[int, ...]  # shape in which the node sees the parameter
    transposed: bool = False


@dataclass
class Network:
    uses: list[Use] = field(default_factory=list)
    activations: list[tuple[Node, str]] = field(default_factory=list)  # elementwise, with a second derivative
    obstacle: str = ""  # why the Hessian diagonal is not a sum of squares; "" if it is

    def nodes(self) -> list[Node]:
        return list(dict.fromkeys(use.node for use in self.uses))


def kind_of(node: Node) -> str:
    """Tanh for TanhBackward0. A derivative of a derivative (TanhBackwardBackward0) is a kind of its own."""
    name: str = node.name().rsplit("::", 1)[-1]
    return name if "BackwardBackward" in name else name.split("Backward")[0]


def output_shape(node: Node) -> tuple[int, ...]:
    return tuple(node._input_metadata[0].shape)


def variable_of(node: Node | None) -> Tensor | None:
    return getattr(node, "variable", None)


@dataclass(frozen=True)
class _Operand:
    """A parameter as an operation sees it: through transposes and casts, or reshapes, of it alone."""

    leaf: Tensor
    shape: tuple[int, ...]
    transposed: bool


def _operand_of(node: Node | None) -> _Operand | None:
    if node is None:
        return None
    shape, turns, reshaped = output_shape(node), 0, False
    while node is not None and kind_of(node) in ("T", "ToCopy", "View", "Unsqueeze"):
        turns += kind_of(node) == "T"
        reshaped = reshaped or kind_of(node) in ("View", "Unsqueeze")
        node = node.next_functions[0][0]
    leaf = variable_of(node)
    if leaf is None or (turns and reshaped):
        return None
    return _Operand(leaf, shape, turns % 2 == 1)


# What these return shares the memory of what they were given.
_VIEWS = set(
    """View UnsafeView Reshape Permute Transpose T Squeeze Unsqueeze Expand Slice Select Split SplitWithSizes Narrow
    Alias Unbind Unflatten AsStrided Detach""".split()
)


def activation_bytes(loss: Tensor) -> int:
    """The bytes of everything computed on the way to ``loss``, each result once; parameters do not count."""
    total = 0
    for node in reachable([loss.grad_fn]):
        if variable_of(node) is None and kind_of(node) not in _VIEWS:
            for result in getattr(node, "_input_metadata", ()):
                total += Size(result.shape).numel() * result.dtype.itemsize
    return total


def reachable(roots: Iterable[Node | None], stop: Iterable[Node] = ()) -> list[Node]:
    """All nodes below the roots, each once; not below those of ``stop``."""
    seen: dict[Node, None] = {}
    ends = set(stop)
    stack = [r for r in roots if r is not None and r not in ends]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen[node] = None
        stack.extend(f for f, _ in node.next_functions if f is not None and f not in ends)
    return list(seen)


def relevant_nodes(nodes: list[Node], wanted: set[int]) -> set[Node]:
    """Nodes from which one of the wanted parameters can be reached."""
    parents: dict[Node, list[Node]] = {}
    for node in nodes:
        for below, _ in node.next_functions:
            if below is not None:
                parents.setdefault(below, []).append(node)
    relevant: set[Node] = set()
    stack = [n for n in nodes if id(variable_of(n)) in wanted]
    while stack:
        node = stack.pop()
        if node not in relevant:
            relevant.add(node)
            stack.extend(parents.get(node, []))
    return relevant


class _Reader:
    def __init__(self, point: Point):
        self.names = {id(p): name for name, p in point.trainable.items()}
        self.batch_size = point.batch_size
        self.network = Network()

    def read(self, relevant: set[Node], order: list[Node]) -> Network:
        chains: set[Node] = set()
        for node in order:
            if node in relevant and variable_of(node) is None and node not in chains:
                self._read_node(node, relevant, chains)
        self._check_single_use()
        return self.network

    def _read_node(self, node: Node, relevant: set[Node], chains: set[Node]) -> None:
        kind = kind_of(node)
        operands = [_operand_of(f) for f, _ in node.next_functions]
        direct = {i: o for i, o in enumerate(operands) if o is not None and id(o.leaf) in self.names}
        active = {i for i, (f, _) in enumerate(node.next_functions) if f in relevant and i not in direct}
        for i in direct:
            self._mark_chain(node.next_functions[i][0], chains)
        self._check_samples(node, kind)
        self._add_uses(node, kind, direct)
        self._classify(node, kind, active)

    def _mark_chain(self, node: Node | None, chains: set[Node]) -> None:
        while node is not None and variable_of(node) is None:
            chains.add(node)
            node = node.next_functions[0][0]

    def _check_samples(self, node: Node, kind: str) -> None:
        shape = output_shape(node)
        if self.batch_size == 1:
            return
        if not shape or shape[0] % self.batch_size:
            raise NoCurvature(f"samples do not lead the first dimension at {kind}")
        rank = len(shape)
        dims: list[int] = []
        if kind in _REDUCING:
            dims = list(getattr(node, "_saved_dim", None) or [0])
            rank = max(rank, len(getattr(node, "_saved_self_sym_sizes", ())))
        elif kind in _ONE_DIM:
            dims = [getattr(node, "_saved_dim", 0)]
        elif kind == "Transpose":
            dims = [node._saved_dim0, node._saved_dim1]  # type: ignore[attr-defined]
        elif kind == "Permute":
            dims = [] if _signed(node._saved_dims[0]) == 0 else [0]  # type: ignore[attr-defined]
        elif kind in ("T", "AsStrided", "Flip", "Roll"):
            dims = [0]
        if any(_signed(d) % rank == 0 for d in dims):
            raise NoCurvature(f"{kind} may mix samples")

    def _classify(self, node: Node, kind: str, active: set[int]) -> None:
        if kind == "NativeBatchNorm" and node._saved_training:  # type: ignore[attr-defined]
            if self.batch_size > 1:
                raise NoCurvature("BatchNorm in training mode mixes the samples")
            if active:  # one sample, normalised by what it is itself
                self._obstruct(f"{kind} is not linear")
        if kind in _ACTIVATION_OPERAND and not active <= {_ACTIVATION_OPERAND[kind]}:
            raise NoCurvature(f"a weight of {kind} is not a parameter but computed")
        if kind in SECOND_DERIVATIVES:
            if active:
                self.network.activations.append((node, kind))
        elif kind in _WITHIN_SAMPLE:
            if active:
                self._obstruct(f"{kind} is not linear")
        elif kind in ("Mul", "Div"):
            if len(active) > 1 or (kind == "Div" and 1 in active):
                self._obstruct(f"{kind} combines activations")
        elif kind not in _LINEAR and kind not in _PIECEWISE and kind not in _ACTIVATION_OPERAND:
            raise NoCurvature(f"no rule for {kind}")

    def _obstruct(self, why: str) -> None:
        self.network.obstacle = self.network.obstacle or why

    def _add_uses(self, node: Node, kind: str, direct: dict[int, _Operand]) -> None:
        roles = ROLES.get(kind, ())
        for i, operand in direct.items():
            if i >= len(roles) or not roles[i]:
                raise NoCurvature(f"no rule for a parameter in {kind}")
            if kind in ("Add", "Mul") and not self._broadcasts(operand, output_shape(node), len(direct)):
                raise NoCurvature(f"a parameter in {kind} cannot be told apart from an activation")
            name = self.names[id(operand.leaf)]
            self.network.uses.append(Use(node, kind, name, roles[i], operand.shape, operand.transposed))

    def _broadcasts(self, operand: _Operand, shape: tuple[int, ...], parameters: int) -> bool:
        lacks_samples = len(operand.shape) < len(shape) or operand.shape[0] == 1
        return parameters == 1 and lacks_samples and not operand.transposed and operand.shape != shape

    def _check_single_use(self) -> None:
        names = [use.name for use in self.network.uses]
        repeated = {n for n in names if names.count(n) > 1}
        if repeated:
            raise NoCurvature(f"{sorted(repeated)[0]} is used more than once")


def _signed(value: int) -> int:
    """Saved dimensions come back as unsigned 64-bit numbers."""
    return value - 2**64 if value >= 2**63 else value


def read_network(point: Point) -> Network:
    """The structure of the network behind ``point.outputs``; NoCurvature where individual gradients cannot be read."""
    if point.outputs is None or point.outputs.grad_fn is None:
        raise NoCurvature("the outputs have no graph")
    if not point.samples_first:
        raise NoCurvature("samples do not lie along the first dimension")
    wanted = {id(p) for p in point.trainable.values()}
    beside = reachable([point.loss.grad_fn], stop=point.cut or (point.outputs.grad_fn,))
    if any(id(variable_of(node)) in wanted for node in beside):
        raise NoCurvature("the loss depends on parameters not only through the outputs")
    order = reachable([point.outputs.grad_fn])
    with explained():
        return _Reader(point).read(relevant_nodes(order, wanted), order)
