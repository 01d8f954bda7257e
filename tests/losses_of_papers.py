"""Losses of papers and libraries as functions of (model, batch), each with its samples' losses written once more."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.loops import B, draw, labels

# ---- classification --------------------------------------------------------------------------------------------------


def focal(y: Tensor, t: Tensor, gamma: float = 2.0) -> Tensor:
    ce = F.cross_entropy(y, t, reduction="none")
    return ((1 - torch.exp(-ce)) ** gamma * ce).mean()


def focal_sample(y: Tensor, t: Tensor) -> Tensor:
    p = y.softmax(1)[0, t[0]]
    return -((1 - p) ** 2) * p.log()


def smoothing_by_hand(y: Tensor, t: Tensor, eps: float = 0.1) -> Tensor:
    logp = F.log_softmax(y, dim=-1)
    nll = -logp.gather(dim=-1, index=t.unsqueeze(1)).squeeze(1)
    return ((1 - eps) * nll + eps * -logp.mean(dim=-1)).mean()


def svm(y: Tensor, t: Tensor) -> Tensor:
    right = y.gather(1, t[:, None])
    return ((y - right + 1).clamp(min=0).sum(1) - 1).mean()


def mixup(m: nn.Module, b: tuple) -> Tensor:
    lam, order = 0.3, torch.tensor([1, 0, 3, 4, 2])
    out = m(lam * b[0] + (1 - lam) * b[0][order])
    return lam * F.cross_entropy(out, b[1]) + (1 - lam) * F.cross_entropy(out, b[1][order])


def mixup_samples(m: nn.Module, b: tuple) -> list[Tensor]:
    lam, order = 0.3, torch.tensor([1, 0, 3, 4, 2])
    x = lam * b[0] + (1 - lam) * b[0][order]
    found = []
    for n in range(B):
        logp = m(x[n : n + 1]).log_softmax(1)[0]
        found.append(-lam * logp[b[1][n]] - (1 - lam) * logp[b[1][order[n]]])
    return found


def distil(m: nn.Module, b: tuple, T: float = 2.0) -> Tensor:
    out = m(b[0])
    soft = F.kl_div(F.log_softmax(out / T, 1), F.softmax(b[2] / T, 1), reduction="batchmean") * T * T
    return 0.7 * soft + 0.3 * F.cross_entropy(out, b[1])


def distil_sample(y: Tensor, t: Tensor, teacher: Tensor, T: float = 2.0) -> Tensor:
    p = (teacher / T).softmax(0)
    return 0.7 * T * T * (p * (p.log() - (y[0] / T).log_softmax(0))).sum() - 0.3 * y[0].log_softmax(0)[t]


class Deep(nn.Module):
    """Deep supervision: one prediction after each block."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.heads = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])

    def forward(self, x: Tensor) -> list[Tensor]:
        found = []
        for block, head in zip(self.blocks, self.heads, strict=True):
            x = torch.tanh(block(x))
            found.append(head(x))
        return found


CRITERIA = [nn.CrossEntropyLoss(), nn.MSELoss()]


def several_criteria(m: nn.Module, b: tuple) -> Tensor:
    return sum(criterion(out, t) for criterion, out, t in zip(CRITERIA, m(b[0]), b[1:], strict=True))


def inside_the_loop(m: nn.Module, b: tuple) -> Tensor:
    def loss_fn(output: Tensor, target: Tensor) -> Tensor:
        return F.nll_loss(F.log_softmax(output, dim=1), target)

    return loss_fn(m(b[0]), b[1])


smoothed_partial = functools.partial(F.cross_entropy, label_smoothing=0.2)


def smooth_sample(y: Tensor, t: Tensor) -> Tensor:
    logp = y[0].log_softmax(0)
    return -0.8 * logp[t] - 0.2 * logp.mean()


# ---- pictures, sequences ---------------------------------------------------------------------------------------------


def dice(y: Tensor, t: Tensor) -> Tensor:
    """Of the whole batch: one number."""
    p = torch.sigmoid(y)
    return 1 - (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)


def dice_of_each(y: Tensor, t: Tensor) -> Tensor:
    p = torch.sigmoid(y)
    return (1 - (2 * (p * t).sum(1) + 1) / (p.sum(1) + t.sum(1) + 1)).mean()


def masks(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return draw(generator, B, 4), (draw(generator, B, 3) > 0).double()


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(2, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(x)))


def sequences(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 0]]).double()
    return draw(generator, B, 4, 2), labels(generator, 3, B, 4), mask


