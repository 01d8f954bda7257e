"""Where curvature is asked for: one mini-batch at the current parameters, and the one way to say "no value"."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor
from torch.autograd.graph import Node


class NoCurvature(RuntimeError):
    """There is no value here; the message says why, in words for the user."""


@dataclass(frozen=True)
class Point:
    """One mini-batch at the current parameters. Nothing below changes it, frees its graph, or keeps it alive.

    loss: scalar with its graph, scaled as the user differentiates it.
    parameters: by name; those that do not require a gradient are left out of everything.
    batch_size: samples, along dimension 0 of the inputs, the outputs and everything between.
    samples_first: False where they lie along another dimension: then nothing is read from the graph node by node.
    outputs: what the loss received, with its graph; None if the loss is not a function of one tensor.
    loss_of: outputs -> the same scalar loss, twice differentiable, free of hooks; None rules out Gauss-Newton.
    sum_of_squares: seed shaped like ``outputs`` -> per parameter the sum over samples of the squares of
        ``J_n^T seed_n`` (unscaled); serves networks that ``autograd_graph`` cannot read.
    part: (lo, hi) -> the same loss as a function of these samples alone, on a graph of their own, so that curvatures
        of parts add up to that of the whole; raises NoCurvature where they would not.
    cut: nodes of the loss's graph where the network ends, if ``outputs`` was made from several or reshaped ones.
    """

    loss: Tensor
    parameters: dict[str, Tensor]
    batch_size: int
    outputs: Tensor | None = None
    loss_of: Callable[[Tensor], Tensor] | None = None
    sum_of_squares: Callable[[Tensor], dict[str, Tensor]] | None = None
    samples_first: bool = True
    part: Callable[[int, int], Point] | None = None
    cut: tuple[Node, ...] = ()

    @property
    def trainable(self) -> dict[str, Tensor]:
        return {name: p for name, p in self.parameters.items() if p.requires_grad}


# What torch says where a second derivative does not exist, and what the user should read instead.
_REASONS = (
    ("aot_autograd", "a compiled part of the network has no second derivative; run it eagerly"),
    ("once_differentiable", "a custom function in the network is marked as differentiable only once"),
    ("attention", "fused attention has no second derivative; use the plain ('math') attention kernel"),
    ("embedding_bag", "EmbeddingBag has no second derivative"),
    ("ctc", "the CTC loss has no second derivative"),
    ("heckpoint", "a checkpointed block does not allow a second derivative; use_reentrant=False does"),
    ("is not implemented", "an operation of the network has no second derivative"),
    ("not differentiable", "an operation of the network has no second derivative"),
    ("does not require grad", "the loss does not depend on the parameters through a graph"),
    ("modified by an inplace operation", "a tensor that the graph needs was changed in place"),
    ("backward through the graph a second time", "the graph of this backward pass has been freed"),
)


@contextmanager
def explained() -> Iterator[None]:
    """Turn torch's many ways to say that a derivative does not exist into NoCurvature; other errors pass unchanged."""
    try:
        yield
    except NoCurvature:
        raise
    except AttributeError as error:
        if "_saved_" not in str(error) and "_input_metadata" not in str(error):
            raise
        raise NoCurvature(f"this torch does not show what an operation has saved ({error})") from error
    except RuntimeError as error:
        text = str(error)
        for sign, reason in _REASONS:
            if sign in text:
                raise NoCurvature(f"{reason} ({text.splitlines()[0][:200]})") from error
        raise
