"""What lies between a call and the loss that makes samples meet, or hides whose rows are whose."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cockpit_core.engine.samples.own_functions import is_checkpoint
from cockpit_core.layers.registry import Call

CALLED, GIVEN = "cockpit call", "cockpit model"
"""Marks in the graph: what a hooked call gave, and what the model gave."""


def reachable(root: Any) -> set[Any]:
    seen, waiting = set(), [root]
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += [child for child, _ in node.next_functions if child is not None]
    return seen


def find_region(starts: Iterable[Any], wanted: set[Any]) -> set[Any]:
    """All nodes on a way from a start to a wanted node."""
    order, seen, stack = [], set(), [(node, False) for node in starts]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
            continue
        if node in seen:
            continue
        seen.add(node)
        stack.append((node, True))
        stack += [(child, False) for child, _ in node.next_functions if child is not None and child not in seen]
    region: set[Any] = set()
    for node in order:  # children come before their parents
        if node in wanted or any(child in region for child, _ in node.next_functions):
            region.add(node)
    return region


def is_nested(nodes: set[Any], calls: list[Call]) -> bool:
    """Does one call of the model lie behind another one of a different size, as in an inner training step (MAML)?"""
    sizes = {call.forward: call.batch_size for call in calls}
    given = [(n, {sizes.get(forward) for forward, _ in n.metadata[GIVEN]}) for n in nodes if GIVEN in n.metadata]
    for node, own in given:
        below = {n for child, _ in node.next_functions if child is not None for n in reachable(child)}
        if any(other in below and size != own for other, size in given if other is not node):
            return True
    return False


def mixes_batch(node: Any) -> bool:
    return "BatchNorm" in node.name() and getattr(node, "_saved_training", True) and not is_instance_norm(node)


def is_instance_norm(node: Any) -> bool:
    """torch normalises each channel of each sample as a channel of its own in a batch of one: [1, B C, ...]."""
    return "BatchNorm" in node.name() and tuple(node._input_metadata[0].shape[:1]) == (1,)


def below_batch_norm(nodes: set[Any]) -> set[int]:
    """Calls whose outputs pass a normalisation over the batch on their way to the loss."""
    norms = [n for n in nodes if mixes_batch(n)]
    below = {
        node for norm in norms for child, _ in norm.next_functions if child is not None for node in reachable(child)
    }
    return {id(call) for node in below for call, _, _ in node.metadata.get(CALLED, ())}


def below_doubts(doubts: dict[Any, str]) -> dict[int, str]:
    """Calls with a function of the user behind them that may do anything to rows, and what is said about them."""
    doubted: dict[int, str] = {}
    for node, why in doubts.items():
        words = (
            f"samples may meet or move in {node._forward_cls.__name__}, a function of your own behind this layer: {why}"
        )
        below = {n for child, _ in node.next_functions if child is not None for n in reachable(child)}
        doubted |= {id(call): words for n in below for call, _, _ in n.metadata.get(CALLED, ())}
    return doubted


def doubt_inside(doubts: dict[Any, str]) -> str:
    """Layers inside a checkpoint are not in the graph: if the checkpoint is doubted, all of them are."""
    own = [why for node, why in doubts.items() if is_checkpoint(node)]
    return (
        f"a reentrant checkpoint hides which samples its layers see: {own[0]}; use_reentrant=False shows it"
        if own
        else ""
    )
