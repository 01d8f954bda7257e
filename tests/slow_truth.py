"""What every number should be: plain autograd in float64, one sample at a time, slow and meant to be read.

Nothing here knows the engine. ``moments`` keeps what each step of an untracked loop saw; ``truth_of_run`` turns that into
every quantity of every step. Formulas take ``G``, the individual gradients as a matrix [B, D]: of the whole network, or of one
parameter tensor ("layer-wise"). ``None`` means "has no value".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.moments import (
    Moment as Moment,
)
from tests.moments import (
    contributions as contributions,
)
from tests.moments import (
    freeze as freeze,
)
from tests.moments import (
    individual_gradients as individual_gradients,
)
from tests.moments import (
    individual_losses as individual_losses,
)
from tests.moments import (
    watch_loop as watch_loop,
)
from tests.moments import (
    watch_training as watch_training,
)

Array = np.ndarray


# ---- curvature -----------------------------------------------------------------------------------------------------


def hessian(moment: Moment, names: Iterable[str]) -> Array:
    """[D, D], row by row, parameters flattened in the order of ``names``."""
    theta = moment.parameters()
    chosen = [theta[name] for name in names]
    with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
        loss = moment.loss(theta)
    gradient = flatten(torch.autograd.grad(loss, chosen, create_graph=True))
    rows = [torch.autograd.grad(g_i, chosen, retain_graph=True, materialize_grads=True) for g_i in gradient]
    return torch.stack([flatten(row) for row in rows]).numpy()


def hessian_by_differences(moment: Moment, names: Iterable[str], h: float = 1e-5) -> Array:
    """The same by central differences of the gradient, where a module has no second derivative at all."""
    names, theta = list(names), moment.parameters()

    def gradient_at(name: str, j: int, shift: float) -> Tensor:
        moved = {n: p.detach().clone() for n, p in theta.items()}
        moved[name].view(-1)[j] += shift
        moved = {n: p.requires_grad_() for n, p in moved.items()}
        return flatten(torch.autograd.grad(moment.loss(moved), [moved[n] for n in names]))

    entries = [(name, j) for name in names for j in range(theta[name].numel())]
    columns = [(gradient_at(*entry, h) - gradient_at(*entry, -h)) / (2 * h) for entry in entries]
    H = torch.stack(columns).numpy()
    return (H + H.T) / 2


def gauss_newton(moment: Moment, names: Iterable[str]) -> Array:
    """``J^T (d^2 L / df^2) J`` [D, D], with f the predictions of the whole batch and J their Jacobian."""
    theta = moment.parameters()
    chosen = [theta[name] for name in names]
    f = moment.predict(theta)
    rows = [torch.autograd.grad(f_i, chosen, retain_graph=True, materialize_grads=True) for f_i in f.flatten()]
    J = torch.stack([flatten(row) for row in rows])
    inner = torch.autograd.functional.hessian(lambda p: moment.loss_fn(p, moment.targets), f.detach())
    return (J.T @ inner.reshape(f.numel(), f.numel()) @ J).numpy()


def flatten(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])


# ---- the formulas: G is [B, D] -------------------------------------------------------------------------------------


def grad_norm(G: Array) -> float:
    return float(np.linalg.norm(G.mean(0)))


def norm_test(G: Array) -> float | None:
    B, g = len(G), G.mean(0)
    if B == 1:
        return None
    inside = ((G**2).sum() / (g @ g) - B) / (B * (B - 1))
    return float(np.sqrt(max(inside, 0.0)))


def inner_test(G: Array) -> float | None:
    B, g = len(G), G.mean(0)
    if B == 1:
        return None
    inside = (((G @ g) ** 2).sum() / (g @ g) ** 2 - B) / (B * (B - 1))
    return float(np.sqrt(max(inside, 0.0)))


def ortho_test(G: Array) -> float | None:
    """The part of each ``g_n`` that is orthogonal to g, formed as a vector."""
    B, g = len(G), G.mean(0)
    if B == 1:
        return None
    orthogonal = G - np.outer(G @ g / (g @ g), g)
    return float(np.sqrt((orthogonal**2).sum() / (g @ g) / (B * (B - 1))))


def mean_gsnr(G: Array, eps: float = 1e-5) -> float:
    return float((G.mean(0) ** 2 / (G.var(0) + eps)).mean())


def early_stopping(G: Array, eps: float = 1e-5) -> float | None:
    B = len(G)
    return None if B == 1 else float(1 - B * (G.mean(0) ** 2 / (G.var(0, ddof=1) + eps)).mean())


def cabs(G: Array, lrs: Iterable[float], loss: float) -> float | None:
    if len(set(lrs)) > 1:
        return None
    (lr,) = set(lrs)
    return float(lr * G.var(0).sum() / loss)


def tic_diag(G: Array, diagonal: Array, eps: float = 1e-7) -> float:
    return float(((G**2).mean(0) / (diagonal + eps)).sum())


def tic_trace(G: Array, diagonal: Array, eps: float = 1e-7) -> float:
    return float((G**2).mean(0).sum() / (diagonal.sum() + eps))


@dataclass
class Observation:
    """One end of the line: the individual losses [B] and the individual slopes ``g_n . s / ||s||`` [B]."""

    losses: Array
    slopes: Array


def fit_alpha(start: Observation, end: Observation, T: float) -> dict[str, float | None]:
    """The quadratic through both ends by weighted least squares, each observation divided by its noise.

    A quadratic has ``f(T) - f(0) = T (f'(0) + f'(T)) / 2``: what four observations lack of it is spread over them by their
    variances, and three of them are the quadratic. No system is solved, whose digits variances of 1e-11 beside 1 would take.
    """
    observed = [start.losses, end.losses, start.slopes, end.slopes]
    y = np.array([values.mean() for values in observed])
    variances = np.array([values.var(ddof=1) or 1e-10 for values in observed])
    lack = np.array([-1, 1, -T / 2, -T / 2])
    fitted = y - variances * lack * (lack @ y) / (lack @ (variances * lack))
    w = np.array([fitted[0], fitted[2], (fitted[3] - fitted[2]) / (2 * T)])
    names = ("loss_start", "loss_end", "slope_start", "slope_end")
    fit: dict[str, float | None] = {"length": T, **dict(zip(names, y, strict=True))}
    fit |= {name.replace("_", "_var_"): v for name, v in zip(names, variances, strict=True)}
    fit |= dict(zip(("w0", "w1", "w2"), w, strict=True))
    fit["alpha"] = -1.0 if w[2] < 0 else None if w[1] == 0 else float(2 * T * w[2] / -w[1] - 1)
    return fit


def histogram_1d(G: Array, bins: int = 100, span: tuple[float, float] = (-2, 2)) -> tuple[Array, Array]:
    """Counts and edges; values outside go to the outermost bin."""
    return np.histogram(np.clip(G, *span), bins, span)


def histogram_2d(G: Array, theta: Array, bins=(40, 50), spans=((-1, 1), (-2, 2))) -> tuple[Array, Array, Array]:
    """Counts [gradient bins, parameter bins] of all pairs, and both edges."""
    x = np.clip(G, *spans[0]).ravel()
    y = np.clip(np.broadcast_to(theta, G.shape), *spans[1]).ravel()
    return np.histogram2d(x, y, bins, spans)


def histogram_by_magnitude(values: list[Array], edges: list[Array]) -> Array:
    """Counts in bins that are as many on both sides of the one around zero; each holds the edge that is nearer to zero."""
    counts = np.zeros([len(axis) - 1 for axis in edges], int)
    for numbers in zip(*(np.ravel(v).tolist() for v in values), strict=True):
        place = []
        for number, axis in zip(numbers, edges, strict=True):
            middle = len(axis) // 2
            step = sum(abs(number) >= edge for edge in axis[middle:-1])
            place.append(middle - 1 + (step if number > 0 else -step))
        counts[tuple(place)] += 1
    return counts


# ---- a whole run ---------------------------------------------------------------------------------------------------

LAYERWISE = ("GradNorm", "Distance", "UpdateSize", "ParamNorm", "NormTest", "InnerTest", "OrthoTest", "HessTrace")


@dataclass
class RunTruth:
    """``scalars[name][step]``, ``layers[name][layer][step]``, ``alphas[step]``, and the raw G and theta behind them."""

    names: list[str]
    scalars: dict[str, dict[int, float | None]] = field(default_factory=dict)
    layers: dict[str, dict[str, dict[int, float | None]]] = field(default_factory=dict)
    alphas: dict[int, dict[str, float | None]] = field(default_factory=dict)
    G: list[dict[str, Array]] = field(default_factory=list)
    theta: list[dict[str, Array]] = field(default_factory=list)
    curvature: list[Array] = field(default_factory=list)
    lrs: list[tuple[float, ...]] = field(default_factory=list)


@dataclass
class View:
    """What the formulas may look at: the whole network, or one layer of it, at one step."""

    G: Array
    theta: Array
    theta_start: Array
    theta_after: Array
    diagonal: Array


def evaluate(view: View) -> dict[str, float | None]:
    G = view.G
    return {
        "GradNorm": grad_norm(G),
        "Distance": float(np.linalg.norm(view.theta - view.theta_start)),
        "UpdateSize": float(np.linalg.norm(view.theta_after - view.theta)),
        "ParamNorm": float(np.linalg.norm(view.theta)),
        "NormTest": norm_test(G),
        "InnerTest": inner_test(G),
        "OrthoTest": ortho_test(G),
        "MeanGSNR": mean_gsnr(G),
        "EarlyStopping": early_stopping(G),
        "HessTrace": float(view.diagonal.sum()),
        "TICDiag": tic_diag(G, view.diagonal),
        "TICTrace": tic_trace(G, view.diagonal),
        "TopSampleNorm": float(np.sqrt((G**2).sum(1)).max()),
    }


def matrix(tensors: dict[str, Array], names: Iterable[str], rows: int) -> Array:
    return np.concatenate([np.asarray(tensors[name]).reshape(rows, -1) for name in names], axis=1)


def truth_of_moments(moments: list[Moment], curvature: Callable | None = hessian) -> RunTruth:
    gradients = [individual_gradients(moment) for moment in moments]
    names = list(gradients[0])
    truth = RunTruth(names, G=[{n: G[n].numpy() for n in names} for G in gradients], lrs=[m.lrs for m in moments])
    truth.theta = [{n: p.detach().numpy() for n, p in moment.parameters().items()} for moment in moments]
    sizes = [truth.theta[0][name].size for name in names]
    for t, moment in enumerate(moments):
        C = curvature(moment, names) if curvature else np.full((sum(sizes),) * 2, np.nan)
        truth.curvature.append(C)
        diagonals = dict(zip(names, np.split(np.diag(C), np.cumsum(sizes)[:-1]), strict=True))
        loss = moment.loss(moment.parameters()).item()
        whole = evaluate(view_of(truth, moments, t, names, diagonals))
        whole |= {"Loss": loss, "CABS": cabs(matrix(truth.G[t], names, len(moment.targets)), moment.lrs, loss)}
        whole |= {"HessMaxEV": float(np.linalg.eigvalsh(C)[-1]) if curvature else None}
        for key, value in whole.items():
            truth.scalars.setdefault(key, {})[t] = value
        for layer in names:
            for key, value in evaluate(view_of(truth, moments, t, [layer], diagonals)).items():
                truth.layers.setdefault(key, {}).setdefault(layer, {})[t] = value
    truth.alphas = {t: alpha_of_step(truth, moments, t) for t in range(len(moments) - 1)}
    return truth


def view_of(truth: RunTruth, moments: list[Moment], t: int, names: list[str], diagonals: dict[str, Array]) -> View:
    theta, start = matrix(truth.theta[t], names, 1)[0], matrix(truth.theta[0], names, 1)[0]
    after = matrix({n: p.numpy() for n, p in moments[t].after.items()}, names, 1)[0]
    diagonal = np.concatenate([diagonals[name] for name in names])
    return View(matrix(truth.G[t], names, len(moments[t].targets)), theta, start, after, diagonal)


def alpha_of_step(truth: RunTruth, moments: list[Moment], t: int) -> dict[str, float | None]:
    step = matrix(truth.theta[t + 1], truth.names, 1)[0] - matrix(truth.theta[t], truth.names, 1)[0]
    T = float(np.linalg.norm(step))
    ends = []
    for k in (t, t + 1):
        prediction = moments[k].predict(moments[k].parameters())
        losses = individual_losses(moments[k].loss_fn, prediction, moments[k].targets).detach().numpy()
        ends.append(Observation(losses, matrix(truth.G[k], truth.names, len(losses)) @ step / T))
    return fit_alpha(*ends, T)


def truth_of_run(problem, make_optimizer: Callable, steps: int, curvature: Callable | None = hessian) -> RunTruth:
    return truth_of_moments(watch_training(problem, make_optimizer, steps), curvature)
