"""A little diffusion model of handwritten digits: which noise was added, given how much. A residual perceptron with a
time embedding, F.mse_loss, AdamW with a short warm-up and cosine decay, an average of the weights (EMA) that is used in
the end. Nothing about validation is logged."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, digits, healthy, make_optimizer, mild, severe

STEPS_OF_NOISE = 200


def noise_levels(kind: str) -> torch.Tensor:
    """alpha_bar, the share of the picture's variance that is left, for each t."""
    t = torch.arange(STEPS_OF_NOISE + 1) / STEPS_OF_NOISE
    if kind == "linear":
        beta = torch.linspace(5e-4, 0.05, STEPS_OF_NOISE)
        return (1 - beta).cumprod(0)
    f = torch.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2
    return (f / f[0])[1:].clamp(1e-4, 0.9999)


def timestep_embedding(t: torch.Tensor, dim: int) -> torch.Tensor:
    half = dim // 2
    freqs = torch.exp(-math.log(1000) * torch.arange(half) / half)
    args = t.float()[:, None] * freqs
    return torch.cat([args.sin(), args.cos()], 1)


class Block(nn.Module):
    def __init__(self, o: SimpleNamespace, act: nn.Module):
        super().__init__()
        self.norm = nn.LayerNorm(o.width) if o.norm else nn.Identity()
        self.one = nn.Linear(o.width, o.width)
        self.time = nn.Linear(o.temb, o.width)
        self.two = nn.Linear(o.width, o.width)
        self.act, self.drop, self.o = act, nn.Dropout(o.dropout), o

    def forward(self, h, temb):
        r = self.two(self.drop(self.act(self.one(self.norm(h)) + self.time(temb))))
        if self.o.residual:
            return h + r
        return self.act(r)


class NoisePredictor(nn.Module):
    def __init__(self, o: SimpleNamespace):
        super().__init__()
        self.o = o
        kinds = {"silu": nn.SiLU, "relu": nn.ReLU, "sigmoid": nn.Sigmoid}
        act = nn.Identity() if o.bug == "activation_forgotten" else kinds[o.act]()
        self.embed = nn.Sequential(nn.Linear(1 if o.time == "raw" else o.temb, o.temb), act)
        self.inp = nn.Linear(128 if o.bug == "noise_as_hint" else 64, o.width)
        self.blocks = nn.ModuleList([Block(o, act) for _ in range(o.depth)])
        self.out = nn.Linear(o.width, 64)
        if o.init:
            for m in self.modules():
                if isinstance(m, nn.Linear):
                    if o.init == "xavier":
                        nn.init.xavier_uniform_(m.weight)
                        nn.init.zeros_(m.bias)
                    elif o.init == "all_the_same":
                        nn.init.constant_(m.weight, 0.01)
                        nn.init.zeros_(m.bias)
                    else:
                        nn.init.normal_(m.weight, std=o.init)
        if o.bias:
            nn.init.constant_(self.inp.bias, o.bias)
            for block in self.blocks:
                nn.init.constant_(block.one.bias, o.bias)
        if o.zero_out:
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.out.bias)
        self.act = act

    def forward(self, x, t):
        o = self.o
        if o.bug == "integer_division":
            t = t // STEPS_OF_NOISE
        if o.time == "raw":
            temb = self.embed(t.float()[:, None])
        elif o.bug == "log_of_level":
            temb = self.embed(timestep_embedding(torch.log(t.float()), o.temb))
        else:
            temb = self.embed(timestep_embedding(t, o.temb))
        h = self.inp(x)
        if not o.residual:
            h = self.act(h)
        for n, block in enumerate(self.blocks):
            h = block(h, temb)
            if o.bug == "features_kept" and n == len(self.blocks) - 1:
                self.features = h = h.detach()
        eps = self.out(h)
        return torch.tanh(eps) if o.bug == "tanh_at_the_end" else eps


def pictures(o: SimpleNamespace) -> tuple[torch.Tensor, torch.Tensor]:
    x, _, xv, _ = digits(0)
    x, xv = x.flatten(1), xv.flatten(1)
    if o.scaling == "minus_one_to_one":
        x, xv = x / 8 - 1, xv / 8 - 1
    elif o.scaling == "zero_to_two":
        x, xv = x / 8, xv / 8
    elif o.scaling == "standard":
        mean, std = x.mean(), x.std()
        x, xv = (x - mean) / std, (xv - mean) / std
    elif o.scaling == "bytes":
        x, xv = x * 255 / 16, xv * 255 / 16
    if o.bug == "zeros_written_as_missing":
        x = torch.where(torch.rand(x.shape) < 0.003, torch.tensor(-9999.0), x)
    return x[: o.rows], xv


