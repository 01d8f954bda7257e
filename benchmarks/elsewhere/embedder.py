"""Embeddings without labels: two views of each drawn sign (moved, on another background, brighter or darker, noisy), a
small CNN with a projection head, NT-Xent written by hand, Adam. In the end each sign of the validation set looks for its
nearest neighbour among the others; the same is logged every 50 steps, with the loss on validation views."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

SIZE, SIGNS = 12, 12


@torch.no_grad()
def signs(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Drawings in ink (0 to 1) of 8x8, each a variation of one of twelve signs."""
    shapes = torch.randn(SIGNS, 1, 4, 4, generator=torch.Generator().manual_seed(40))
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, SIGNS, (count,), generator=g)
    ink = shapes[y] + 0.35 * torch.randn(count, 1, 4, 4, generator=g)
    ink = F.interpolate(ink, size=(8, 8), mode="bilinear", align_corners=False)
    return torch.sigmoid(4 * ink), y


@torch.no_grad()
def view(ink: torch.Tensor, o: SimpleNamespace, g: torch.Generator | None = None) -> torch.Tensor:
    """A photograph of each drawing: somewhere on a wall, in some light."""
    n = len(ink)

    def u(low: float, high: float, *shape: int) -> torch.Tensor:
        return low + (high - low) * torch.rand(n, 1, *(shape or (1, 1)), generator=g)

    at = torch.linspace(-1, 1, SIZE)
    place = torch.randint(0, 5, (n, 2), generator=g)
    rows = torch.arange(8)[None] + place[:, :1]
    cols = torch.arange(8)[None] + place[:, 1:]
    canvas = torch.zeros(n, 1, SIZE, SIZE)
    canvas[torch.arange(n)[:, None, None], 0, rows[:, :, None], cols[:, None, :]] = ink[:, 0]
    wall = u(-0.6, 0.6) + u(-0.8, 0.8) * at[:, None] + u(-0.8, 0.8) * at[None] + u(-0.5, 0.5) * at[:, None] * at[None]
    return wall + u(0.6, 1.4) * canvas + o.grain * torch.randn(n, 1, SIZE, SIZE, generator=g)


class Encoder(nn.Module):
    def __init__(self, o: SimpleNamespace):
        super().__init__()
        self.o = o
        c = o.channels
        act = {"relu": nn.ReLU, "leaky": nn.LeakyReLU, "gelu": nn.GELU, "none": nn.Identity}[o.act]

        def norm(n: int) -> nn.Module:
            if o.norm == "batch":
                return nn.BatchNorm2d(n, momentum=o.bn_momentum)
            return nn.GroupNorm(4, n) if o.norm == "group" else nn.Identity()

        layers = [nn.Conv2d(1, c, 3, 1, 1), norm(c), act(), nn.Conv2d(c, 2 * c, 3, 2, 1), norm(2 * c), act()]
        for _ in range(o.depth):
            layers += [nn.Conv2d(2 * c, 2 * c, 3, 1, 1), norm(2 * c), act()]
        layers += [nn.Conv2d(2 * c, 4 * c, 3, 2, 1), norm(4 * c), act()]
        self.features = nn.Sequential(*layers)
        self.pool = nn.Linear(4 * c * 9, o.hidden)
        middle = nn.BatchNorm1d(o.hidden) if o.head_norm else nn.Identity()
        self.head = nn.Sequential(middle, act(), nn.Dropout(o.dropout), nn.Linear(o.hidden, o.out))

    def forward(self, x):
        h = self.features(x)
        if self.o.bug == "backbone_detached":
            h = h.detach()
        z = self.head(self.pool(h.flatten(1)))
        if self.o.bug == "relu_on_embedding":
            z = F.relu(z)
        return z


class NTXent(nn.Module):
    def __init__(self, o: SimpleNamespace):
        super().__init__()
        self.o, self.temperature = o, o.temperature

    def forward(self, z1, z2):
        o, n = self.o, len(z1)
        z = torch.cat([z1, z2])
        z = F.normalize(z, dim=0 if o.bug == "normalised_along_0" else 1)
        sim = z @ z.t() / self.temperature
        target = torch.arange(2 * n).roll(n)
        sim = sim.masked_fill(torch.eye(2 * n, dtype=torch.bool), -math.inf)
        if o.bug == "softmax_first":
            sim = sim.softmax(1)
        return F.cross_entropy(sim, target, reduction="sum" if o.bug == "summed" else "mean")