def token_losses(m: nn.Module, b: tuple) -> Tensor:
    return F.cross_entropy(m(b[0]).transpose(1, 2), b[1], reduction="none")


def masked_tokens(m: nn.Module, b: tuple) -> Tensor:
    return (token_losses(m, b) * b[2]).sum() / b[2].sum()


def masked_token_samples(m: nn.Module, b: tuple) -> list[Tensor]:
    rows = [-m(b[0][n : n + 1])[0].log_softmax(1)[torch.arange(4), b[1][n]] for n in range(B)]
    return [(row * b[2][n]).sum() * B / b[2].sum() for n, row in enumerate(rows)]


def step_by_step(m: nn.Module, b: tuple) -> Tensor:
    out, loss = m(b[0]), 0
    for t in range(4):
        loss = loss + F.cross_entropy(out[:, t], b[1][:, t])
    return loss / 4


def ctc(m: nn.Module, b: tuple) -> Tensor:
    logp = m(b[0]).log_softmax(2).transpose(0, 1)  # [time, batch, classes]
    return F.ctc_loss(logp, b[1][:, :2] % 2 + 1, torch.full((B,), 4), torch.full((B,), 2), zero_infinity=True)


def ctc_samples(m: nn.Module, b: tuple) -> list[Tensor]:
    found = []
    for n in range(B):
        logp = m(b[0][n : n + 1]).log_softmax(2).transpose(0, 1)
        target = b[1][n : n + 1, :2] % 2 + 1
        found.append(
            F.ctc_loss(logp, target, torch.tensor([4]), torch.tensor([2]), reduction="sum", zero_infinity=True) / 2
        )
    return found


# ---- pairs and views -------------------------------------------------------------------------------------------------