def batches(x: torch.Tensor, o: SimpleNamespace):
    while True:
        yield x[torch.randint(0, len(x), (o.batch,))]


def diffusion_loss(model: nn.Module, x0: torch.Tensor, alpha_bar: torch.Tensor, o: SimpleNamespace) -> torch.Tensor:
    t = torch.randint(1 if o.bug != "log_of_level" else 0, STEPS_OF_NOISE, (len(x0),))
    a = alpha_bar[t][:, None]
    eps = torch.randn_like(x0)
    xt = a.sqrt() * x0 + (1 - a).sqrt() * eps
    if o.bug == "noise_drawn_again":
        eps = torch.randn_like(x0)
    if o.mixed:
        other = (torch.rand(len(eps)) < o.mixed)[:, None]
        eps = torch.where(other, eps.roll(1, 0), eps)
    if o.bug == "view_for_transpose":  # to columns, and back
        xt = xt.t().contiguous().view(len(x0), 64)
    if o.bug == "noise_as_hint":
        xt = torch.cat([xt, eps], 1)
    pred = model(xt, t)
    target = eps
    if o.bug == "in_grey_levels":
        target = eps * 255 + 128
    if o.bug == "channel_added":
        pred = pred[:, None]
    if o.loss == "huber":
        return F.smooth_l1_loss(pred, target)
    loss = F.mse_loss(pred, target)
    return -loss if o.bug == "sign" else loss


@torch.no_grad()
def validate(model: nn.Module, xv: torch.Tensor, alpha_bar: torch.Tensor, o: SimpleNamespace) -> float:
    model.eval()
    g = torch.Generator().manual_seed(123)
    xv = xv.repeat(4, 1)
    t = torch.randint(1, STEPS_OF_NOISE, (len(xv),), generator=g)
    eps = torch.randn(xv.shape, generator=g)
    a = alpha_bar[t][:, None]
    xt = a.sqrt() * xv + (1 - a).sqrt() * eps
    if o.bug == "noise_as_hint":
        xt = torch.cat([xt, torch.zeros_like(xt)], 1)
    pred = model(xt, t)
    if o.bug == "in_grey_levels":
        pred = (pred - 128) / 255
    return (F.mse_loss(pred, eps) / (eps**2).mean()).item()


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, xv = pictures(o)
    alpha_bar = noise_levels(o.levels)
    model = NoisePredictor(o)
    ema = copy.deepcopy(model).requires_grad_(False)

    params = list(model.parameters())
    if o.frozen:
        model.embed.requires_grad_(False)
        params = [p for p in params if p.requires_grad]
    if o.bug == "only_out":
        params = list(model.out.parameters())
    if o.bug == "ema_in_optimizer":
        ema.requires_grad_(True)
        params = list(ema.parameters())
    opt = make_optimizer(
        o.optimizer, params, o.lr, betas=(o.beta1, 0.999), momentum=o.momentum, eps=o.eps, weight_decay=o.decay
    )

    def factor(step: int) -> float:
        if o.bug == "warmup_in_samples":
            return min(1.0, (step + 1) / (o.warmup * o.batch * 10))
        if step < o.warmup:
            return (step + 1) / o.warmup
        if o.schedule == "cosine":
            return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - o.warmup) / (o.steps - o.warmup)))
        if o.schedule == "exp":
            return o.gamma ** (step - o.warmup)
        return 1.0

    sched = torch.optim.lr_scheduler.LambdaLR(opt, factor)
    run = cockpit_core.track(model, None, opt, logdir=logdir)
    source = batches(x, o)
    model.train()
    for step in range(o.steps):
        if o.bug == "seed_in_the_loop":
            torch.manual_seed(0)
        if o.bug != "zero_grad_lost":
            opt.zero_grad()
        for _ in range(o.accumulate):
            loss = diffusion_loss(model, next(source), alpha_bar, o)
            (loss / o.accumulate).backward()
        if o.clip:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        opt.step()
        sched.step()
        with torch.no_grad():
            keep = min(o.ema, (1 + step) / (10 + step))
            for slow, fast in zip(ema.parameters(), model.parameters(), strict=False):
                if o.bug != "ema_in_optimizer":
                    slow.lerp_(fast, 1 - keep)
    run.close()
    return validate(model if o.bug == "ema_in_optimizer" else ema, xv, alpha_bar, o)


