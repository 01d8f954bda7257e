"""Which parameters have individual gradients that can be read from the graph, and why the others have none."""

from __future__ import annotations

import math

import torch

from .autograd_graph import output_shape
from .factors import Piece, make_piece
from .individual import Individual
from .point import NoCurvature, Point
from .rest import refuse_repeated
from .sites import Sites, find_sites

UNCOVERED = 0.3
"""Share of the parameters that may lack a rule; they get random signs of their own, which are far noisier."""


def tell_apart(
    point: Point, generator: torch.Generator, memory_budget: int
) -> tuple[dict[str, Individual], dict[str, str]]:
    """For each parameter; and parameters without a rule, with the reason. That is all of them where samples are mixed
    (BatchNorm)."""
    try:
        return make_individuals(point, find_sites(point, generator), memory_budget)
    except NoCurvature as reason:
        return {}, dict.fromkeys(point.trainable, str(reason))


def make_individuals(point: Point, sites: Sites, memory_budget: int) -> tuple[dict[str, Individual], dict[str, str]]:
    """By name; and the parameters without a rule, with the reason. NoCurvature if there are too many of them."""
    made: dict[str, Individual] = {}
    uncovered, keep = dict(sites.uncovered), memory_budget // 4
    sizes = {name: math.prod(output_shape(some[0].node)) for name, some in sites.by_name.items()}
    for name in sorted(sizes, key=sizes.__getitem__):  # small ones first: then most of them keep their patches
        parameter, pieces = point.trainable[name], list[Piece]()
        try:
            for site in sites.by_name[name]:
                pieces.append(make_piece(site, parameter, keep))
                keep -= pieces[-1].kept
            one = Individual(pieces, parameter.shape, point.batch_size)
            refuse_repeated(one)
            made[name] = one
        except NoCurvature as reason:
            uncovered[name] = str(reason)
    total = sum(p.numel() for p in point.trainable.values())
    without = sum(point.trainable[name].numel() for name in uncovered)
    if without > UNCOVERED * total:
        name, why = next(iter(uncovered.items()))
        raise NoCurvature(f"{name}: {why}")
    return {name: made[name] for name in sites.by_name if name in made}, uncovered
