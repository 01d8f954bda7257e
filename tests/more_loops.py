"""More loops as people write them: losses of papers and libraries, each with its samples' losses written once more.

``drive``: how the loop differentiates, where that is not ``scalar(model, batch).backward()``. ``missing``: quantities that
have no value, with a part of the reason. ``held``: the scalar at another model, with what it detaches as it was at the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.loops import B, Loop, TwoHeads, classes, draw, each, logp_of, numbers, small
from tests.losses_of_papers import (
    Deep,
    Sequence,
    Tempered,
    Variational,
    actor_critic,
    actor_critic_samples,
    barlow,
    clip,
    ctc,
    ctc_samples,
    dice,
    dice_of_each,
    distil,
    distil_sample,
    elbo,
    elbo_samples,
    focal,
    focal_sample,
    grpo,
    grpo_samples,
    heteroscedastic,
    heteroscedastic_samples,
    huber_by_hand,
    inside_the_loop,
    log_cosh,
    masked_token_samples,
    masked_tokens,
    masks,
    mixup,
    mixup_samples,
    pinball,
    preference_samples,
    preferences,
    q_learning,
    q_samples,
    sequences,
    several_criteria,
    simsiam,
    simsiam_samples,
    smooth_sample,
    smoothed_partial,
    smoothing_by_hand,
    step_by_step,
    svm,
    two,
)
from tests.objectives import Objective


def plainly(loop: Another, model: nn.Module, batch: tuple) -> None:
    loop.scalar(model, batch).backward()


@dataclass(frozen=True)
class Another(Loop):
    drive: Callable = plainly
    missing: dict[str, str] = field(default_factory=dict)
    held: Callable | None = None

    @property
    def objective(self) -> Objective:
        return Objective(self.scalar, self.samples, self.held)


MIXED = {"Alpha": "the loss"}
"""No losses of single samples."""


# ---- ways to differentiate -------------------------------------------------------------------------------------------


def with_gradient(loop: Another, model: nn.Module, batch: tuple) -> None:
    losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
    losses.backward(gradient=torch.full_like(losses, 1 / B))


def both_at_once(loop: Another, model: nn.Module, batch: tuple) -> None:
    first, second = model(batch[0])
    torch.autograd.backward([F.cross_entropy(first, batch[1]), 0.5 * F.mse_loss(second, batch[2])])


def accumulated(loop: Another, model: nn.Module, batch: tuple) -> None:
    """As Accelerate does: the loss is divided by the number of pieces, here of unequal sizes."""
    for part in (slice(0, 2), slice(2, 5)):
        piece = tuple(t[part] for t in batch)
        (F.cross_entropy(model(piece[0]), piece[1], reduction="sum") / B).backward()


class Lit(nn.Module):
    """Lightning's shape: the model has a ``training_step`` that calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: tuple) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(x), y)


