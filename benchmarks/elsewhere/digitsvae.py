"""A denoising variational autoencoder of scikit-learn's digits: reconstruction plus KL written by hand, Adam, no validation."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, digits, healthy, make_optimizer, mild, severe

PIXELS = 64


def mlp(sizes: list[int], o: SimpleNamespace) -> nn.Sequential:
    act = {
        "relu": nn.ReLU,
        "elu": nn.ELU,
        "tanh": nn.Tanh,
        "sigmoid": nn.Sigmoid,
        "leaky": nn.LeakyReLU,
        "none": nn.Identity,
    }[o.act]
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers.append(nn.Linear(a, b))
        if o.norm == "batch":
            layers.append(nn.BatchNorm1d(b))
        elif o.norm == "layer":
            layers.append(nn.LayerNorm(b))
        layers += [act(), nn.Dropout(o.dropout)]
    return nn.Sequential(*layers)


class VAE(nn.Module):
    def __init__(self, o: SimpleNamespace):
        super().__init__()
        self.encoder = mlp([PIXELS] + [o.width] * o.depth, o)
        self.mu, self.logvar = nn.Linear(o.width, o.latent), nn.Linear(o.width, o.latent)
        self.decoder = nn.Sequential(mlp([o.latent] + [o.width] * o.depth, o), nn.Linear(o.width, PIXELS))
        self.o = o
        with torch.no_grad():
            for m in self.modules():
                if isinstance(m, nn.Linear):
                    if o.xavier:
                        nn.init.xavier_uniform_(m.weight)
                        nn.init.zeros_(m.bias)
                    m.weight.mul_(o.gain)
                    if o.gain == 0:
                        m.bias.zero_()
            for part in (self.encoder, self.decoder[0]):
                for m in part:
                    if isinstance(m, nn.Linear) and o.bias:
                        m.bias.fill_(o.bias)
            if o.zero_head:
                self.decoder[1].weight.zero_()
                self.decoder[1].bias.zero_()

    def forward(self, x):
        o = self.o
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        if o.bug == "sampled_without_gradient":
            with torch.no_grad():
                z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        elif self.training and o.sample:
            z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        else:
            z = mu
        out = self.decoder(z)
        if o.last == "sigmoid":
            out = out.sigmoid()
        elif o.last == "steep":
            out = out * 5
        elif o.last == "relu":
            out = out.relu()
        elif o.last == "softmax0":
            out = out.softmax(0)
        return out, mu, logvar


def elbo(o: SimpleNamespace, out, image, mu, logvar):
    if o.loss == "bce":
        fit = F.binary_cross_entropy_with_logits(out, image, reduction="none").sum(-1)
    elif o.loss == "log":  # by hand, the logarithm of what is nearly 0 or 1
        p = (out * 12).sigmoid()
        fit = -(image * p.log() + (1 - image) * (1 - p).log()).sum(-1)
    elif o.loss == "l1":
        fit = 4 * (out - image).abs().sum(-1)
    elif o.loss == "gauss":  # a likelihood with a spread of 0.2: its negative logarithm falls below zero
        fit = (0.5 * ((out - image) / 0.2) ** 2 + math.log(0.2) + 0.5 * math.log(2 * math.pi)).sum(-1)
    else:
        fit = 12 * ((out - image) ** 2).sum(-1)
    divergence = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(-1)
    loss = fit.mean() + o.beta * divergence.mean()
    return loss * len(mu) if o.bug == "summed" else loss


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    images, labels, images_val, _ = digits(seed)
    image = images.reshape(-1, PIXELS) / 16
    image_val = images_val.reshape(-1, PIXELS) / 16
    noise = torch.Generator().manual_seed(9)
    scan = image + o.grain * torch.randn(image.shape, generator=noise)
    scan_val = image_val + o.grain * torch.randn(image_val.shape, generator=noise)
    scan, scan_val = scan * o.scale, scan_val * o.scale
    wanted = image * o.target + o.offset

    if o.bug == "upper_half_missing":
        scan, scan_val = scan.clone(), scan_val.clone()
        scan[:, :32] = scan_val[:, :32] = 0
    if o.bug == "other_pictures":
        wanted = wanted[torch.randperm(len(wanted))]
    if o.wrong:
        mixed = (torch.rand(len(wanted)) < o.wrong).nonzero()[:, 0]
        wanted = wanted.clone()
        wanted[mixed] = wanted[mixed[torch.randperm(len(mixed))]]
    if o.outliers:
        scan = torch.where(torch.rand(scan.shape) < o.outliers, scan * 0 + o.outlier_size, scan)
    if o.bug == "by_digit":
        order = labels.argsort()
        scan, wanted = scan[order], wanted[order]
    scan, wanted = scan[: o.rows], wanted[: o.rows]

    model = VAE(o)
    params = list(model.parameters())
    if o.bug == "decoder_only":
        params = list(model.decoder.parameters())
    if o.freeze:
        model.encoder[0].requires_grad_(False)
        params = [p for p in params if p.requires_grad]
    if o.bug == "half":
        model.half()
        scan, wanted = scan.half(), wanted.half()
    optimizer = make_optimizer(o.optimizer, params, o.lr, weight_decay=o.wd, momentum=o.momentum, eps=o.eps)

    def rate(step: int) -> float:
        if o.schedule == "cosine":
            return 0.5 + 0.5 * math.cos(math.pi * min(1, step / o.steps))
        if o.schedule == "drop":
            return 0.2 if step > 0.75 * o.steps else 1.0
        return o.gamma**step * min(1.0, (step + 1) / max(o.warmup, 1))

    def pictures():
        while True:
            order = torch.randperm(len(scan)) if o.bug != "by_digit" else torch.arange(len(scan))
            for rows in order.split(min(o.batch, len(scan))):
                if len(rows) == min(o.batch, len(scan)):
                    yield rows

    def loss_of(rows):
        x, goal = scan[rows], wanted[rows]
        if o.bug == "wrong_reshape":
            x = x.reshape(PIXELS, -1).t()
        out, mu, logvar = model(x)
        if o.bug == "extra_axis":
            goal = goal[:, None]
        return elbo(o, out, goal, mu, logvar)

    stream = pictures()
    for _ in range(o.before):  # training that was interrupted; it goes on below with the same optimizer
        optimizer.zero_grad()
        loss_of(next(stream)).backward()
        optimizer.step()
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    run = cockpit_core.track(model, optimizer=optimizer, logdir=logdir)
    model.train()
    fixed = next(stream)
    for _ in range(o.steps):
        if o.bug != "accumulating":
            optimizer.zero_grad()
        for _ in range(o.accumulate):
            loss = loss_of(fixed if o.bug == "same_pictures" else next(stream))
            if o.bug == "elbo_not_negated":
                loss = -loss
            (loss / o.accumulate).backward()
        if o.clip:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        optimizer.step()
        scheduler.step()
    run.close()

    model.float().eval()
    with torch.no_grad():
        out = model(scan_val)[0]
        out = (
            out.sigmoid()
            if o.loss == "bce"
            else (out * 12).sigmoid()
            if o.loss == "log"
            else (out - o.offset) / o.target
        )
        return ((out - image_val) ** 2).sum().item() / ((image_val - image.mean(0)) ** 2).sum().item()


PROGRAM = Program(
    name="digitsvae",
    half="G",
    train=train,
    settings={
        "width": 96,
        "depth": 1,
        "latent": 16,
        "act": "relu",
        "norm": None,
        "dropout": 0.0,
        "last": "none",
        "sample": True,
        "xavier": False,
        "gain": 1.0,
        "bias": 0.0,
        "zero_head": False,
        "freeze": False,
        "loss": "bce",
        "beta": 0.1,
        "grain": 0.15,
        "scale": 1.0,
        "target": 1.0,
        "offset": 0.0,
        "rows": 1347,
        "wrong": 0.0,
        "outliers": 0.0,
        "outlier_size": 60.0,
        "batch": 64,
        "accumulate": 1,
        "optimizer": "adam",
        "lr": 6e-3,
        "momentum": 0.9,
        "wd": 0.0,
        "eps": 1e-8,
        "schedule": "cosine",
        "warmup": 0,
        "gamma": 1.0,
        "clip": None,
        "before": 0,
        "steps": 450,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.24),
        mild("learning_rate_too_high", lr=0.035),
        mild("learning_rate_too_low", lr=6e-4),
        severe("schedule_too_fast", ("schedule_too_fast", "learning_rate_too_low"), gamma=0.95, schedule="none"),
        severe("clipping_too_hard", clip=1e-3, optimizer="sgd", lr=0.01),
        mild("batch_too_small", ("batch_too_small", "learning_rate_too_high"), batch=2, lr=8e-3),
        severe("gradients_not_zeroed", bug="accumulating"),
        severe("parameters_not_optimized", bug="decoder_only"),
        severe("graph_detached", bug="sampled_without_gradient"),
        mild("data_not_shuffled", bug="by_digit"),
        severe("inputs_not_scaled", scale=255.0),
        mild("inputs_not_scaled", scale=64.0),
        mild("input_outliers", outliers=0.01, outlier_size=15.0),
        severe("targets_not_scaled", loss="mse", target=1000.0, offset=3000.0),
        severe("labels_random", bug="other_pictures"),
        mild("label_noise", wrong=0.4),
        severe("loss_sign", bug="elbo_not_negated"),
        severe("loss_summed", bug="summed", optimizer="sgd", lr=0.01),
        severe("loss_broadcast", loss="mse", bug="extra_axis"),
        severe("not_finite", loss="log", last="steep"),
        severe("half_precision_underflow", ("half_precision_underflow", "not_finite"), bug="half"),
        severe("dead_units", bias=-4.0),
        severe("init_constant", gain=0.0),
        severe("init_too_large", gain=8.0),
        severe("init_too_small", ("init_too_small", "vanishing_gradients"), gain=0.02, optimizer="sgd", lr=0.01),
        severe("vanishing_gradients", depth=5, act="sigmoid"),
        mild("dropout_too_high", dropout=0.7),
        severe("output_activation", last="sigmoid"),
        severe("samples_mixed", bug="wrong_reshape"),
        mild("constant_feature", bug="upper_half_missing"),
    ],
    healthy=[
        healthy("sgd_momentum", optimizer="sgd", lr=0.02),
        healthy("adamw", optimizer="adamw", wd=0.05),
        healthy("rmsprop", optimizer="rmsprop", lr=1.5e-3, momentum=0.0),
        healthy("nadam", optimizer="nadam", lr=3e-3),
        healthy("adagrad", optimizer="adagrad", lr=0.05, schedule="none"),
        healthy("faster", lr=0.01),
        healthy("slower", lr=2e-3, schedule="none"),
        healthy("warmup", warmup=40, schedule="none"),
        healthy("batch_128", batch=128, lr=6e-3),
        healthy("batch_32", batch=32, lr=4e-3, schedule="drop"),
        healthy("one_by_one", batch=1, accumulate=16, steps=250, lr=5e-3, schedule="drop"),
        healthy("full_batch", batch=1347, lr=8e-3),
        healthy("wider", width=160),
        healthy("deeper", depth=2, norm="layer", schedule="drop"),
        healthy("elu_xavier", act="elu", xavier=True),
        healthy("tanh", act="tanh"),
        healthy("layernorm", norm="layer"),
        healthy("gaussian", loss="gauss"),
        healthy("squared_error", loss="mse"),
        healthy("absolute_error", loss="l1"),
        healthy("zero_head", zero_head=True),
        healthy("plain_autoencoder", sample=False, beta=0.0),
    ],
)