class Tempered(nn.Module):
    """As CLIP: the temperature is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 3), nn.Linear(4, 3)
        self.log_scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(self.one(x), dim=-1), F.normalize(self.other(y), dim=-1)


def clip(m: nn.Module, b: tuple) -> Tensor:
    one, other = m(*b)
    logits = m.log_scale.exp() * one @ other.t()
    places = torch.arange(B)
    return (F.cross_entropy(logits, places) + F.cross_entropy(logits.t(), places)) / 2


def two(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return draw(generator, B, 4), draw(generator, B, 4)


def simsiam(m: nn.Module, b: tuple) -> Tensor:
    p, z = m(b[0]), m(b[1]).detach()
    return -F.cosine_similarity(p, z, dim=-1).mean()


def simsiam_samples(m: nn.Module, b: tuple) -> list[Tensor]:
    found = []
    for n in range(B):
        p, z = m(b[0][n : n + 1])[0], m(b[1][n : n + 1])[0].detach()
        found.append(-(p @ z) / (p.norm() * z.norm()))
    return found


def barlow(m: nn.Module, b: tuple) -> Tensor:
    one, other = m(b[0]), m(b[1])
    one = (one - one.mean(0)) / one.std(0)
    other = (other - other.mean(0)) / other.std(0)
    c = one.T @ other / B
    on = (torch.diagonal(c) - 1).pow(2).sum()
    return on + 0.01 * (c - torch.diag(torch.diagonal(c))).pow(2).sum()


def preferences(m: nn.Module, b: tuple) -> Tensor:
    """Direct preference optimisation: the chosen against the rejected, each by how far it is from a reference."""
    chosen, rejected = m(b[0]).log_softmax(1)[:, 0], m(b[1]).log_softmax(1)[:, 0]
    return -F.logsigmoid(0.5 * ((chosen - b[2]) - (rejected - b[3]))).mean()


def preference_samples(m: nn.Module, b: tuple) -> list[Tensor]:
    found = []
    for n in range(B):
        one, other = (m(x[n : n + 1]).log_softmax(1)[0, 0] for x in b[:2])
        found.append(torch.log1p(torch.exp(-0.5 * (one - b[2][n] - other + b[3][n]))))
    return found


# ---- regression ------------------------------------------------------------------------------------------------------


def pinball(y: Tensor, t: Tensor) -> Tensor:
    e = t - y
    return torch.max(0.9 * e, (0.9 - 1) * e).mean()


def log_cosh(y: Tensor, t: Tensor) -> Tensor:
    return torch.log(torch.cosh(y - t)).mean()


def huber_by_hand(y: Tensor, t: Tensor) -> Tensor:
    e = (y - t).abs()
    return torch.where(e < 1, 0.5 * e**2, e - 0.5).mean()


def heteroscedastic(m: nn.Module, b: tuple) -> Tensor:
    mean, log_var = m(b[0]).chunk(2, dim=1)
    return 0.5 * (torch.exp(-log_var) * (b[1] - mean) ** 2 + log_var).mean()


def heteroscedastic_samples(m: nn.Module, b: tuple) -> list[Tensor]:
    found = []
    for n in range(B):
        mean, log_var = m(b[0][n : n + 1])[0].chunk(2)
        found.append(0.5 * ((b[1][n] - mean) ** 2 / log_var.exp() + log_var).mean())
    return found


class Variational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(4, 4), nn.Linear(2, 4)

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mu, logvar = self.encode(x).chunk(2, dim=1)
        return self.decode(mu + noise * torch.exp(0.5 * logvar)), mu, logvar


def elbo(m: nn.Module, b: tuple) -> Tensor:
    out, mu, logvar = m(b[0].sigmoid(), b[1])
    bce = F.binary_cross_entropy_with_logits(out, b[0].sigmoid(), reduction="sum")
    return (bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())) / len(b[0])


def elbo_samples(m: nn.Module, b: tuple) -> list[Tensor]:
    found = []
    for n in range(B):
        x = b[0][n : n + 1].sigmoid()
        out, mu, logvar = m(x, b[1][n : n + 1])
        bce = -(x * F.logsigmoid(out) + (1 - x) * F.logsigmoid(-out)).sum()
        found.append(bce - 0.5 * (1 + logvar - mu**2 - logvar.exp()).sum())
    return found


# ---- reinforcement ---------------------------------------------------------------------------------------------------


def grpo(m: nn.Module, b: tuple) -> Tensor:
    """Clipped ratios by group-relative advantages, a penalty of the way to a reference, means over the tokens that count."""
    logp = -token_losses(m, b)
    ratio = torch.exp(logp - b[3])
    advantage = b[4].unsqueeze(1)
    surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    away = torch.exp(b[3] - logp) - (b[3] - logp) - 1
    per_token = -(surrogate - 0.04 * away)
    return ((per_token * b[2]).sum(1) / b[2].sum(1)).mean()


def grpo_samples(m: nn.Module, b: tuple) -> list[Tensor]:
    found = []
    for n in range(B):
        logp = m(b[0][n : n + 1])[0].log_softmax(1)[torch.arange(4), b[1][n]]
        ratio, total = (logp - b[3][n]).exp(), 0
        for t in range(int(b[2][n].sum())):
            gain = torch.minimum(ratio[t] * b[4][n], ratio[t].clamp(0.8, 1.2) * b[4][n])
            total = total - gain + 0.04 * (1 / ratio[t] + (logp[t] - b[3][n, t]) - 1)
        found.append(total / b[2][n].sum())
    return found


def actor_critic(m: nn.Module, b: tuple, critic: nn.Module | None = None) -> Tensor:
    logits, value = m(b[0])
    actions = torch.distributions.Categorical(logits=logits)
    advantage = b[2] - (value if critic is None else critic(b[0])[1])[:, 0].detach()
    policy = -(actions.log_prob(b[1]) * advantage).mean()
    return policy + 0.5 * F.mse_loss(value[:, 0], b[2]) - 0.01 * actions.entropy().mean()


def actor_critic_samples(m: nn.Module, b: tuple) -> list[Tensor]:
    found = []
    for n in range(B):
        logits, value = m(b[0][n : n + 1])
        logp, v = logits[0].log_softmax(0), value[0, 0]
        found.append(
            -logp[b[1][n]] * (b[2][n] - v.detach()) + 0.5 * (v - b[2][n]) ** 2 + 0.01 * (logp.exp() * logp).sum()
        )
    return found


def q_learning(m: nn.Module, b: tuple, old: nn.Module | None = None) -> Tensor:
    with torch.no_grad():
        target = b[2] + 0.9 * (old or m)(b[3]).max(1).values
    return F.smooth_l1_loss(m(b[0]).gather(1, b[1][:, None]).squeeze(1), target)


def q_samples(m: nn.Module, b: tuple) -> list[Tensor]:
    found = []
    for n in range(B):
        with torch.no_grad():
            target = b[2][n] + 0.9 * m(b[3][n : n + 1]).max()
        e = (m(b[0][n : n + 1])[0, b[1][n]] - target).abs()
        found.append(0.5 * e**2 if e < 1 else e - 0.5)
    return found
