"""The truth of any scalar that a loop differentiates: from its own two functions, sample by sample."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.slow_truth import (
    Array,
    Observation,
    fit_alpha,
    flatten,
    inner_test,
    norm_test,
    ortho_test,
    tic_diag,
)


@dataclass(frozen=True)
class Objective:
    """A loop as two functions of (model, batch): the scalar, and the losses of its samples one by one, mean the scalar.

    ``samples`` is written without a look at the first, sample by sample. None: the scalar has no losses of samples.
    """

    scalar: Callable
    samples: Callable | None
    held: Callable | None = None
    """Of (model, another model, batch): the scalar at the other one, with what it detaches as it was at the first."""


def observe(
    model: nn.Module, objective: Objective, batch
) -> tuple[dict[str, Tensor], Array | None, Array | None, Array]:
    """Gradient, individual losses [B], individual gradients [B, D] and Hessian [D, D] at this point, untracked."""
    model = copy.deepcopy(model)
    theta = dict(model.named_parameters())
    with sdpa_kernel(SDPBackend.MATH):
        loss = objective.scalar(model, batch)
        gradient = torch.autograd.grad(loss, theta.values(), create_graph=True, materialize_grads=True)
        flat = flatten(gradient)
        H = second_derivative(flat, list(theta.values()))
        losses = G = None
        if objective.samples is not None:
            each = objective.samples(model, batch)
            grads = [
                torch.autograd.grad(one, theta.values(), retain_graph=True, materialize_grads=True) for one in each
            ]
            losses = np.array([float(one.detach()) for one in each])
            G = torch.stack([flatten(g) for g in grads]).numpy()
            np.testing.assert_allclose(G.mean(0), flat.detach().numpy(), atol=1e-11)
            np.testing.assert_allclose(losses.mean(), float(loss.detach()), atol=1e-11)
    return {"loss": loss.detach(), "gradient": flat.detach()}, losses, G, H


def second_derivative(gradient: Tensor, parameters: list[Tensor]) -> Array | None:
    """[D, D], row by row; None where torch has none (CTC)."""
    try:
        rows = [
            torch.autograd.grad(g, parameters, retain_graph=True, materialize_grads=True)
            for g in gradient
            if g.requires_grad
        ]
    except RuntimeError:
        return None
    return torch.stack([flatten(row) for row in rows]).numpy() if len(rows) == len(gradient) else None


def own_batch(
    found: dict, H: Array | None, before: nn.Module, model: nn.Module, objective: Objective, batch: tuple
) -> dict:
    """What the step did to its own batch: the same scalar where it ended, and the Hessian where it began."""
    parameters = list(model.parameters())
    s = flatten(p.detach() for p in parameters).numpy() - flatten(p.detach() for p in before.parameters()).numpy()
    fT = objective.scalar(model, batch) if objective.held is None else objective.held(before, model, batch)
    gT = flatten(torch.autograd.grad(fT, parameters, materialize_grads=True)).numpy()
    g0, f0 = found["gradient"].numpy(), float(found["loss"])
    rows = np.array([[1.0, 1.0], [1.0, 0.0], [1.0, 2.0]])  # f(1) - f(0), f'(0), f'(1) of w1 tau + w2 tau^2
    w1, w2 = np.linalg.lstsq(rows, np.array([float(fT.detach()) - f0, g0 @ s, gT @ s]), rcond=None)[0]
    values = {"AlphaOwnBatch": -1.0 if w2 < 0 else float(2 * w2 / -w1 - 1)}
    if H is not None:
        values |= {"BatchSharpness": float(g0 @ H @ g0 / (g0 @ g0)), "DirectionalSharpness": float(s @ H @ s / (s @ s))}
    return values


def truth_of_objective(model: nn.Module, objective: Objective, make_optimizer: Callable, batches: Iterable) -> dict:
    """By step: "scalars" by name, "own" of the step's own batch, "alphas"; and the "parameters" after the untracked loop."""
    optimizer = make_optimizer(model.parameters())
    seen, thetas = [], []
    scalars: dict[str, dict[int, float | None]] = {}
    own: dict[str, dict[int, float]] = {}
    for step, batch in enumerate(batches):
        found, losses, G, H = observe(model, objective, batch)
        thetas.append(flatten(p.detach() for p in model.parameters()).numpy().copy())
        seen.append((losses, G))
        values = {"Loss": float(found["loss"]), "GradNorm": float(found["gradient"].norm())}
        if H is not None:
            values |= {"HessTrace": float(np.trace(H)), "HessMaxEV": float(np.linalg.eigvalsh(H)[-1])}
        if G is not None:
            values |= {"NormTest": norm_test(G), "InnerTest": inner_test(G), "OrthoTest": ortho_test(G)}
            values |= {} if H is None else {"TICDiag": tic_diag(G, np.diag(H))}
        for name, value in values.items():
            scalars.setdefault(name, {})[step] = value
        before = copy.deepcopy(model)
        optimizer.zero_grad()
        objective.scalar(model, batch).backward()
        optimizer.step()
        for name, value in own_batch(found, H, before, model, objective, batch).items():
            own.setdefault(name, {})[step] = value
    alphas = {}
    for t in range(len(seen) - 1):
        s = thetas[t + 1] - thetas[t]
        T = float(np.linalg.norm(s))
        if seen[t][0] is not None:
            alphas[t] = fit_alpha(*(Observation(losses, G @ s / T) for losses, G in seen[t : t + 2]), T)
    parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
    return {"scalars": scalars, "own": own, "alphas": alphas, "parameters": parameters}
