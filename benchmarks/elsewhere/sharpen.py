"""Photographs at twice the resolution: convolutions and PixelShuffle on random crops, L1, Adam, LambdaLR, nothing logged."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

LOW, HIGH = 10, 20


@functools.cache
def photographs() -> tuple[torch.Tensor, torch.Tensor]:
    """Both photographs at half their size, values 0 to 1; the right third of each is kept for validation."""
    from sklearn.datasets import load_sample_images

    both = torch.stack([torch.tensor(image).permute(2, 0, 1) for image in load_sample_images().images])
    both = F.avg_pool2d(both.float() / 255, 2)
    cut = both.shape[-1] * 2 // 3
    return both[..., :cut], both[..., cut:]


def crops(photos: torch.Tensor, count: int, rng: torch.Generator | None = None) -> torch.Tensor:
    found = []
    for _ in range(count):
        n = int(torch.randint(len(photos), (1,), generator=rng))
        r = int(torch.randint(photos.shape[-2] - HIGH, (1,), generator=rng))
        c = int(torch.randint(photos.shape[-1] - HIGH, (1,), generator=rng))
        found.append(photos[n, :, r : r + HIGH, c : c + HIGH])
    return torch.stack(found)


class Sharpener(nn.Module):
    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.bug, self.skip = o.bug, o.skip
        self.first = nn.Conv2d(3, o.width, 3, padding=1)
        self.middle = nn.ModuleList(nn.Conv2d(o.width, o.width, 3, padding=1) for _ in range(o.depth))
        self.last = nn.Conv2d(o.width, 12, 3, padding=1)
        self.shuffle = nn.PixelShuffle(2)
        self.drop = nn.Dropout2d(o.dropout)
        act = {"relu": nn.ReLU, "silu": nn.SiLU, "prelu": nn.PReLU, "sigmoid": nn.Sigmoid, "none": nn.Identity}
        self.act = act[o.activation]()
        for conv in [self.first, *self.middle, self.last]:
            if o.init == "constant":
                nn.init.constant_(conv.weight, 0.01)
            elif o.init == "kaiming":
                nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
                nn.init.zeros_(conv.bias)
            elif o.init:
                conv.weight.data *= o.init
            if o.bias is not None and conv is not self.last:
                nn.init.constant_(conv.bias, o.bias)
        if o.zero_head:
            nn.init.zeros_(self.last.weight)

    def forward(self, small: torch.Tensor) -> torch.Tensor:
        x = self.act(self.first(small))
        for conv in self.middle:
            x = self.act(conv(x))
        x = self.drop(x)
        if self.bug == "no_graph":  # the features went through a cache
            x = x.data
        large = self.shuffle(self.last(x))
        if self.skip:
            large = large + F.interpolate(small, scale_factor=2.0)
        if self.bug == "sigmoid":  # for values 0 to 1, and these are standardised
            return torch.sigmoid(large)
        if self.bug == "relu":
            return torch.relu(large)
        return large


class Pixels(nn.Module):
    """L1, or something near it."""

    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o

    def forward(self, large: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        if self.o.bug == "similarity":
            return -(large - truth).abs().mean()
        if self.o.loss == "huber":
            return F.smooth_l1_loss(large, truth, beta=0.2)
        return self.o.weight * F.l1_loss(large, truth, reduction="sum" if self.o.bug == "summed" else "mean")


def warm(step: int, o: SimpleNamespace) -> float:
    if o.bug == "integer_warmup":
        return float(min(1, step // 1000))
    rise = min(1.0, (step + 1) / o.warmup)
    if o.linear_to_zero:
        return rise * max(0.0, 1 - step / o.steps)
    return rise * o.decay**step


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    photos, kept = photographs()
    mean, std = photos.mean(), photos.std()
    held = (crops(kept, 60, torch.Generator().manual_seed(4)) - mean) / std
    model, loss_fn = Sharpener(o), Pixels(o)
    if o.pretrained:
        before = torch.optim.Adam(model.parameters(), lr=2e-3)
        for _ in range(o.pretrained):
            gray = (crops(photos, 16).mean(1, keepdim=True).expand(-1, 3, -1, -1) - mean) / std
            before.zero_grad()
            F.l1_loss(model(F.avg_pool2d(gray, 2)), gray).backward()
            before.step()
    if o.frozen:
        model.first.requires_grad_(False)
    chosen = model.last.parameters() if o.bug == "last_only" else model.parameters()
    optimizer = make_optimizer(o.optimizer, chosen, o.lr, momentum=o.momentum, weight_decay=o.wd, eps=o.eps)
    if o.bug == "middle_again":
        model.middle = Sharpener(o).middle
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: warm(step, o))
    run = cockpit_core.track(model, loss_fn, optimizer, logdir=logdir)

    def pair(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        large = crops(photos, o.batch)
        if o.bug == "top_to_bottom":  # one row of crops after the other, one photograph after the other
            at = (step * 6) % (photos.shape[-2] - HIGH)
            place = int(torch.randint(photos.shape[-1] - HIGH - 3 * o.batch, (1,)))
            which = (2 * step) // o.steps
            large = torch.stack(
                [photos[which, :, at : at + HIGH, place + 3 * n : place + 3 * n + HIGH] for n in range(o.batch)]
            )
        large = (large - mean) / std
        small = F.avg_pool2d(large, 2)
        if o.bug == "bytes":
            small = (small * std + mean) * 255
        if o.glare:
            small[torch.rand(len(small)) < o.glare] *= 60
        if o.bug == "pairs_lost":
            large = large[torch.randperm(len(large))]
        if o.wrong:
            swap = torch.rand(len(large)) < o.wrong
            large[swap] = large[swap].roll(1, 0) if swap.sum() > 1 else large[swap]
        return small, large * o.unit + o.offset

    model.train()
    kept_batch = None
    for step in range(o.steps):
        if o.bug != "no_zero_grad":
            optimizer.zero_grad()
        for _ in range(o.accumulate):
            small, large = pair(step)
            if o.bug == "cached":
                kept_batch = kept_batch or (small, large)
                small, large = kept_batch
            with torch.autocast("cpu", torch.float16, enabled=o.half):
                answer = model(small)
            loss = loss_fn(answer.float(), large)
            (loss / (1 if o.bug == "not_divided" else o.accumulate)).backward()
        if o.clip:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        optimizer.step()
        scheduler.step()
    run.close()

    model.eval()
    with torch.no_grad():
        small = F.avg_pool2d(held, 2)
        if o.bug == "bytes":
            small = (small * std + mean) * 255
        answer = (model(small) - o.offset) / o.unit
        return ((answer - held).abs().mean() / (held - held.mean()).abs().mean()).item()


PROGRAM = Program(
    name="sharpen",
    half="D",
    train=train,
    settings={
        "width": 16,
        "depth": 2,
        "activation": "relu",
        "skip": False,
        "dropout": 0.0,
        "init": None,
        "bias": None,
        "zero_head": False,
        "frozen": False,
        "pretrained": 0,
        "loss": "l1",
        "weight": 1.0,
        "unit": 1.0,
        "offset": 0.0,
        "glare": 0.0,
        "wrong": 0.0,
        "batch": 16,
        "accumulate": 1,
        "optimizer": "adam",
        "lr": 4e-3,
        "momentum": 0.9,
        "wd": 0.0,
        "eps": 1e-8,
        "clip": None,
        "half": False,
        "warmup": 10,
        "decay": 0.995,
        "linear_to_zero": False,
        "steps": 300,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.16, decay=1.0),
        mild("learning_rate_too_high", lr=0.04, decay=1.0),
        severe("learning_rate_too_low", lr=1.3e-5),
        mild("learning_rate_too_low", lr=1.3e-4),
        severe("schedule_too_fast", decay=0.93, lr=2e-3),
        severe("nothing_moves", ("nothing_moves", "learning_rate_too_low"), bug="integer_warmup"),
        severe("clipping_too_hard", clip=1e-3, optimizer="sgd", lr=0.1),
        mild("clipping_too_hard", clip=0.03, optimizer="sgd", lr=0.1),
        mild("weight_decay_too_high", wd=0.06),
        severe("gradients_not_zeroed", bug="no_zero_grad"),
        severe("parameters_not_optimized", bug="last_only"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="middle_again"),
        severe("graph_detached", bug="no_graph"),
        severe("batch_repeated", bug="cached", batch=2),
        mild("data_not_shuffled", bug="top_to_bottom"),
        severe("inputs_not_scaled", bug="bytes"),
        severe("input_outliers", glare=0.03),
        severe("targets_not_scaled", unit=1000.0, offset=3000.0),
        mild("targets_not_scaled", unit=30.0, offset=100.0),
        severe("labels_random", bug="pairs_lost"),
        mild("label_noise", wrong=0.4),
        severe("loss_sign", bug="similarity"),
        severe("loss_summed", ("loss_summed", "learning_rate_too_high"), bug="summed", optimizer="sgd", lr=0.1),
        severe("output_activation", bug="sigmoid"),
        severe("output_activation_relu", "output_activation", bug="relu"),
        severe("dead_units", bias=-4.0),
        severe("init_constant", init="constant"),
        mild("init_too_large", init=8.0),
        severe("init_too_small", init=0.02, optimizer="sgd", lr=0.1),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), depth=8, activation="sigmoid"),
        severe("half_precision_underflow", half=True, weight=2e-4),
        severe("dropout_too_high", dropout=0.97),
        mild("adam_eps_too_large", eps=0.1),
    ],
    healthy=[
        healthy("lr_15e-4", lr=1.5e-3, steps=400, decay=1.0),
        healthy("lr_1e-2", lr=1e-2),
        healthy("residual_zero_head", skip=True, zero_head=True),
        healthy("kaiming_silu", init="kaiming", activation="silu"),
        healthy("prelu_huber", activation="prelu", loss="huber"),
        healthy("sgd_clipped", optimizer="sgd", lr=0.2, clip=1.0, steps=450),
        healthy("rmsprop", optimizer="rmsprop", lr=1e-3, momentum=0.0, steps=400),
        healthy("nadam_linear_to_zero", optimizer="nadam", linear_to_zero=True, lr=3e-3),
        healthy("adamw_long_warmup", optimizer="adamw", wd=0.05, warmup=100, decay=1.0),
        healthy("from_gray", pretrained=120, lr=2e-3),
        healthy("first_layer_frozen", frozen=True),
        healthy("singles_accumulated", batch=1, accumulate=8),
        healthy("five_layers", depth=3, lr=3e-3),
        healthy("batch_4", batch=4, lr=3e-3, steps=450),
    ],
)
