"""Removing noise from digits: an autoencoder with a tied decoder, Adam, an average of the weights, nothing logged."""

from __future__ import annotations

import copy
import itertools
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, digits, healthy, make_optimizer, mild, severe


class Autoencoder(nn.Module):
    """Encoder 64-96-32; the decoder uses the same matrices, transposed."""

    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        sizes = [64, o.width, *[o.width] * o.more, o.code]
        self.encoder = nn.ModuleList([nn.Linear(a, b) for a, b in itertools.pairwise(sizes)])
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(layer.in_features)) for layer in self.encoder])
        if not o.tied or o.bug == "decoder_copied":
            self.decoder = nn.ParameterList([nn.Parameter(layer.weight.detach().clone()) for layer in self.encoder])
        if o.bug == "decoder_frozen_copy":
            self.copies = [layer.weight.detach().clone() for layer in self.encoder]
        self.drop = nn.Dropout(o.dropout)
        for layer in self.encoder:
            if o.gain is not None:
                layer.weight.data.mul_(o.gain)
            if o.bias is not None:
                nn.init.constant_(layer.bias, o.bias)
            if o.bug == "constant":
                nn.init.constant_(layer.weight, 0.05)

    def act(self, x: torch.Tensor) -> torch.Tensor:
        return {"relu": F.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "none": nn.Identity(), "elu": F.elu}[
            self.o.activation
        ](x)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        h = images.flatten(1)
        for layer in self.encoder:
            h = self.drop(self.act(layer(h)))
        if self.o.bug == "code_detached":
            h = h.detach()
        matrices = [layer.weight for layer in self.encoder]
        if self.o.bug == "decoder_frozen_copy":
            matrices = self.copies
        elif hasattr(self, "decoder"):
            matrices = list(self.decoder)
        for n in reversed(range(len(matrices))):
            h = F.linear(h, matrices[n].t(), self.biases[n])
            if n:
                h = self.act(h)
        if self.o.bug == "tanh_out":
            h = torch.tanh(h) * 0.5
        if self.o.bug == "relu_out":
            h = F.relu(h)
        return h.view(-1, 1, 8, 8)


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, y, x_valid, _ = digits(seed)
    if o.bug == "sorted":
        x = x[y.argsort()]
    rng = torch.Generator().manual_seed(9)
    x_valid = (x_valid[:, None] - 4.9) / 6
    noisy_valid = x_valid + o.sigma * torch.randn(x_valid.shape, generator=rng)
    clean = ((x - 4.9) / 6)[:, None]
    scale, shift = 1.0, 0.0  # of what the network sees, and of what it should answer
    if o.bug == "bytes":
        scale, shift = 96.0, 78.0
    target_scale, target_shift = 1.0, 0.0
    if o.bug == "target_bytes":
        target_scale, target_shift = 96.0, 78.0
    if o.bug == "target_16":
        target_scale, target_shift = 6.0, 4.9
    partner = torch.randperm(len(clean)) if o.bug == "pairs_lost" else torch.arange(len(clean))
    clean, partner = clean[: o.count], partner[: o.count]

    model = Autoencoder(o)
    params = list(model.parameters())
    if o.bug == "decoder_biases_only":
        params = list(model.biases.parameters())
    if o.freeze:
        model.encoder[0].requires_grad_(False)
        params = [p for p in params if p.requires_grad]
    optimizer = make_optimizer(o.optimizer, params, o.lr, momentum=0.9, weight_decay=o.wd, eps=o.eps)
    if o.bug == "moved_by_copy":
        model.encoder = copy.deepcopy(model.encoder)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: o.decay**n)
    run = cockpit_core.track(model, optimizer=optimizer, logdir=logdir)
    average = copy.deepcopy(model)

    def objective(images: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.float16, enabled=o.half):
            out = model(images * scale + shift)
        out = out.float() if o.half else out
        wanted = wanted * target_scale + target_shift
        if o.bug == "channel_lost":
            wanted = wanted.squeeze(1)
        if o.bug == "summed":
            return F.mse_loss(out, wanted, reduction="sum")
        if o.bug == "mean_of_everything":  # the mean, and then once more by pixels and samples
            return F.mse_loss(out, wanted) / wanted.numel() / 64
        if o.bug == "similarity":
            return -F.mse_loss(out, wanted)
        if o.bug == "log_of_pixels":
            return (out.clamp(min=0).log() - (wanted + 0.82).clamp(min=0).log()).abs().mean()
        return {"mse": F.mse_loss, "l1": F.l1_loss, "huber": F.smooth_l1_loss}[o.loss](out, wanted)

    order, place = torch.randperm(len(clean)), 0
    for step in range(o.steps):
        if place + o.batch > len(clean):
            order, place = torch.randperm(len(clean)), 0
        ids = order[place : place + o.batch] if o.bug not in ("sorted",) else torch.arange(place, place + o.batch)
        if o.bug == "overfit_test_left_in":
            ids = torch.arange(o.batch)
        place += o.batch
        noisy = clean[ids] + o.sigma * torch.randn(clean[ids].shape)
        if o.bug == "noise_after":  # added to a copy that nobody reads
            noisy = clean[ids]
        if o.outliers:
            wild = torch.rand(len(noisy)) < o.outliers
            noisy[wild] *= o.outlier_size
        loss = objective(noisy, clean[partner[ids]])
        if o.bug != "no_zero_grad":
            optimizer.zero_grad()
        loss.backward()
        if o.clip:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        optimizer.step()
        scheduler.step()
        with torch.no_grad():
            keep = min(o.ema, (step + 1) / (step + 10))
            for mean, p in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(p, 1 - keep)
    run.close()
    average.eval()
    with torch.no_grad():
        if o.bug == "decoder_frozen_copy":
            average.copies = model.copies
        answer = (average(noisy_valid * scale + shift) - target_shift) / target_scale
    return ((answer - x_valid).pow(2).mean() / (x_valid - x_valid.mean(0)).pow(2).mean()).item()


