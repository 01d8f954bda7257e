"""Old photographs in small: noise and a hole are taken out of drawn pictures. Encoder, decoder, nn.BCELoss, Adam."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from types import SimpleNamespace

import torch
from torch import Tensor, nn

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

SIZE, COUNT, HELD_OUT = 12, 1200, 300


def draw(n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rings, bars and crosses in grey, soft at the edges: pictures between 0 and 1, and which kind each is."""
    rows, cols = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    kind = torch.randint(0, 3, (n, 1, 1), generator=g)
    y, x, radius, angle = (
        torch.rand(4, n, 1, 1, generator=g) * torch.tensor([5, 5, 2, 3.1416]).view(4, 1, 1, 1)
    ).unbind()
    dy, dx = rows - 3 - y, cols - 3 - x
    along, across = dx * angle.cos() + dy * angle.sin(), dy * angle.cos() - dx * angle.sin()
    ring = 1.6 - ((dx**2 + dy**2).sqrt() - 2 - radius).abs()
    bar = torch.minimum(1.6 - across.abs(), 5 - along.abs())
    cross = torch.maximum(bar, torch.minimum(1.6 - along.abs(), 4 - across.abs()))
    shape = torch.where(kind == 0, ring, torch.where(kind == 1, bar, cross))
    return shape.clamp(0, 1)[:, None], kind.flatten()


def damage(clean: Tensor, o: SimpleNamespace) -> Tensor:
    """Noise, and a hole of 3 by 3 pixels somewhere."""
    n = len(clean)
    if o.bug == "same_tensor":  # the picture to restore is handed over undamaged
        return clean
    top, left = torch.randint(0, SIZE - 2, (2, n, 1, 1, 1))
    r, c = torch.arange(SIZE).view(1, 1, -1, 1), torch.arange(SIZE).view(1, 1, 1, -1)
    hole = (r >= top) & (r < top + 3) & (c >= left) & (c < left + 3)
    return (clean + o.noise * torch.randn_like(clean)).masked_fill(hole, 0.5)


def activation(name: str) -> nn.Module:
    return {"relu": nn.ReLU, "elu": nn.ELU, "sigmoid": nn.Sigmoid, "none": nn.Identity}[name]()


