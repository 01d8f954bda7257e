"""What the newer instruments should be: from whole matrices of individual gradients, one thing after the other, slow.

As in ``slow_truth``: ``G`` is [B, D], of the whole network or of one parameter tensor; ``None`` means "has no value".
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tests import slow_truth

Array = np.ndarray


# ---- signal and noise ----------------------------------------------------------------------------------------------


def covariance_trace(G: Array) -> float:
    """Unbiased: divisor B - 1, element by element."""
    return float(G.var(0, ddof=1).sum())


def signal(G: Array) -> float:
    """``||G||^2`` without bias: the mean product of two different samples' gradients."""
    K = G @ G.T
    B = len(G)
    return float((K.sum() - np.trace(K)) / (B * (B - 1)))


def signal_share(batches: list[Array]) -> float:
    squared = [float(G.mean(0) @ G.mean(0)) for G in batches]
    return float(np.mean([signal(G) for G in batches]) / np.mean(squared))


def noise_scale(batches: list[Array]) -> float | None:
    below = np.mean([signal(G) for G in batches])
    return float(np.mean([covariance_trace(G) for G in batches]) / below) if below > 0 else None


def noise_scale_of_two_sizes(batches: list[Array], small: int) -> float:
    """McCandlish et al. 2018, appendix A.1: from the squared lengths of gradients of two batch sizes, no individual ones."""
    B = len(batches[0])
    large = np.mean([float(G.mean(0) @ G.mean(0)) for G in batches])
    parts = [part.mean(0) for G in batches for part in np.split(G, B // small)]
    little = np.mean([float(g @ g) for g in parts])
    squared = (B * large - small * little) / (B - small)
    return float((little - large) / (1 / small - 1 / B) / squared)


def jackknife(batches: list[Array], above, below) -> float:
    """Standard error of mean(above) / mean(below): each batch's covariance by leaving out one sample at a time."""
    B, n = len(batches[0]), len(batches)
    r = np.mean([above(G) for G in batches]) / np.mean([below(G) for G in batches])
    total = 0.0
    for G in batches:
        rest = [np.delete(G, i, 0) for i in range(B)]
        values = np.array([above(part) - r * below(part) for part in rest])
        total += (B - 1) / B * ((values - values.mean()) ** 2).sum()
    return float(np.sqrt(total) / n / abs(np.mean([below(G) for G in batches])))


# ---- direction: theta, after (of this step), g as vectors [D] ------------------------------------------------------


def cosine(x: Array, y: Array) -> float:
    return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))


def angle(theta: Array, after: Array) -> float:
    """In degrees, by the chord between the two directions: exact for small ones too."""
    one, other = theta / np.linalg.norm(theta), after / np.linalg.norm(after)
    return float(np.degrees(2 * np.arcsin(np.linalg.norm(one - other) / 2)))


# ---- Adam ----------------------------------------------------------------------------------------------------------


def adam_denominators(gradients: list[Array], beta2: float = 0.999) -> list[Array]:
    """``sqrt(v)`` with its bias corrected, after each step of Adam; gradients as vectors [D]."""
    v, found = np.zeros_like(gradients[0]), []
    for k, g in enumerate(gradients, 1):
        v = beta2 * v + (1 - beta2) * g**2
        found.append(np.sqrt(v / (1 - beta2**k)))
    return found


# ---- loss ----------------------------------------------------------------------------------------------------------


def spike_score(before: list[float], loss: float) -> float:
    middle = np.median(before)
    return float((loss - middle) / (1.4826 * np.median(np.abs(np.array(before) - middle))))


# ---- the step's own batch ------------------------------------------------------------------------------------------


def loss_and_gradient(moment: slow_truth.Moment, values: dict[str, Tensor]) -> tuple[float, Array]:
    theta = {name: p.detach().clone().requires_grad_() for name, p in values.items()}
    loss = moment.loss(theta)
    gradient = torch.autograd.grad(loss, theta.values(), materialize_grads=True)
    return loss.item(), slow_truth.flatten(gradient).numpy()


def alpha_own_batch(moment: slow_truth.Moment) -> float:
    """The parabola ``w0 + w1 tau + w2 tau^2`` by least squares, with tau in units of the step."""
    before = moment.parameters()
    after = {name: moment.after[name] for name in before}
    step = slow_truth.flatten([after[n] - before[n].detach() for n in before]).numpy()
    (f0, g0), (fT, gT) = loss_and_gradient(moment, before), loss_and_gradient(moment, after)
    rows = np.array([[1.0, 1.0], [1.0, 0.0], [1.0, 2.0]])  # f(1) - f(0), f'(0), f'(1) of w1 tau + w2 tau^2
    w1, w2 = np.linalg.lstsq(rows, np.array([fT - f0, g0 @ step, gT @ step]), rcond=None)[0]
    return -1.0 if w2 < 0 else float(2 * w2 / -w1 - 1)


def curvatures_along(moment: slow_truth.Moment) -> dict[str, float]:
    """``v' H v / v'v`` along the gradient and along the step, with the whole Hessian."""
    theta = moment.parameters()
    H = slow_truth.hessian(moment, theta)
    g = loss_and_gradient(moment, theta)[1]
    s = slow_truth.flatten([moment.after[n] - theta[n].detach() for n in theta]).numpy()
    return {"BatchSharpness": float(g @ H @ g / (g @ g)), "DirectionalSharpness": float(s @ H @ s / (s @ s))}


# ---- agreement of samples ------------------------------------------------------------------------------------------


def coherence(G: Array) -> float:
    """Mean product of two gradients, a sample with itself included, over the mean square."""
    products = [[float(one @ other) for other in G] for one in G]
    return float(np.mean(products) / np.mean(np.diag(products)))


def conflict_share(G: Array) -> float:
    pairs = [(n, m) for n in range(len(G)) for m in range(n)]
    return float(np.mean([G[n] @ G[m] < 0 for n, m in pairs]))


def effective_rank(G: Array) -> float:
    p = np.linalg.svd(G, compute_uv=False) ** 2
    p = p[p > 1e-30 * p.sum()] / p.sum()
    return float(np.exp(-(p * np.log(p)).sum()))


def class_interference(G: Array, labels: list[int]) -> dict[str, float]:
    """Mean cosines: between classes, within them, and the lowest of a pair of classes."""
    apart, within, by_pair = [], [], {}
    for n in range(len(G)):
        for m in range(n):
            value = cosine(G[n], G[m])
            (within if labels[n] == labels[m] else apart).append(value)
            if labels[n] != labels[m]:
                by_pair.setdefault(frozenset((labels[n], labels[m])), []).append(value)
    found = {"": float(np.mean(apart)), "/worst": min(float(np.mean(values)) for values in by_pair.values())}
    return found | ({"/same": float(np.mean(within))} if within else {})


def preconditioned_sharpness(moment: slow_truth.Moment, denominators: Array, decay: float) -> float:
    """Of ``P^-1 (H + decay)`` with the whole matrix, not symmetric: its eigenvalues are real all the same."""
    H = slow_truth.hessian(moment, moment.parameters())
    return float(np.linalg.eigvals((H + decay * np.eye(len(H))) / denominators[:, None]).real.max())