PROGRAM = Program(
    name="denoise",
    half="C",
    train=train,
    settings={
        "width": 96,
        "more": 0,
        "code": 32,
        "tied": True,
        "activation": "relu",
        "dropout": 0.0,
        "gain": None,
        "bias": None,
        "freeze": False,
        "sigma": 0.5,
        "count": 1347,
        "outliers": 0.0,
        "outlier_size": 1.0,
        "loss": "mse",
        "batch": 32,
        "optimizer": "adam",
        "lr": 3e-3,
        "wd": 0.0,
        "eps": 1e-8,
        "decay": 0.995,
        "steps": 420,
        "clip": None,
        "ema": 0.97,
        "half": False,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.12, decay=1.0),
        mild("learning_rate_too_high", lr=0.03, decay=1.0),
        severe("learning_rate_too_low", lr=1e-5),
        mild("learning_rate_too_low", lr=1e-4),
        severe("schedule_too_fast", decay=0.93),
        severe("clipping_too_hard", clip=1e-3, optimizer="sgd", lr=0.1),
        severe("weight_decay_too_high", wd=0.1),
        severe("batch_too_large", ("batch_too_large", "learning_rate_too_low"), batch=1347, steps=20),
        mild("batch_too_small", batch=2),
        severe("gradients_not_zeroed", bug="no_zero_grad"),
        severe("parameters_not_optimized", bug="decoder_biases_only"),
        severe(
            "optimizer_holds_others",
            ("optimizer_holds_others", "parameters_not_optimized"),
            bug="moved_by_copy",
        ),
        mild("graph_detached", bug="code_detached", tied=False),
        severe("batch_repeated", bug="overfit_test_left_in"),
        severe("data_not_shuffled", bug="sorted"),
        severe("inputs_not_scaled", bug="bytes"),
        severe("input_outliers", outliers=0.03, outlier_size=60.0),
        mild("input_outliers", outliers=0.01, outlier_size=15.0),
        severe("targets_not_scaled", bug="target_bytes"),
        mild("targets_not_scaled", bug="target_16"),
        severe("labels_random", bug="pairs_lost"),
        severe("loss_sign", bug="similarity"),
        severe("loss_summed", ("loss_summed", "learning_rate_too_high"), bug="summed", optimizer="sgd", lr=0.1),
        severe("loss_broadcast", bug="channel_lost"),
        severe("output_activation", bug="tanh_out"),
        mild("output_activation", bug="relu_out"),
        severe("dead_units", bias=-4.0),
        severe("init_constant", bug="constant"),
        severe("init_too_large", gain=8.0),
        severe("init_too_small", gain=0.02),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), more=6, activation="sigmoid"),
        severe("dropout_too_high", dropout=0.9),
        mild("missing_nonlinearity", activation="none"),
        mild("weights_not_tied", bug="decoder_copied"),
        severe("weights_not_tied", ("weights_not_tied", "graph_detached"), bug="decoder_frozen_copy"),
        severe("target_in_inputs", bug="noise_after"),
        mild("adam_eps_too_large", eps=0.1),
        severe("half_precision_underflow", bug="mean_of_everything", half=True),
        severe("not_finite", bug="log_of_pixels"),
        mild("overfitting", count=40, sigma=0.5),
    ],
    healthy=[
        healthy("lr_1e-3", lr=1e-3, decay=1.0),
        healthy("lr_8e-3", lr=8e-3),
        healthy("sgd_momentum", optimizer="sgd", lr=0.3, decay=1.0, steps=550),
        healthy("rmsprop", optimizer="rmsprop", lr=2e-4),
        healthy("nadam", optimizer="nadam"),
        healthy("untied", tied=False),
        healthy("l1", loss="l1"),
        healthy("less_noise", sigma=0.3),
        healthy("first_layer_frozen", freeze=True, tied=False, width=128),
        healthy("tanh_deeper", activation="tanh", more=1),
        healthy("full_batch", batch=1347, lr=5e-3, steps=350, ema=0.9),
        healthy("dropout_005", dropout=0.05, activation="elu"),
        healthy("half_precision_right", half=True),
        healthy("clip_1_no_average", clip=1.0, ema=0.0),
    ],
)
