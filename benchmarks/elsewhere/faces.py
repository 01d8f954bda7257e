"""Drawn faces of 16 x 16 pixels through a narrow code and back: a convolutional autoencoder (or VAE), losses as
functions, Adam."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

SIDE = 16


def blob(cx, cy, rx, ry, sharp=6.0):
    """Soft ellipses, one per row of the arguments."""
    axis = torch.arange(SIDE) + 0.5
    dx = (axis[None, None, :] - cx[:, None, None]) / rx[:, None, None]
    dy = (axis[None, :, None] - cy[:, None, None]) / ry[:, None, None]
    return torch.sigmoid(sharp * (1 - dx**2 - dy**2))


def draw_faces(count, seed):
    """Grey faces with two eyes, a nose and a mouth that smiles or not; values of a 16-bit camera."""
    g = torch.Generator().manual_seed(seed)

    def between(low, high):
        return low + (high - low) * torch.rand(count, generator=g)

    cx, cy = between(7.2, 8.8), between(7.5, 8.5)
    rx, ry = between(4.2, 6.0), between(5.5, 6.8)
    skin, dark = between(0.5, 0.95), between(0.6, 1.0)
    gap, open_ = between(1.5, 2.8), between(0.5, 1.2)
    image = skin[:, None, None] * blob(cx, cy, rx, ry)
    for side in (-1, 1):
        image = image * (1 - dark[:, None, None] * blob(cx + side * gap, cy - 1.8, 0.9 + 0 * open_, open_, 3.0))
    smile, width = between(-0.22, 0.22), between(1.8, 3.2)
    axis = torch.arange(SIDE) + 0.5
    dx = axis[None, None, :] - cx[:, None, None]
    curve = (cy + 3.0)[:, None, None] - smile[:, None, None] * dx**2
    mouth = torch.exp(-((axis[None, :, None] - curve) ** 2) / 0.6) * torch.sigmoid(
        4 * (width[:, None, None] - dx.abs())
    )
    image = (image * (1 - 0.8 * mouth)).clamp(0, 1)
    image = (image + 0.02 * torch.randn(count, SIDE, SIDE, generator=g)).clamp(0, 1)
    return 65535 * image[:, None]


def nonlinearity(name):
    return {"relu": nn.ReLU, "elu": nn.ELU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "none": nn.Identity}[name]()


def make_encoder(o):
    parts, channels = [], 1
    for n in (o.channels, 2 * o.channels):
        parts += [nn.Conv2d(channels, n, 3, stride=2, padding=1)]
        if o.norm:
            parts += [nn.BatchNorm2d(n, momentum=o.norm_momentum)]
        parts += [nonlinearity(o.act)]
        channels = n
    parts += [nn.Flatten()]
    size = channels * 16
    for _ in range(o.extra):
        parts += [nn.Linear(size, 64), nonlinearity(o.extra_act)]
        size = 64
    if o.drop:
        parts += [nn.Dropout(o.drop)]
    return nn.Sequential(*parts, nn.Linear(size, o.code * (1 + o.vae)))


def make_decoder(o):
    n = 2 * o.channels
    parts = [nn.Linear(o.code, n * 16), nonlinearity(o.act), nn.Unflatten(1, (n, 4, 4))]
    parts += [nn.ConvTranspose2d(n, o.channels, 4, stride=2, padding=1)]
    if o.norm:
        parts += [nn.BatchNorm2d(o.channels, momentum=o.norm_momentum)]
    parts += [nonlinearity(o.act), nn.ConvTranspose2d(o.channels, 1, 4, stride=2, padding=1)]
    if o.out == "sigmoid":
        parts += [nn.Sigmoid()]
    elif o.out == "sigmoid_twice":
        parts += [nn.Sigmoid(), nn.Sigmoid()]
    return nn.Sequential(*parts)


class Autoencoder(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.encoder, self.decoder = make_encoder(o), make_decoder(o)
        self.vae, self.detach = o.vae, o.bug == "detached"

    def forward(self, x):
        code = self.encoder(x)
        self.kl = torch.zeros(())
        if self.vae:
            mean, log_var = code.chunk(2, 1)
            self.kl = 0.5 * (mean**2 + log_var.exp() - 1 - log_var).sum(1).mean()
            code = mean + torch.randn_like(mean) * (0.5 * log_var).exp() if self.training else mean
        if self.detach:
            code = code.detach()
        return self.decoder(code)


def initialise(model, o):
    layers = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d, nn.ConvTranspose2d))]
    for m in layers:
        if o.init == "kaiming":
            nn.init.kaiming_uniform_(m.weight, nonlinearity="relu")
            nn.init.zeros_(m.bias)
        m.weight.data *= o.gain
        if o.bias is not None and m is not layers[-1]:
            nn.init.constant_(m.bias, o.bias)
    if o.zero_head:
        nn.init.zeros_(layers[-1].weight)


def reconstruction(out, target, o):
    if o.loss == "bce":
        return F.binary_cross_entropy(out, target, reduction=o.reduction)
    if o.loss == "logits":
        return F.binary_cross_entropy_with_logits(out, target, reduction=o.reduction)
    if o.loss == "by_hand":  # without anything that keeps the logarithm from 0
        return -(target * out.log() + (1 - target) * (1 - out).log()).mean()
    if o.loss == "l1":
        return F.smooth_l1_loss(out, target, beta=0.1)
    return F.mse_loss(out, target, reduction=o.reduction)


def prepare(raw, o):
    """What the model sees, and what it should give back."""
    target = raw if o.bug == "targets_raw" else raw / 65535
    if o.scaling == "raw":
        return raw, target
    if o.scaling == "per_pixel":  # corners may never change
        return (target - target.mean(0)) / target.std(0), target
    if o.scaling == "centred":
        return (target - 0.3) / 0.3, target
    return raw / 65535, target


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    raw, raw_valid = draw_faces(o.rows, 81), draw_faces(400, 82)
    if o.bug == "no_noise_at_border":  # a frame without any noise
        raw, raw_valid = raw.clone(), raw_valid.clone()
        for images in (raw, raw_valid):
            images[:, :, 0], images[:, :, -1] = 0, 0
    x, target = prepare(raw, o)
    x_valid, target_valid = prepare(raw_valid, o)
    if o.hot:  # hot pixels of a broken camera, in what goes in
        x = torch.where(torch.rand_like(x) < o.hot, o.hot_size * torch.ones_like(x), x)
    if o.bug == "axes_mixed":  # the file holds [height, width, number]
        x = x.permute(2, 3, 1, 0).reshape(len(x), 1, SIDE, SIDE)
    if o.bug == "sorted":
        order = x.mean((1, 2, 3)).argsort()
        x, target = x[order], target[order]

    model = Autoencoder(o)
    initialise(model, o)
    if o.pretrain:
        first = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(o.pretrain):
            pick = torch.randint(0, len(x), (32,))
            first.zero_grad()
            reconstruction(model(x[pick]), target[pick], o).backward()
            first.step()
    if o.freeze:
        model.encoder[0].requires_grad_(False)
    params = [p for p in model.parameters() if p.requires_grad]
    if o.bug == "decoder_only":
        params = list(model.decoder[-2:].parameters())
    optimizer = make_optimizer(
        o.optimizer, params, o.lr, weight_decay=o.decay, momentum=o.momentum, nesterov=o.nesterov, eps=o.eps
    )
    if o.schedule == "cosine":
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, o.steps)
    elif o.schedule == "one_cycle":
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, o.lr, total_steps=o.steps + 1)
    else:
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, o.gamma)
    run = cockpit_core.track(model, optimizer=optimizer, logdir=logdir)

    def pick_batches():
        while True:
            order = torch.arange(len(x)) if o.bug == "sorted" else torch.randperm(len(x))
            yield from (part for part in order.split(o.batch) if len(part) == o.batch)

    batches = pick_batches()
    pick = next(batches)
    model.train(o.bug != "eval_left_on")
    for _ in range(o.steps):
        if o.bug != "same_batch":
            pick = next(batches)
        if o.bug != "never_zeroed":
            optimizer.zero_grad()
        seen = x[pick] + o.denoise * torch.randn_like(x[pick]) if o.denoise else x[pick]
        out = model(seen)
        loss = reconstruction(out, target[pick], o) + o.beta * model.kl
        if o.bug == "sign":
            loss = -loss
        loss.backward()
        if o.clip:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        optimizer.step()
        scheduler.step()
    run.close()

    model.eval()
    with torch.no_grad():
        out = model(x_valid)
    if o.loss == "logits":
        out = out.sigmoid()
    if o.bug == "targets_raw":
        out, target_valid = out / 65535, target_valid / 65535
    error = F.mse_loss(out, target_valid) / F.mse_loss(
        raw_valid / 65535, (raw / 65535).mean(0, keepdim=True).expand_as(out)
    )
    return error.item() if torch.isfinite(error) else math.inf


PROGRAM = Program(
    name="faces",
    half="K",
    train=train,
    settings={
        "rows": 1200,
        "scaling": "unit",
        "hot": 0.0,
        "hot_size": 60.0,
        "denoise": 0.0,
        "channels": 12,
        "code": 12,
        "act": "relu",
        "extra": 0,
        "extra_act": "relu",
        "norm": False,
        "norm_momentum": 0.1,
        "drop": 0.0,
        "vae": False,
        "beta": 0.0,
        "out": "sigmoid",
        "init": None,
        "gain": 1.0,
        "bias": None,
        "zero_head": False,
        "pretrain": 0,
        "freeze": False,
        "loss": "mse",
        "reduction": "mean",
        "optimizer": "adam",
        "lr": 4e-3,
        "momentum": 0.9,
        "nesterov": False,
        "eps": 1e-8,
        "decay": 0.0,
        "schedule": None,
        "gamma": 1.0,
        "clip": None,
        "batch": 32,
        "steps": 450,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.16),
        mild("learning_rate_too_high", lr=0.05),
        severe("learning_rate_too_low", lr=1.3e-5),
        mild("learning_rate_too_low", lr=1.3e-4),
        severe("schedule_too_fast", gamma=0.95),
        severe("weight_decay_too_high", decay=0.3),
        severe("clipping_too_hard", optimizer="sgd", lr=1.5, clip=1e-3),
        mild("batch_too_small", ("batch_too_small", "learning_rate_too_high"), batch=2),
        severe("adam_eps_too_large", eps=0.1),
        mild("adam_eps_too_large", eps=1e-2),
        severe("gradients_not_zeroed", bug="never_zeroed"),
        severe("parameters_not_optimized", bug="decoder_only"),
        mild("graph_detached", bug="detached"),
        mild("batch_repeated", bug="same_batch"),
        mild("data_not_shuffled", bug="sorted"),
        severe("inputs_not_scaled", scaling="raw"),
        mild("input_outliers", hot=0.02, hot_size=20.0),
        severe("targets_not_scaled", ("targets_not_scaled", "output_activation"), bug="targets_raw"),
        severe("samples_mixed", ("samples_mixed", "labels_random"), bug="axes_mixed"),
        severe("loss_sign", bug="sign"),
        severe("loss_summed", optimizer="sgd", lr=1.5, reduction="sum"),
        severe("output_activation", ("output_activation", "double_softmax"), out="sigmoid_twice"),
        severe("dead_units", bias=-4.0),
        mild("dead_units", init="kaiming", bias=-1.5),
        severe("init_too_large", gain=8.0),
        severe("init_too_small", gain=0.02),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), extra=6, extra_act="sigmoid"),
        severe("not_finite", ("not_finite", "constant_feature"), scaling="per_pixel", bug="no_noise_at_border"),
        severe("log_of_zero", ("not_finite", "output_activation"), loss="by_hand", out=None),
        severe("batchnorm_few_samples", ("batchnorm_few_samples", "batch_too_small"), norm=True, batch=2),
        mild("batchnorm_momentum", norm=True, norm_momentum=1.0, batch=3),
        severe("eval_mode", ("eval_mode", "inputs_not_scaled"), norm=True, scaling="raw", bug="eval_left_on"),
    ],
    healthy=[
        healthy("bce", loss="bce"),
        healthy("logits", loss="logits", out=None),
        healthy("linear_end", out=None),
        healthy("l1", loss="l1"),
        healthy("vae", vae=True, beta=1e-4),
        healthy("adamw", optimizer="adamw", decay=0.01),
        healthy("sgd_batchnorm", optimizer="sgd", lr=0.5, nesterov=True, norm=True),
        healthy("rate_halved", lr=2e-3),
        healthy("rate_doubled", lr=8e-3),
        healthy("cosine", schedule="cosine", lr=6e-3),
        healthy("one_cycle", schedule="one_cycle", lr=1e-2),
        healthy("clip_1", clip=1.0),
        healthy("elu", act="elu"),
        healthy("batchnorm", norm=True),
        healthy("wide", channels=24, lr=3e-3),
        healthy("denoising", denoise=0.1),
        healthy("centred", scaling="centred"),
        healthy("kaiming", init="kaiming"),
        healthy("zero_head", zero_head=True),
        healthy("fine_tuning", pretrain=200, lr=2e-3, steps=300),
        healthy("frozen_first", freeze=True, channels=16),
        healthy("batch_96", batch=96, lr=6e-3, steps=300),
    ],
)
