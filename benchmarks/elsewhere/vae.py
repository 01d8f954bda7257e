"""A variational autoencoder of handwritten digits: the model returns its own loss parts, beta rises slowly, nothing logged."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import cockpit_core

from .harness import Program, digits, healthy, make_optimizer, mild, severe


class VAE(nn.Module):
    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        act = {"relu": nn.ReLU, "tanh": nn.Tanh, "silu": nn.SiLU}[o.activation]

        def stack(sizes: list[int]) -> list[nn.Module]:
            return [m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b), act(), nn.Dropout(o.dropout))]

        self.encode = nn.Sequential(nn.Flatten(), *stack([64] + [o.width] * o.depth))
        self.mu, self.logvar = nn.Linear(o.width, o.latent), nn.Linear(o.width, o.latent)
        self.decode = nn.Sequential(*stack([o.latent] + [o.width] * o.depth), nn.Linear(o.width, 64))

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        h = self.encode(images)
        mu, logvar = self.mu(h), self.logvar(h)
        spread = torch.exp(0.5 * logvar) if self.o.bug != "variance_root" else logvar.sqrt()
        z = mu + spread * torch.randn_like(mu) if self.training else mu
        if self.o.bug == "latent_detached":  # sampled under no_grad, as torch.normal does
            z = z.detach()
        out = self.decode(z)
        return torch.sigmoid(out) if self.o.bug == "sigmoid_twice" else out, mu, logvar


def objective(
    out: torch.Tensor, mu: torch.Tensor, logvar: torch.Tensor, images: torch.Tensor, beta: float, o: SimpleNamespace
) -> torch.Tensor:
    pixels = F.binary_cross_entropy_with_logits(out, images.flatten(1), reduction="none").sum(1)
    kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1)
    total = pixels + beta * kl
    if o.bug == "maximised":  # "maximise the bound", given to a minimiser
        return -total.mean()
    return total.sum() if o.bug == "summed" else total.mean() / o.divide


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, _, xv, _ = digits(seed, o.count)
    x, xv = x / 16, xv / 16
    inputs, targets = x, x
    if o.bug == "targets_permuted":  # inputs and targets came from two shuffled loaders
        targets = x[torch.randperm(len(x))]
    if o.bug == "bytes":
        inputs = x * 255
    if o.bug == "targets_0_16":
        targets = x * 16
    loader = DataLoader(list(zip(inputs, targets, strict=True)), batch_size=o.batch, shuffle=True, drop_last=True)
    model = VAE(o)
    for module in model.modules():
        if isinstance(module, nn.Linear) and o.init is not None:
            nn.init.normal_(module.weight, std=o.init) if o.init > 0 else nn.init.constant_(module.weight, 0.02)
        if isinstance(module, nn.Linear) and module.out_features == o.width and o.bias is not None:
            nn.init.constant_(module.bias, o.bias)
    held = list(model.decode.parameters()) if o.bug == "decoder_only" else list(model.parameters())
    optimizer = make_optimizer(o.optimizer, held, o.lr, weight_decay=o.wd, eps=o.eps, momentum=0.9)
    run = cockpit_core.track(model, optimizer=optimizer, logdir=logdir)

    step = 0
    while step < o.steps:
        for images, wanted in loader:
            if step == o.steps:
                break
            for group in optimizer.param_groups:
                group["lr"] = o.lr * o.fade**step
            beta = o.beta * min(1.0, (step + 1) / o.rise)
            out, mu, logvar = model(images)
            loss = objective(out, mu, logvar, wanted, beta, o)
            optimizer.zero_grad()
            loss.backward()
            if o.clip:
                nn.utils.clip_grad_norm_(model.parameters(), o.clip)
            optimizer.step()
            step += 1
    run.close()
    model.eval()
    with torch.no_grad():
        out = model(xv * 255 if o.bug == "bytes" else xv)[0]
        guess = out if o.bug == "sigmoid_twice" else out.sigmoid()
        flat = xv.flatten(1)
        return (((guess - flat) ** 2).mean() / ((flat.mean(0) - flat) ** 2).mean()).item()


PROGRAM = Program(
    name="vae",
    half="B",
    train=train,
    settings={
        "width": 64,
        "depth": 1,
        "latent": 8,
        "activation": "relu",
        "dropout": 0.0,
        "init": None,
        "bias": None,
        "beta": 0.2,
        "rise": 100,
        "divide": 1.0,
        "count": 1347,
        "batch": 64,
        "optimizer": "adam",
        "lr": 3e-3,
        "wd": 0.0,
        "eps": 1e-8,
        "fade": 1.0,
        "steps": 500,
        "clip": None,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.5),
        mild("learning_rate_too_low", lr=1e-4),
        severe("schedule_too_fast", fade=0.9),
        severe("loss_sign", bug="maximised"),
        severe("loss_summed", ("loss_summed", "learning_rate_too_high"), bug="summed", optimizer="sgd", lr=3e-3),
        severe("inputs_not_scaled", bug="bytes"),
        severe("targets_not_scaled", bug="targets_0_16"),
        severe("labels_random", bug="targets_permuted"),
        severe("graph_detached", bug="latent_detached"),
        severe("double_softmax", ("double_softmax", "output_activation"), bug="sigmoid_twice"),
        severe("parameters_not_optimized", bug="decoder_only"),
        severe("not_finite", bug="variance_root"),
        severe("dead_units", bias=-6.0),
        severe("init_constant", init=-1.0),
        severe("dropout_too_high", dropout=0.95),
        mild("overfitting", count=64, steps=800),
    ],
    healthy=[
        healthy("lr_15e-4", lr=1.5e-3, steps=700),
        healthy("lr_6e-3", lr=6e-3),
        healthy("sgd", optimizer="sgd", lr=0.01, clip=5.0, steps=700),
        healthy("batch_32", batch=32, lr=2e-3, steps=700),
        healthy("batch_256", batch=256, lr=6e-3),
        healthy("tanh", activation="tanh"),
        healthy("silu_two_layers", activation="silu", depth=2),
        healthy("mean_over_pixels", divide=64.0),
        healthy("latent_16", latent=16, width=96),
        healthy("small_decay", optimizer="adamw", wd=0.01),
        healthy("slow_beta", rise=300, fade=0.998, lr=4e-3),
    ],
)
