"""The one table of needs: what a quantity may ask for, when it is complete, and which work it takes.

Whoever plans, measures or bills asks this table, never the quantity's class.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class Moment(IntEnum):
    """When a statistic is complete: a quantity is measured at the latest moment of its needs."""

    BEFORE = 0
    """Before the optimizer steps."""
    AFTER = 1
    """Once it has."""
    NEXT = 2
    """At the backward pass of the step after: such a value is not measured by the quantity itself."""


@dataclass(frozen=True)
class Need:
    """``individual``: individual gradients are looked at. ``cheap``: available even at a step whose forward pass was
    not watched. ``repeated``: it takes the samples of the step once more. ``watched``: it shows in the forward pass.
    ``joined``: with several processes there is a value for the global batch. ``work``: the kinds of work that the
    clock bills to
    those who asked. ``bundle``: what it is measured together with where a budget decides (``BUNDLES``)."""

    text: str
    work: tuple[str, ...] = ()
    moment: Moment = Moment.BEFORE
    individual: bool = False
    cheap: bool = False
    repeated: bool = False
    watched: bool = False
    joined: bool = True
    bundle: str = "base"


NEEDS: dict[str, Need] = {
    "losses": Need("individual losses ``l_n`` [B]", ("losses",)),
    "gradients": Need("the gradient ``g``, one tensor per layer, before the user's clipping"),
    "parameters": Need("the parameters ``theta_t``", cheap=True),
    "snapshot": Need("the parameters as they are stored, whole"),
    "start": Need("the parameters ``theta_0`` at the beginning of the run", ("distance",), cheap=True),
    "update": Need("the step ``s_t = theta_{t+1} - theta_t``", ("update",), Moment.AFTER, cheap=True),
    "norms": Need("``||g_n||^2`` [B] per layer", ("norms",), individual=True, bundle="individual"),
    "dots": Need("``g_n . g`` [B], each layer's own part", ("project gradient",), individual=True, bundle="individual"),
    "squares": Need("``sum_n g_n^2``, one tensor per layer", ("squares",), individual=True, bundle="squares"),
    "histogram": Need(
        "counts of the elements of individual gradients", ("histogram",), individual=True, bundle="histogram"
    ),
    "gram": Need(
        "the Gram matrix of individual gradients, ``g_n . g_m`` [B, B]",
        ("gram",),
        individual=True,
        joined=False,
        bundle="gram",
    ),
    "alpha": Need(
        "losses and slopes at both ends of the step",
        ("project step", "losses", "alpha"),
        Moment.NEXT,
        individual=True,
        bundle="alpha",
    ),
    "diagonal": Need("the diagonal of the curvature", ("diagonal",), bundle="diagonal"),
    "eigenvalue": Need("its largest eigenvalue", ("eigenvalue",), bundle="eigenvalue"),
    "far_end": Need(
        "the loss of this batch and its slope where the step ended",
        ("own batch",),
        Moment.AFTER,
        repeated=True,
        bundle="own batch",
    ),
    "gradient_curvature": Need(
        "``v' H v / v'v`` of this batch along the gradient",
        ("own batch",),
        Moment.AFTER,
        repeated=True,
        bundle="own curvature",
    ),
    "update_curvature": Need(
        "the same along the step", ("own batch",), Moment.AFTER, repeated=True, bundle="own curvature"
    ),
    "preconditioned": Need(
        "the largest eigenvalue of the curvature as the optimizer's denominators scale it",
        ("own batch", "preconditioned"),
        Moment.AFTER,
        repeated=True,
        joined=False,
        bundle="preconditioned",
    ),
    "optimizer": Need("what the optimizer keeps of each parameter (options of its group, moments)", (), Moment.AFTER),
    "ids": Need("who the samples are (``run.batch(ids=...)``), None where nobody said"),
    "units": Need(
        "what the units of activation functions did on this batch", ("activations",), watched=True, bundle="activations"
    ),
    "attention": Need(
        "entropies of attention, and its largest logits", ("activations",), watched=True, bundle="activations"
    ),
    "scales": Need(
        "sizes of the outputs of layers and of the model", ("activations",), watched=True, bundle="activations"
    ),
}

BASE = "base"
BUNDLES: dict[str, tuple[float, float]] = {
    BASE: (1, 4),
    "activations": (1.5, 1),
    "individual": (3, 3),
    "squares": (4, 1),
    "histogram": (5, 2),
    "alpha": (7, 2),
    "own batch": (5, 1),
    "gram": (8, 1),
    "own curvature": (12, 1),
    "eigenvalue": (80, 1),
    "preconditioned": (100, 1),
    "diagonal": (60, 1),
}
"""What each costs before it was measured, in steps, and how it counts when a budget is shared out. A quantity belongs
to the most expensive bundle of its needs."""

INDIVIDUAL = frozenset(name for name, need in NEEDS.items() if need.individual)
REPEATED = frozenset(name for name, need in NEEDS.items() if need.repeated)
WATCHED = frozenset(name for name, need in NEEDS.items() if need.watched)
CHEAP = frozenset(name for name, need in NEEDS.items() if need.cheap)


BACKPACK = Need("an extension of BackPACK", ("backpack",), joined=False, bundle="squares")
"""Any instance of ``backpack.extensions`` that a quantity names beside words."""


def find_need(need: Any) -> Need:
    return NEEDS[need] if isinstance(need, str) else BACKPACK


def is_joined(needs: Iterable[Any]) -> bool:
    """With several processes, does it have a value of the global batch?"""
    return all(find_need(need).joined for need in needs)


def is_individual(needs: Iterable[Any]) -> bool:
    return any(find_need(need).individual for need in needs)


def moment_of(needs: Iterable[Any]) -> Moment:
    return max((find_need(need).moment for need in needs), default=Moment.BEFORE)


def work_of(needs: Iterable[Any]) -> set[str]:
    return {work for need in needs for work in find_need(need).work}


def bundle_of(needs: Iterable[Any]) -> str:
    return max((find_need(need).bundle for need in needs), key=price_of, default=BASE)


def price_of(bundle: str) -> float:
    return BUNDLES[bundle][0]


def weight_of(bundle: str) -> float:
    return BUNDLES[bundle][1]
