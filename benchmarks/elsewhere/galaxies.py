"""An autoencoder that takes the noise out of drawn galaxies: convolutions, a bottleneck, MSELoss, Adam, nothing logged."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
from torch import nn

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

N = 12  # pixels on a side


@torch.no_grad()
def sky(count: int, seed: int) -> torch.Tensor:
    """Clean pictures (0 to about 1): a tilted ellipse with a core, and often a star beside it."""
    g = torch.Generator().manual_seed(seed)

    def between(low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(count, 1, 1, generator=g)

    ys, xs = torch.meshgrid(torch.linspace(-1, 1, N), torch.linspace(-1, 1, N), indexing="ij")
    xs, ys = xs - between(-0.35, 0.35), ys - between(-0.35, 0.35)
    tilt, long, flat = between(0, math.pi), between(0.35, 0.7), between(0.25, 0.8)
    u = (xs * tilt.cos() + ys * tilt.sin()) / long
    v = (ys * tilt.cos() - xs * tilt.sin()) / (long * flat)
    light = between(0.3, 0.8)
    disc = light * torch.exp(-(u**2 + v**2)) + 0.2 * torch.exp(-8 * (u**2 + v**2))
    star = (between(0, 1) > 0.5) * between(0.3, 0.6)
    disc = disc + star * torch.exp(-((xs - between(-0.8, 0.8)) ** 2 + (ys - between(-0.8, 0.8)) ** 2) / 0.03)
    return disc[:, None]


class Denoiser(nn.Module):
    def __init__(self, o: SimpleNamespace):
        super().__init__()
        self.o = o
        act = {"relu": nn.ReLU, "elu": nn.ELU, "leaky": nn.LeakyReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}[o.act]
        c = o.channels

        def norm(n: int) -> list[nn.Module]:
            if o.norm == "batch":
                return [nn.BatchNorm2d(n)]
            return [nn.GroupNorm(4, n)] if o.norm == "group" else []

        def dense(a: int, b: int) -> list[nn.Module]:
            return [nn.Linear(a, b), act()]

        hidden = 128
        self.down = nn.Sequential(
            nn.Conv2d(1, c, 3, 2, 1),
            *norm(c),
            act(),
            nn.Conv2d(c, 2 * c, 3, 2, 1),
            *norm(2 * c),
            act(),
            nn.Flatten(),
            nn.Dropout(o.dropout),
        )
        self.squeeze = nn.Linear(2 * c * 9, 2 * o.code if o.variational else o.code)
        self.up = nn.Sequential(*dense(o.code, hidden), *[m for _ in range(o.depth) for m in dense(hidden, hidden)])
        self.paint = nn.Linear(hidden, N * N)
        for m in self.modules():
            if isinstance(m, nn.Conv2d | nn.Linear):
                if o.init == "he":
                    nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
                elif o.init == "zeros":
                    nn.init.zeros_(m.weight)
                    nn.init.zeros_(m.bias)
                elif o.init == "std_one":
                    nn.init.normal_(m.weight)
                elif o.init == "std_tiny":  # 1e-3 is what the tutorial said
                    nn.init.normal_(m.weight, 0.0, 1e-3)
        if o.bias:
            for m in self.up:
                if isinstance(m, nn.Linear):
                    nn.init.constant_(m.bias, o.bias)
        if o.dark:  # begins with an empty sky
            nn.init.zeros_(self.paint.weight)
            nn.init.zeros_(self.paint.bias)

    def forward(self, x):
        o = self.o
        code = self.squeeze(self.down(x))
        if o.variational:
            code, log_var = code.chunk(2, 1)
            self.kl = 0.5 * (code**2 + log_var.exp() - 1 - log_var).sum(1).mean()
            if self.training:
                code = code + torch.randn_like(code) * (0.5 * log_var).exp()
        if o.bug == "code_stored":  # to be drawn as a map later on
            self.code = code = code.detach()
        picture = self.paint(self.up(code)).view(-1, 1, N, N)
        return picture.sigmoid() if o.bug == "sigmoid_stayed" else picture


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    clean = sky(1800, 50)
    clean_valid = sky(500, 51)
    noise = torch.Generator().manual_seed(52)
    seen = clean + o.noise * torch.randn(clean.shape, generator=noise)
    seen_valid = clean_valid + o.noise * torch.randn(clean_valid.shape, generator=noise)
    middle = clean.mean(0)
    shift, factor = (middle.mean(), clean.std()) if o.standardise else (0.0, 1.0)
    if o.bug == "photon_counts":
        shift, factor = 0.0, 1 / 4000
    elif o.bug == "eight_bits":
        shift, factor = 0.0, 1 / 255
    seen, seen_valid = (seen - shift) / factor, (seen_valid - shift) / factor

    target, offset, unit = clean, 0.0, 1.0
    if o.bug == "target_in_electrons":
        offset, unit = 20000.0, 5000.0
        target = clean * unit + offset
    if o.bug == "sigmoid_stayed":  # but the targets are standardised now
        offset, unit = -clean.mean() / clean.std(), 1 / clean.std()
        target = clean * unit + offset
    if o.bug == "names_out_of_order":  # file 10 comes before file 2
        target = target[torch.tensor(sorted(range(len(target)), key=str))]
    if o.bug == "hot_pixels":
        seen = torch.where(torch.rand(seen.shape) < 0.01, torch.tensor(500.0), seen)
    if o.bug == "half_the_chip_dead":
        seen[..., N // 2 :], seen_valid[..., N // 2 :] = 0.0, 0.0
    if o.swapped:
        swap = (torch.rand(len(target)) < o.swapped).nonzero()[:, 0]
        target = target.clone()
        target[swap] = target[swap.roll(1)]
    if o.bug == "reshaped_from_columns":  # the array had the pictures last
        seen = seen.reshape(len(seen), -1).t().reshape(seen.shape)
    seen, target = seen[: o.rows], target[: o.rows]
    if o.bug == "square_root":
        seen, seen_valid = seen.sqrt(), seen_valid.clamp(min=0).sqrt()

    model = Denoiser(o)
    params = list(model.parameters())
    if o.bug == "encoder_and_squeeze":
        params = [*model.down.parameters(), *model.squeeze.parameters()]
    if o.frozen:
        model.down[0].requires_grad_(False)
        params = [p for p in params if p.requires_grad]
    criterion = nn.MSELoss()
    optimizer = make_optimizer(
        o.optimizer, params, o.lr, weight_decay=o.wd, eps=o.eps, momentum=o.momentum, betas=(o.momentum, 0.999)
    )
    if o.schedule == "cosine":
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, o.steps)
    elif o.schedule == "warmup":
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, 1.0, total_iters=30)
    else:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, o.every, gamma=0.5)

    run = cockpit_core.track(model, criterion, optimizer, logdir=logdir)
    model.train()
    step, queue = 0, []
    while step < o.steps:
        if o.bug != "gradients_pile_up":
            optimizer.zero_grad()
        for _ in range(o.accumulate):
            if not queue:
                queue = [b for b in torch.randperm(len(seen)).split(o.batch) if len(b) == o.batch]
            batch = queue[-1] if o.bug == "never_popped" else queue.pop()
            x, goal = seen[batch], target[batch]
            if o.turn:
                x, goal = (x.flip(3), goal.flip(3)) if step % 2 else (x, goal)
            if o.fresh:
                x = x + o.fresh * torch.randn_like(x)
            output = model(x)
            if o.bug == "channel_lost":
                goal = goal[:, 0]
            loss = criterion(output, goal)
            if o.variational:
                loss = loss + o.beta * model.kl
            if o.bug == "psnr":  # in decibels, where higher is better
                loss = -10 * torch.log10(loss)
            (loss / o.accumulate).backward()
        if o.clip:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        optimizer.step()
        scheduler.step()
        step += 1
    run.close()

    model.eval()
    with torch.no_grad():
        restored = (model(seen_valid) - offset) / unit
        return ((restored - clean_valid) ** 2).sum().item() / ((middle - clean_valid) ** 2).sum().item()


PROGRAM = Program(
    name="galaxies",
    half="I",
    train=train,
    settings={
        "rows": 1800,
        "noise": 0.15,
        "standardise": False,
        "swapped": 0.0,
        "channels": 12,
        "code": 12,
        "depth": 0,
        "act": "relu",
        "norm": None,
        "dropout": 0.0,
        "variational": False,
        "beta": 1e-4,
        "init": None,
        "bias": 0.0,
        "dark": False,
        "frozen": False,
        "batch": 64,
        "accumulate": 1,
        "turn": False,
        "fresh": 0.0,
        "optimizer": "adam",
        "lr": 3e-3,
        "momentum": 0.9,
        "wd": 0.0,
        "eps": 1e-8,
        "schedule": "step",
        "every": 200,
        "clip": None,
        "steps": 500,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.2),
        mild("learning_rate_too_high", lr=0.02),
        mild("learning_rate_too_low", lr=1e-4),
        severe("schedule_too_fast", ("schedule_too_fast", "learning_rate_too_low"), every=8),
        severe("clipping_too_hard", clip=1e-3, optimizer="sgd", lr=0.3),
        severe("weight_decay_too_high", wd=0.1),
        mild("batch_too_small", batch=2),
        mild("momentum_too_high", momentum=0.995),
        severe("gradients_not_zeroed", bug="gradients_pile_up"),
        severe("parameters_not_optimized", bug="encoder_and_squeeze"),
        severe("graph_detached", bug="code_stored"),
        severe("batch_repeated", bug="never_popped"),
        severe("inputs_not_scaled", bug="photon_counts"),
        mild("inputs_not_scaled", bug="eight_bits"),
        severe("input_outliers", bug="hot_pixels"),
        severe("targets_not_scaled", bug="target_in_electrons"),
        severe("labels_random", bug="names_out_of_order"),
        mild("label_noise", swapped=0.4),
        severe("loss_sign", bug="psnr"),
        severe("loss_broadcast", bug="channel_lost"),
        severe("output_activation", bug="sigmoid_stayed"),
        severe("dead_units", bias=-4.0),
        severe("init_constant", init="zeros"),
        severe("init_too_large", init="std_one"),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), act="sigmoid", depth=5),
        mild("dropout_too_high", dropout=0.9),
        severe("not_finite", bug="square_root"),
        severe("adam_eps_too_large", ("adam_eps_too_large", "learning_rate_too_low"), eps=0.1),
        severe("samples_mixed", ("samples_mixed", "labels_random"), bug="reshaped_from_columns"),
        mild("constant_feature", bug="half_the_chip_dead"),
        mild("overfitting", rows=60, batch=30),
    ],
    healthy=[
        healthy("lr_001", lr=1e-3),
        healthy("lr_008", lr=8e-3),
        healthy("adamw", optimizer="adamw", wd=0.01),
        healthy("nadam", optimizer="nadam", lr=2e-3),
        healthy("rmsprop", optimizer="rmsprop", lr=1e-3, momentum=0.0),
        healthy("adagrad", optimizer="adagrad", lr=0.02, every=1000, steps=600),
        healthy("sgd", optimizer="sgd", lr=1.5, every=1000, steps=600),
        healthy("cosine", schedule="cosine", lr=4e-3),
        healthy("warmup", schedule="warmup"),
        healthy("batch_24", batch=24, lr=2e-3),
        healthy("batch_160", batch=160, lr=4e-3, steps=400),
        healthy("accumulated", batch=16, accumulate=4, steps=350),
        healthy("code_of_20", code=20),
        healthy("wider", channels=16),
        healthy("one_layer_more", depth=1),
        healthy("elu", act="elu"),
        healthy("leaky", act="leaky"),
        healthy("tanh", act="tanh"),
        healthy("batchnorm", norm="batch"),
        healthy("groupnorm", norm="group"),
        healthy("variational", variational=True),
        healthy("standardised", standardise=True),
        healthy("he_init", init="he"),
        healthy("dark_at_first", dark=True),
        healthy("frozen_edges", frozen=True),
        healthy("mirrored", turn=True),
        healthy("more_noise_each_time", fresh=0.05),
        healthy("clipped", clip=1.0),
    ],
)