class Encoder(nn.Sequential):
    def __init__(self, o: SimpleNamespace):
        w, norm = o.width, o.norm
        super().__init__(
            nn.Conv2d(1, w, 3, padding=1),
            nn.BatchNorm2d(w, momentum=o.bn_momentum) if norm else nn.Identity(),
            activation(o.act),
            nn.Conv2d(w, 2 * w, 3, stride=2, padding=1),
            nn.BatchNorm2d(2 * w, momentum=o.bn_momentum) if norm else nn.Identity(),
            activation(o.act),
            nn.Flatten(),
            nn.Linear(2 * w * (SIZE // 2) ** 2, o.code),
        )


class Decoder(nn.Sequential):
    def __init__(self, o: SimpleNamespace):
        w = o.width
        middle = []
        for _ in range(o.deeper):
            middle += [nn.Linear(o.code, o.code), activation("sigmoid" if o.bug == "squash" else o.act)]
        super().__init__(
            activation(o.act),
            nn.Dropout(o.dropout),
            *middle,
            nn.Linear(o.code, 2 * w * (SIZE // 2) ** 2),
            activation(o.act),
            nn.Unflatten(1, (2 * w, SIZE // 2, SIZE // 2)),
            nn.ConvTranspose2d(2 * w, w, 4, stride=2, padding=1),
            activation(o.act),
            nn.Conv2d(w, 1, 3, padding=1),
        )


class Restorer(nn.Module):
    def __init__(self, o: SimpleNamespace):
        super().__init__()
        self.encoder, self.decoder, self.o = Encoder(o), Decoder(o), o
        layers = [m for m in self.modules() if isinstance(m, nn.Conv2d | nn.ConvTranspose2d | nn.Linear)]
        for layer in layers:
            if o.init == "xavier":
                nn.init.xavier_uniform_(layer.weight)
            layer.weight.data.mul_(o.gain)
        for layer in layers[:-1]:
            if o.bias:
                nn.init.constant_(layer.bias, o.bias)
        if o.zero_head:
            nn.init.zeros_(layers[-1].weight)

    def forward(self, x: Tensor) -> Tensor:
        code = self.encoder(x)
        if self.o.bug == "no_grad_encoder":
            code = code.detach()
        if self.o.bug == "view":  # meant to bring the code into another order, and mixes the pictures
            code = code.view(code.shape[1], code.shape[0]).t()
        out = self.decoder(code)
        last = {"sigmoid": torch.sigmoid, "none": lambda v: v, "relu": torch.relu}[self.o.last]
        return torch.sigmoid(last(out)) if self.o.bug == "sigmoid_twice" else last(out)


class HandBCE(nn.Module):
    """Cross-entropy as in the book."""

    def forward(self, p: Tensor, t: Tensor) -> Tensor:
        return -(t * p.log() + (1 - t) * (1 - p).log()).mean()


def batches(x: Tensor, o: SimpleNamespace) -> Iterator[Tensor]:
    """Indices, endlessly, one shuffle after the other."""
    while True:
        order = torch.arange(len(x)) if o.bug == "sorted" else torch.randperm(len(x))
        for start in range(0, len(x) - o.batch + 1, o.batch):
            yield torch.arange(o.batch) if o.bug == "one_batch" else order[start : start + o.batch]


def spoil(clean: Tensor, kind: Tensor, o: SimpleNamespace) -> tuple[Tensor, Tensor]:
    """What goes in and what should come out, before damage, for training."""
    if o.bug == "sorted":
        brightness = clean.mean((1, 2, 3)) + kind
        clean = clean[brightness.argsort()]
    source = target = clean
    if o.bug == "other_pictures":
        target = clean[torch.randperm(len(clean))]
    if o.wrong_pairs:
        rows = (torch.rand(len(clean)) < o.wrong_pairs).nonzero()[:, 0]
        target = target.clone()
        target[rows] = clean[rows[torch.randperm(len(rows))]]
    if o.bug == "bytes":  # as read from the file
        target = target * 255
    return source, target


def evaluate(net: nn.Module, clean: Tensor, x: Tensor, o: SimpleNamespace) -> float:
    net.eval()
    with torch.no_grad():
        out = net(x * o.x_scale)
    if o.last == "none" and o.loss == "logits":
        out = out.sigmoid()
    return ((out - clean).pow(2).mean() / (clean - clean.mean(0)).pow(2).mean()).item()


def warm_start(net: Restorer, source: Tensor, o: SimpleNamespace) -> dict:
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(o.earlier):
        rows = torch.randint(0, len(source), (64,))
        opt.zero_grad()
        nn.functional.mse_loss(net(damage(source[rows], o)), source[rows]).backward()
        opt.step()
    return opt.state_dict()


def optimizer_for(net: Restorer, o: SimpleNamespace) -> torch.optim.Optimizer:
    if o.freeze:
        net.encoder[0].requires_grad_(False)
    params = [p for p in net.parameters() if p.requires_grad]
    if o.bug == "last_only":
        params = list(net.decoder[-1].parameters())
    return make_optimizer(
        o.optimizer, params, o.lr, betas=(o.beta1, 0.999), momentum=o.momentum, weight_decay=o.decay, eps=o.eps
    )


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    pictures, kinds = draw(COUNT + HELD_OUT, torch.Generator().manual_seed(2024))
    test = pictures[COUNT:]
    with torch.random.fork_rng():
        torch.manual_seed(3)
        test_x = damage(test, SimpleNamespace(noise=o.noise, bug=None))
    source, target = spoil(pictures[:COUNT], kinds[:COUNT], o)
    net = Restorer(o)
    state = warm_start(net, source, o) if o.earlier else None
    opt = optimizer_for(net, o)
    if o.resume:
        opt.load_state_dict(state)
    curve = {
        "constant": lambda t: 1.0,
        "cosine": lambda t: 0.5 + 0.5 * math.cos(math.pi * t / o.steps),
        "gamma": lambda t: o.gamma**t,
    }[o.curve]
    scheduler = torch.optim.lr_scheduler.LambdaLR(opt, curve)
    losses = {"bce": nn.BCELoss, "logits": nn.BCEWithLogitsLoss, "mse": nn.MSELoss, "l1": nn.L1Loss}
    criterion = HandBCE() if o.loss == "hand" else losses[o.loss](reduction=o.reduction)
    average = copy.deepcopy(net) if o.average else None
    run = cockpit_core.track(net, criterion, opt, logdir=logdir)

    net.train(o.bug != "eval_kept")
    for step, rows in zip(range(o.steps), batches(source, o), strict=False):
        if step % o.zero_every == 0:
            opt.zero_grad()
        for part in rows.chunk(o.pieces):
            x, y = damage(source[part], o) * o.x_scale, target[part]
            out = net(x)
            loss = criterion(out, y)
            if o.bug == "negative":
                loss = -loss
            if o.sparse:
                loss = loss + o.sparse * net.encoder(x).abs().mean()
            (loss / o.pieces if o.divide else loss).backward()
        if o.clip:
            nn.utils.clip_grad_norm_(net.parameters(), o.clip)
        opt.step()
        scheduler.step()
        if average is not None:
            for a, p in zip(average.parameters(), net.parameters(), strict=True):
                a.data.lerp_(p.data, 1 - o.average)
    run.close()
    return evaluate(average or net, test, test_x, o)


PROGRAM = Program(
    name="restore",
    half="H",
    train=train,
    settings={
        "width": 8,
        "code": 48,
        "deeper": 0,
        "act": "relu",
        "norm": False,
        "dropout": 0.0,
        "last": "sigmoid",
        "loss": "bce",
        "reduction": "mean",
        "init": "xavier",
        "gain": 1.0,
        "bias": 0.0,
        "zero_head": False,
        "noise": 0.15,
        "x_scale": 1.0,
        "wrong_pairs": 0.0,
        "batch": 40,
        "pieces": 1,
        "divide": True,
        "zero_every": 1,
        "optimizer": "adam",
        "lr": 3e-3,
        "beta1": 0.9,
        "momentum": 0.9,
        "decay": 0.0,
        "eps": 1e-8,
        "curve": "constant",
        "gamma": 1.0,
        "clip": None,
        "sparse": 0.0,
        "average": 0.0,
        "bn_momentum": 0.1,
        "freeze": False,
        "earlier": 0,
        "resume": False,
        "steps": 550,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.12),
        mild("learning_rate_too_high", lr=0.03),
        severe("learning_rate_too_low", lr=1e-5),
        mild("learning_rate_too_low", lr=1e-4),
        severe("schedule_too_fast", curve="gamma", gamma=0.95),
        mild("schedule_too_fast", curve="gamma", gamma=0.98),
        severe("clipping_too_hard", clip=1e-3, optimizer="sgd", lr=1.0),
        severe("weight_decay_too_high", optimizer="adamw", decay=10.0),
        mild("weight_decay_too_high", decay=0.01),
        severe("batch_too_small", batch=2),
        severe("gradients_not_zeroed", zero_every=10**6),
        severe("parameters_not_optimized", bug="last_only"),
        mild("graph_detached", bug="no_grad_encoder"),
        severe("batch_repeated", bug="one_batch"),
        severe("data_not_shuffled", bug="sorted"),
        severe("inputs_not_scaled", x_scale=255.0, optimizer="sgd", lr=0.3),
        severe("targets_not_scaled", bug="bytes", loss="mse"),
        severe("labels_random", bug="other_pictures"),
        mild("label_noise", wrong_pairs=0.4),
        severe("target_in_inputs", bug="same_tensor"),
        severe("loss_sign", bug="negative"),
        severe("dead_units", bias=-4.0),
        severe("init_too_large", ("init_too_large", "saturated_units"), gain=8.0),
        severe("init_too_small", ("init_too_small", "vanishing_gradients"), gain=0.02),
        severe("vanishing_gradients", bug="squash", deeper=6),
        severe("dropout_too_high", dropout=0.97),
        mild("dropout_too_high", dropout=0.85),
        severe("samples_mixed", bug="view"),
        severe("not_finite", loss="hand", last="relu"),
        mild("output_activation", bug="sigmoid_twice"),
        severe("batchnorm_momentum", norm=True, bn_momentum=0.0005),
    ],
    healthy=[
        healthy("rate_third", lr=1.5e-3, steps=700),
        healthy("rate_double", lr=6e-3),
        healthy("nadam", optimizer="nadam", lr=2e-3),
        healthy("sgd_momentum", optimizer="sgd", lr=0.3, steps=650),
        healthy("logits", last="none", loss="logits"),
        healthy("squared_error", loss="mse"),
        healthy("squared_error_linear", loss="mse", last="none"),
        healthy("batch_24", batch=24, steps=700),
        healthy("elu", act="elu", lr=2e-3),
        healthy("wider", width=12),
        healthy("torch_init", init="torch", lr=4e-3),
        healthy("zero_head", zero_head=True),
        healthy("deeper", deeper=1, lr=4e-3, steps=750),
        healthy("cosine_to_zero", curve="cosine", lr=6e-3),
        healthy("clip_1", clip=1.0),
        healthy("sparse_code", sparse=1e-4),
        healthy("average", average=0.95),
        healthy("micro_batches_of_4", batch=40, pieces=10),
        healthy("first_layer_frozen", earlier=250, freeze=True, lr=2e-3, steps=400),
        healthy("resumed", earlier=250, resume=True, lr=2e-3, steps=400),
        healthy("longer", steps=900),
    ],
)