@torch.no_grad()
def neighbours_wrong(model: nn.Module, photos: torch.Tensor, y: torch.Tensor) -> float:
    model.eval()
    z = F.normalize(model(photos), dim=1)
    model.train()
    if not torch.isfinite(z).all():
        return math.inf
    sim = z @ z.t()
    sim.fill_diagonal_(-2)
    best = sim.amax(1, keepdim=True)
    tied = (sim >= best - 1e-6).float()  # where everything looks the same, the neighbour is anybody
    right = (tied * (y[:, None] == y[None])).sum(1) / tied.sum(1)
    return (1 - right).mean().item() / (1 - 1 / SIGNS)


def initialise(model: Encoder, o: SimpleNamespace) -> None:
    for m in model.modules():
        if isinstance(m, nn.Conv2d | nn.Linear) and o.init:
            if o.init == "he":
                nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
            elif o.init == "same":
                nn.init.constant_(m.weight, 0.02)
        if isinstance(m, nn.BatchNorm2d) and o.shift:
            nn.init.constant_(m.bias, o.shift)


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    ink, y = signs(1500, 41)
    if o.bug == "one_sign_mostly":
        usual = (torch.rand(len(ink)) < 0.985)[:, None, None, None]
        ink = torch.where(usual, ink[:1] + 0.05 * torch.randn(ink.shape), ink)
    if o.bug == "folders_in_order":
        ink = ink[y.argsort(stable=True)]
    ink = ink[: o.drawings]
    ink_valid, y_valid = signs(400, 42)
    g = torch.Generator().manual_seed(43)
    shown = view(ink_valid, o, g)
    shown_again = view(ink_valid, o, g)
    scalings = {"rough": (0.3, 0.7), "none": (0.0, 1.0), "camera": (-3.0, 1 / 1000)}  # the camera counts to 4095
    shift, scale = scalings[o.scaling]

    def finish(x: torch.Tensor, training: bool = True) -> torch.Tensor:
        x = (x - shift) / scale
        if o.bug == "gamma_corrected":
            x = (x + 1.6).pow(0.45)
        if o.bug == "left_border_stuck":
            x[..., : SIZE // 3] = 0.0
        if training and o.bug == "saturated_pixels":
            x = torch.where(torch.rand(x.shape) < 0.004, torch.tensor(1000.0), x)
        return x

    model = Encoder(o)
    initialise(model, o)
    params = list(model.parameters())
    if o.frozen:
        model.features[0].requires_grad_(False)
        params = [p for p in params if p.requires_grad]
    optimizer = make_optimizer(
        o.optimizer, params, o.lr, betas=(o.beta1, 0.999), momentum=o.momentum, eps=o.eps, weight_decay=o.decay
    )
    if o.bug == "copied_for_the_teacher":
        model = copy.deepcopy(model)
    criterion = NTXent(o)
    if o.schedule == "cosine":
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, o.steps)
    elif o.schedule == "warmup":
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=40)
    else:
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, o.gamma)

    run = cockpit_core.track(model, criterion, optimizer, logdir=logdir)
    model.train()
    queue: list[torch.Tensor] = []
    for step in range(o.steps):
        if o.bug != "zero_grad_commented_out":
            optimizer.zero_grad()
        for _ in range(o.accumulate):
            if not queue:
                order = torch.arange(len(ink)) if o.bug == "folders_in_order" else torch.randperm(len(ink))
                queue = [b for b in order.split(o.batch) if len(b) == min(o.batch, len(ink))][::-1]
            batch = queue.pop()
            if o.bug == "seed_in_the_loop":
                torch.manual_seed(0)
                batch = torch.randperm(len(ink))[: o.batch]
            a = finish(view(ink[batch], o))
            b = finish(view(ink[batch], o))
            if o.bug == "same_view_twice":
                b = a
            elif o.bug == "second_view_of_others":
                b = finish(view(ink[torch.randint(0, len(ink), (len(batch),))], o))
            elif o.strangers:
                other = torch.rand(len(batch)) < o.strangers
                b[other] = b[other].roll(1, 0)
            elif o.bug == "interleaved":  # the pairs lie side by side, and are chunked
                a, b = torch.stack([a, b], 1).flatten(0, 1).chunk(2)
            if o.two_passes:
                z1, z2 = model(a), model(b)
            else:
                z1, z2 = model(torch.cat([a, b])).chunk(2)
            loss = criterion(z1, z2)
            if o.bug == "similarity_instead":
                loss = -loss
            (loss / o.accumulate).backward()
        if o.clip:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        optimizer.step()
        scheduler.step()
        if (step + 1) % 50 == 0:
            with torch.no_grad():
                model.eval()
                valid = criterion(model(finish(shown[:128], False)), model(finish(shown_again[:128], False))).item()
            wrong = neighbours_wrong(model, finish(shown.clone(), False), y_valid)
            if math.isfinite(wrong):
                run.log(valid_loss=valid, valid_accuracy=1 - wrong * (1 - 1 / SIGNS))
    run.close()
    return neighbours_wrong(model, finish(shown.clone(), False), y_valid)