class Parallel(nn.Module):
    """As DataParallel gathers them: one loss for each device."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([F.cross_entropy(self.net(x), y)])


def ce_samples(m: nn.Module, b: tuple) -> list[Tensor]:
    return each(m, b[0], lambda y, n: -logp_of(y, b[1][n : n + 1]).sum())


def two_head_samples(m: nn.Module, b: tuple, weight: float = 1.0) -> list[Tensor]:
    return each(m, b[0], lambda y, n: -logp_of(y[0], b[1][n : n + 1]).sum() + weight * (y[1] - b[2][n]).square().mean())


def deep_samples(m: nn.Module, b: tuple) -> list[Tensor]:
    return each(m, b[0], lambda y, n: -(0.4 * y[0][0].log_softmax(0)[b[1][n]] + y[1][0].log_softmax(0)[b[1][n]]))


def sparse(m: nn.Module) -> Tensor:
    return 0.01 * sum(p.abs().sum() for p in m.parameters()) + 0.1 * (m[2].weight @ m[2].weight.T).norm()


MORE = {
    loop.name: loop
    for loop in (
        Another("focal", small(), classes, lambda m, b: focal(m(b[0]), b[1]),
                lambda m, b: each(m, b[0], lambda y, n: focal_sample(y, b[1][n : n + 1]))),
        Another("smoothing by hand", small(), classes, lambda m, b: smoothing_by_hand(m(b[0]), b[1]),
                lambda m, b: each(m, b[0], lambda y, n: 0.9 * -logp_of(y, b[1][n : n + 1]).sum() - 0.1 * y.log_softmax(1).mean())),
        Another("partial", small(), classes, lambda m, b: smoothed_partial(m(b[0]), b[1]),
                lambda m, b: each(m, b[0], lambda y, n: smooth_sample(y, b[1][n]))),
        Another("hinge by hand", small(), classes, lambda m, b: svm(m(b[0]), b[1]),
                lambda m, b: each(m, b[0], lambda y, n: F.multi_margin_loss(y, b[1][n : n + 1], reduction="sum") * 3)),
        Another("mixup", small(), classes, mixup, mixup_samples),
        Another("teacher and student", small(), lambda g: (*classes(g), draw(g, B, 3)), distil,
                lambda m, b: each(m, b[0], lambda y, n: distil_sample(y, b[1][n], b[2][n]))),
        Another("deep supervision", Deep, classes,
                lambda m, b: sum(w * F.cross_entropy(out, b[1]) for w, out in zip((0.4, 1.0), m(b[0]), strict=True)),
                deep_samples),
        Another("list of criteria", TwoHeads, lambda g: (*classes(g), draw(g, B, 2)), several_criteria, two_head_samples),
        Another("loss inside the loop", small(), classes, inside_the_loop, ce_samples),
        Another("dice of the batch", small(), masks, lambda m, b: dice(m(b[0]), b[1]), None, missing=MIXED),
        Another("dice of each", small(), masks, lambda m, b: dice_of_each(m(b[0]), b[1]),
                lambda m, b: each(m, b[0], lambda y, n: dice(y, b[1][n : n + 1]))),
        Another("masked tokens", Sequence, sequences, masked_tokens, masked_token_samples),
        Another("loop over time", Sequence, sequences, step_by_step,
                lambda m, b: masked_token_samples(m, (b[0], b[1], torch.ones(B, 4).double()))),
        Another("CTC", Sequence, sequences, ctc, ctc_samples,
                missing=dict.fromkeys(("HessTrace", "HessMaxEV", "TICDiag", "BatchSharpness"), "no second derivative")),
        Another("CLIP", Tempered, two, clip, None, missing=MIXED),
        Another("SimSiam", small(), two, simsiam, simsiam_samples,
                held=lambda m, after, b: -F.cosine_similarity(after(b[0]), m(b[1]).detach()).mean()),
        Another("BYOL", small(), two, lambda m, b: (2 - 2 * F.cosine_similarity(m(b[0]), b[1][:, :3])).mean(),
                lambda m, b: each(m, b[0], lambda y, n: 2 - 2 * F.cosine_similarity(y, b[1][n : n + 1, :3]).sum())),
        Another("ranking", small(), numbers,
                lambda m, b: F.margin_ranking_loss(m(b[0])[:, 0], m(b[0])[:, 1], b[1][:, 0].sign(), 0.5),
                lambda m, b: each(m, b[0], lambda y, n: (0.5 - b[1][n, 0].sign() * (y[0, 0] - y[0, 1])).clamp(min=0))),
        Another("Barlow Twins", small(), two, barlow, None, missing=MIXED),
        Another("preferences", small(), lambda g: (*two(g), draw(g, B), draw(g, B)), preferences, preference_samples),
        Another("pinball", small(), numbers, lambda m, b: pinball(m(b[0]), b[1]),
                lambda m, b: each(m, b[0], lambda y, n: pinball(y[0], b[1][n]))),
        Another("log cosh", small(), numbers, lambda m, b: log_cosh(m(b[0]), b[1]),
                lambda m, b: each(m, b[0], lambda y, n: log_cosh(y[0], b[1][n]))),
        Another("Huber by hand", small(), numbers, lambda m, b: huber_by_hand(m(b[0]), b[1]),
                lambda m, b: each(m, b[0], lambda y, n: F.huber_loss(y[0], b[1][n])),
                missing=dict.fromkeys(("AlphaOwnBatch", "BatchSharpness", "DirectionalSharpness"), "torch.where")
                | {"Alpha": "a constant is added"}),
        Another("learned variance", small(6), numbers, heteroscedastic, heteroscedastic_samples),
        Another("variational", Variational, lambda g: (draw(g, B, 4), draw(g, B, 2)), elbo, elbo_samples),
        Another("GRPO", Sequence, lambda g: (*sequences(g), -1 + 0.1 * draw(g, B, 4), draw(g, B)), grpo, grpo_samples,
                missing={"Alpha": "a constant is added"}),
        Another("actor and critic", TwoHeads, lambda g: (*classes(g), draw(g, B)), actor_critic, actor_critic_samples,
                held=lambda m, after, b: actor_critic(after, b, m)),
        Another("Q-learning", small(), lambda g: (*classes(g), draw(g, B), draw(g, B, 4)), q_learning, q_samples,
                held=lambda m, after, b: q_learning(after, b, m)),
        Another("sparse", small(), classes, lambda m, b: F.cross_entropy(m(b[0]), b[1]) + sparse(m),
                lambda m, b: [loss + sparse(m) for loss in ce_samples(m, b)]),
        Another("backward with a gradient", small(), classes, lambda m, b: F.cross_entropy(m(b[0]), b[1]), ce_samples,
                drive=with_gradient),
        Another("two roots", TwoHeads, lambda g: (*classes(g), draw(g, B, 2)),
                lambda m, b: F.cross_entropy(m(b[0])[0], b[1]) + 0.5 * F.mse_loss(m(b[0])[1], b[2]),
                lambda m, b: two_head_samples(m, b, 0.5), drive=both_at_once),
        Another("accumulated", small(), classes, lambda m, b: F.cross_entropy(m(b[0]), b[1]), ce_samples, drive=accumulated,
                missing={"HessMaxEV": "several backward passes"}),
        Another("training_step", Lit, classes, lambda m, b: m.training_step(b), ce_samples),
        Another("a loss for each device", Parallel, classes, lambda m, b: m(*b).mean(),
                lambda m, b: [-logp_of(m.net(b[0][n : n + 1]), b[1][n : n + 1]).sum() for n in range(B)]),
    )
}  # fmt: skip