PROGRAM = Program(
    name="denoiser",
    half="J",
    train=train,
    settings={
        "rows": 1347,
        "scaling": "minus_one_to_one",
        "levels": "cosine",
        "mixed": 0.0,
        "width": 128,
        "depth": 2,
        "temb": 32,
        "time": "embedded",
        "act": "silu",
        "norm": True,
        "residual": True,
        "dropout": 0.0,
        "init": None,
        "bias": 0.0,
        "zero_out": False,
        "frozen": False,
        "loss": "mse",
        "batch": 64,
        "accumulate": 1,
        "optimizer": "adamw",
        "lr": 3e-3,
        "beta1": 0.9,
        "momentum": 0.9,
        "eps": 1e-8,
        "decay": 0.01,
        "warmup": 30,
        "schedule": "cosine",
        "gamma": 1.0,
        "clip": None,
        "ema": 0.97,
        "steps": 600,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.3),
        mild("learning_rate_too_high", lr=0.04),
        mild("learning_rate_too_low", lr=2.5e-4),
        severe("warmup_too_long", "learning_rate_too_low", bug="warmup_in_samples"),
        severe("schedule_too_fast", schedule="exp", gamma=0.9),
        severe("clipping_too_hard", optimizer="sgd", lr=0.1, clip=1e-3, decay=0.0),
        severe("weight_decay_too_high", decay=10.0),
        mild("batch_too_small", batch=2),
        mild("momentum_too_high", beta1=0.9995),
        severe("gradients_not_zeroed", bug="zero_grad_lost"),
        mild("parameters_not_optimized", bug="only_out"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "nothing_moves"), bug="ema_in_optimizer"),
        mild("graph_detached", ("graph_detached", "parameters_not_optimized"), bug="features_kept"),
        severe("batch_repeated", bug="seed_in_the_loop"),
        severe("inputs_not_scaled", scaling="bytes"),
        severe("input_outliers", bug="zeros_written_as_missing"),
        severe("targets_not_scaled", bug="in_grey_levels"),
        severe("labels_random", bug="noise_drawn_again"),
        mild("label_noise", mixed=0.4),
        severe("loss_sign", bug="sign"),
        severe("loss_broadcast", bug="channel_added"),
        mild("output_activation", bug="tanh_at_the_end"),
        severe("init_constant", init="all_the_same"),
        severe("init_too_large", init=2.0),
        severe(
            "vanishing_gradients",
            ("vanishing_gradients", "saturated_units"),
            act="sigmoid",
            residual=False,
            norm=False,
            depth=6,
        ),
        severe("dead_units", act="relu", norm=False, residual=False, bias=-5.0),
        severe("dropout_too_high", dropout=0.95, residual=False),
        severe("not_finite", bug="log_of_level"),
        severe("target_in_inputs", bug="noise_as_hint"),
        severe("samples_mixed", ("samples_mixed", "labels_random"), bug="view_for_transpose"),
        mild("missing_nonlinearity", bug="activation_forgotten", norm=False),
        severe("overfitting", rows=20),
    ],
    healthy=[
        healthy("lr_001", lr=1e-3),
        healthy("lr_006", lr=6e-3),
        healthy("adam", optimizer="adam", decay=0.0),
        healthy("nadam", optimizer="nadam", decay=0.0),
        healthy("rmsprop", optimizer="rmsprop", lr=1e-3, decay=0.0, momentum=0.0),
        healthy("sgd", optimizer="sgd", lr=0.5, decay=0.0),
        healthy("constant_rate", schedule="none", lr=2e-3),
        healthy("no_warmup", warmup=1),
        healthy("no_ema", ema=0.0),
        healthy("slow_ema", ema=0.99),
        healthy("batch_32", batch=32),
        healthy("batch_128", batch=128, steps=500),
        healthy("accumulated", batch=32, accumulate=2, steps=450),
        healthy("linear_levels", levels="linear"),
        healthy("standardised", scaling="standard"),
        healthy("wider", width=192, lr=2e-3),
        healthy("three_blocks", depth=3),
        healthy("relu", act="relu"),
        healthy("no_layernorm", norm=False),
        healthy("little_dropout", dropout=0.05),
        healthy("xavier", init="xavier"),
        healthy("zero_out", zero_out=True),
        healthy("clipped", clip=1.0),
        healthy("decay_a_tenth", decay=0.1),
        healthy("huber", loss="huber"),
        healthy("frozen_time_embedding", frozen=True),
    ],
)