PROGRAM = Program(
    name="embedder",
    half="J",
    train=train,
    settings={
        "drawings": 1500,
        "scaling": "rough",
        "grain": 0.12,
        "strangers": 0.0,
        "channels": 8,
        "depth": 0,
        "hidden": 64,
        "out": 24,
        "act": "relu",
        "norm": "batch",
        "bn_momentum": 0.1,
        "head_norm": False,
        "dropout": 0.0,
        "init": None,
        "shift": 0.0,
        "frozen": False,
        "temperature": 0.2,
        "two_passes": False,
        "batch": 48,
        "accumulate": 1,
        "optimizer": "adam",
        "lr": 3e-3,
        "beta1": 0.9,
        "momentum": 0.9,
        "eps": 1e-8,
        "decay": 1e-5,
        "schedule": "cosine",
        "gamma": 1.0,
        "clip": None,
        "steps": 500,
    },
    faults=[
        severe("learning_rate_too_high", lr=1.0),
        mild("learning_rate_too_high", lr=0.1),
        mild("learning_rate_too_low", lr=8e-4),
        severe("schedule_too_fast", schedule="exp", gamma=0.8),
        severe("batch_too_small", batch=3),
        severe("momentum_too_high", beta1=0.995),
        severe("gradients_not_zeroed", bug="zero_grad_commented_out"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "nothing_moves"), bug="copied_for_the_teacher"),
        severe("graph_detached", ("graph_detached", "parameters_not_optimized"), bug="backbone_detached"),
        severe("batch_repeated", bug="seed_in_the_loop"),
        severe("data_not_shuffled", bug="folders_in_order"),
        severe("inputs_not_scaled", scaling="camera", norm=None),
        severe("input_outliers", bug="saturated_pixels"),
        severe("labels_random", bug="second_view_of_others"),
        mild("label_noise", strangers=0.5),
        severe("loss_sign", bug="similarity_instead"),
        severe("loss_summed", ("loss_summed", "learning_rate_too_high"), bug="summed", optimizer="sgd", lr=0.3),
        mild("softmax_over_batch", bug="normalised_along_0"),
        mild("double_softmax", bug="softmax_first"),
        mild("output_activation", ("output_activation", "dead_units"), bug="relu_on_embedding"),
        severe("dead_units", shift=-4.0),
        severe("init_constant", init="same", norm=None),
        severe("dropout_too_high", dropout=0.95),
        severe("not_finite", bug="gamma_corrected"),
        severe("target_in_inputs", bug="same_view_twice"),
        severe("samples_mixed", ("samples_mixed", "labels_random"), bug="interleaved"),
        severe("class_imbalance", bug="one_sign_mostly"),
        mild("constant_feature", bug="left_border_stuck"),
        mild("missing_nonlinearity", act="none"),
        mild("overfitting", drawings=48),
        mild("batchnorm_momentum", bn_momentum=1e-4),
    ],
    healthy=[
        healthy("rate_third", lr=1.2e-3),
        healthy("rate_double", lr=6e-3),
        healthy("adamw", optimizer="adamw", decay=0.05),
        healthy("nadam", optimizer="nadam"),
        healthy("rmsprop", optimizer="rmsprop", lr=1e-3, momentum=0.0),
        healthy("sgd_momentum", optimizer="sgd", lr=0.3),
        healthy("constant_rate", schedule="exp", lr=2e-3),
        healthy("warmup", schedule="warmup"),
        healthy("batch_32", batch=32),
        healthy("batch_96", batch=96, steps=400),
        healthy("accumulated", batch=32, accumulate=2, steps=400),
        healthy("two_passes", two_passes=True),
        healthy("cooler", temperature=0.1),
        healthy("warmer", temperature=0.4),
        healthy("wide_embedding", out=48),
        healthy("more_channels", channels=12),
        healthy("deeper", depth=1),
        healthy("groupnorm", norm="group"),
        healthy("no_norm", norm=None),
        healthy("norm_in_the_head", head_norm=True),
        healthy("leaky", act="leaky"),
        healthy("gelu", act="gelu"),
        healthy("little_dropout", dropout=0.1),
        healthy("he_init", init="he"),
        healthy("frozen_edges", frozen=True),
        healthy("clipped", clip=1.0),
        healthy("unscaled_small", scaling="none"),
    ],
)
