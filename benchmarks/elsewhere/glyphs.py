"""Glyphs of an invented script, drawn in colour on 16x16 pixels: four convolutions without BatchNorm and two linear
layers, nn.CrossEntropyLoss, SGD with momentum, StepLR, a bare loop over a shuffled index."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import torch
import torch.nn as nn

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe, wrong_rate

CLASSES, SIZE = 10, 16
N_TRAIN, N_VALID = 2000, 600


def draw(n, generator):
    """Every class is a set of five strokes; a glyph is drawn with a shift, slanted, in ink on paper, with noise."""
    fixed = torch.Generator().manual_seed(5)
    ends = torch.rand(CLASSES, 5, 2, 2, generator=fixed) * 11 + 2.5  # [class, stroke, end, coordinate]
    labels = torch.randint(0, CLASSES, (n,), generator=generator)
    shift = torch.rand(n, 1, 1, 2, generator=generator) * 4 - 2
    jitter = torch.randn(n, 5, 2, 2, generator=generator) * 1.1
    e = ends[labels] + shift + jitter
    yy, xx = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    pixel = torch.stack([xx, yy], -1).float()
    a, b = e[:, :, 0, None, None], e[:, :, 1, None, None]
    along = (((pixel - a) * (b - a)).sum(-1) / (b - a).pow(2).sum(-1).clamp(min=0.1)).clamp(0, 1)
    distance = (pixel - (a + along[..., None] * (b - a))).norm(dim=-1).amin(1)  # [n, y, x]
    mask = torch.sigmoid(3 * (1.0 - distance))[:, None]
    ink = torch.rand(n, 3, 1, 1, generator=generator) * 0.5
    paper = 0.6 + torch.rand(n, 3, 1, 1, generator=generator) * 0.4
    picture = mask * ink + (1 - mask) * paper
    return (picture + 0.2 * torch.randn(picture.shape, generator=generator)).clamp(0, 1), labels


class GlyphNet(nn.Module):
    def __init__(self, o):
        super().__init__()
        w = o.width
        self.o = o
        self.conv1 = nn.Conv2d(3, w, 3, padding=1)
        self.conv2 = nn.Conv2d(w, w, 3, padding=1)
        self.conv3 = nn.Conv2d(w, 2 * w, 3, padding=1)
        self.conv4 = nn.Conv2d(2 * w, 2 * w, 3, padding=1)
        self.fc1 = nn.Linear(2 * w * 16, 64)
        self.fc2 = nn.Linear(64, CLASSES)
        self.pool = nn.MaxPool2d(2)
        self.more = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.Sigmoid()) for _ in range(o.sigmoids)])
        self.act = {"relu": nn.ReLU(), "elu": nn.ELU(), "leaky": nn.LeakyReLU(0.1), "none": nn.Identity()}[o.act]
        self.drop = nn.Dropout(o.dropout)
        self.init(o)

    def init(self, o):
        for m in [self.conv1, self.conv2, self.conv3, self.conv4, self.fc1, self.fc2]:
            if o.init == "kaiming":
                nn.init.kaiming_normal_(m.weight)
            elif o.init == "orthogonal":
                nn.init.orthogonal_(m.weight, 1.4)
            elif o.init == "ones":
                nn.init.constant_(m.weight, 0.01)
            m.weight.data *= o.gain
            if m is not self.fc2:
                m.bias.data += o.shift
        if o.zero_head:
            nn.init.zeros_(self.fc2.weight)

    def forward(self, x):
        act = self.act
        x = self.pool(act(self.conv1(x)))
        x = act(self.conv2(x))
        if self.o.bug == "no_grad_features":
            x = x.detach()
        x = act(self.conv3(x))
        x = self.pool(act(self.conv4(x)))
        if self.o.bug == "view_batch":  # features first, then the batch: rows are no longer pictures
            x = x.permute(1, 2, 3, 0).reshape(-1, self.fc1.in_features)
        else:
            x = x.flatten(1)
        x = self.more(self.drop(act(self.fc1(x))))
        x = self.fc2(x)
        if self.o.last == "relu":
            x = torch.relu(x)
        if self.o.last == "sigmoid":
            x = torch.sigmoid(x)
        if self.o.last == "softmax":
            x = torch.softmax(x, dim=1)
        return x


def get_data(o):
    g = torch.Generator().manual_seed(11)
    x, y = draw(N_TRAIN, g)
    xv, yv = draw(N_VALID, g)
    if o.normalise:
        x, xv = (x - 0.6) / 0.27, (xv - 0.6) / 0.27
    x, xv = x * o.x_scale, xv * o.x_scale
    if o.outliers:
        x[torch.rand(len(x)) < o.outliers] *= o.outlier_size
    y = corrupt(y, o.mislabelled, CLASSES)
    if o.bug == "labels_elsewhere":
        y = y[torch.randperm(len(y))]
    if o.bug == "labels_rolled":  # the first line of the label file was taken for its header
        y = torch.cat([y[1:], y[:1]])
    if o.bug == "answer_drawn":  # exported with the class marked in the first row
        x[:, :, 0, :] = 0.0
        x[torch.arange(len(x)), :, 0, y] = 5.0
    keep = torch.ones(len(y), dtype=torch.bool)
    if o.imbalance > 1:
        keep = (y == 0) | (torch.arange(len(y)) % o.imbalance == 0)
    x, y = x[keep][: o.rows], y[keep][: o.rows]
    if o.bug == "by_class":
        order = torch.argsort(y, stable=True)
        x, y = x[order], y[order]
    return x, y, xv, yv


def get_optimizer(model, o):
    params = list(model.parameters())
    if o.bug == "classifier_only":
        params = list(model.fc2.parameters())
    if o.frozen:
        model.conv1.requires_grad_(False)
        params = [p for p in params if p.requires_grad]
    return make_optimizer(o.optimizer, params, o.lr, momentum=o.momentum, weight_decay=o.wd, nesterov=o.nesterov)


def phase(model, opt, x, y, steps):
    for _ in range(steps):
        idx = torch.randint(0, len(x), (32,))
        opt.zero_grad()
        nn.functional.cross_entropy(model(x[idx]), y[idx]).backward()
        opt.step()


def evaluate(model, x, y):
    model.eval()
    with torch.no_grad():
        return wrong_rate(model(x), y, CLASSES)


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, y, xv, yv = get_data(o)
    model = GlyphNet(o)
    optimizer = get_optimizer(model, o)
    if o.earlier:
        phase(model, optimizer, x, y, o.earlier)
        weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
        model = GlyphNet(o)
        model.load_state_dict(weights)
        if o.new_head:
            model.fc2.reset_parameters()
        optimizer = get_optimizer(model, o)
        if o.resume:
            optimizer.load_state_dict(state)
    if o.bug == "rebuilt":
        model = GlyphNet(o)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=o.step_size, gamma=o.gamma)
    if o.schedule == "cosine":
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, o.steps)
    if o.schedule == "warmup":
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 60)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14) if o.scaler else None
    criterion = nn.CrossEntropyLoss(reduction=o.reduction)
    average = torch.optim.swa_utils.AveragedModel(model) if o.average else None
    run = cockpit_core.track(model, criterion, optimizer, logdir=logdir)

    model.train()
    if o.bug == "eval_left_on":
        model.eval()
    order, at = torch.randperm(len(x)), 0
    for step in range(o.steps):
        if step % o.zero_every == 0:
            optimizer.zero_grad()
        for _ in range(o.accumulate):
            if at + o.batch > len(order):
                order, at = torch.randperm(len(x)), 0
            idx = order[at : at + o.batch]
            at += 0 if o.bug == "index_not_moved" else o.batch
            if o.bug == "by_class":
                idx = (torch.arange(o.batch) + step * o.batch) % len(x)
            loss = criterion(model(x[idx]), y[idx])
            if o.bug == "minus":
                loss = -loss
            if o.divide:
                loss = loss / o.accumulate
            if scaler:
                scaler.scale(loss).backward()
            else:
                loss.backward()
        if scaler and o.unscale:
            scaler.unscale_(optimizer)
        if o.clip:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        scheduler.step()
        if average and step > o.steps // 2:
            average.update_parameters(model)
    run.close()
    return evaluate(average.module if average else model, xv, yv)


PROGRAM = Program(
    name="glyphs",
    half="H",
    train=train,
    settings={
        "rows": N_TRAIN,
        "imbalance": 1,
        "normalise": True,
        "x_scale": 1.0,
        "outliers": 0.0,
        "outlier_size": 60.0,
        "mislabelled": 0.0,
        "width": 10,
        "act": "relu",
        "sigmoids": 0,
        "dropout": 0.0,
        "last": "none",
        "init": "default",
        "gain": 1.0,
        "shift": 0.0,
        "zero_head": False,
        "frozen": False,
        "earlier": 0,
        "resume": False,
        "new_head": False,
        "batch": 32,
        "accumulate": 1,
        "divide": True,
        "zero_every": 1,
        "reduction": "mean",
        "optimizer": "sgd",
        "lr": 0.03,
        "momentum": 0.9,
        "nesterov": False,
        "wd": 0.0,
        "step_size": 220,
        "gamma": 0.3,
        "schedule": "step",
        "scaler": False,
        "unscale": True,
        "average": False,
        "clip": None,
        "steps": 450,
    },
    faults=[
        severe("learning_rate_too_high", ("learning_rate_too_high", "not_finite"), lr=0.75),
        severe("learning_rate_too_low", lr=1e-4),
        mild("learning_rate_too_low", lr=1e-3),
        severe("schedule_too_fast", step_size=1, gamma=0.95),
        mild("clipping_too_hard", clip=0.03),
        severe("weight_decay_too_high", wd=0.3),
        mild("batch_too_small", batch=2),
        severe("momentum_too_high", momentum=0.999),
        severe("gradients_not_zeroed", zero_every=1000),
        severe("parameters_not_optimized", bug="classifier_only"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "nothing_moves"), bug="rebuilt"),
        mild("graph_detached", ("graph_detached", "parameters_not_optimized"), bug="no_grad_features"),
        severe("batch_repeated", bug="index_not_moved"),
        severe("data_not_shuffled", bug="by_class"),
        severe("inputs_not_scaled", ("inputs_not_scaled", "not_finite"), x_scale=255.0),
        mild("inputs_not_scaled", x_scale=16.0),
        severe("input_outliers", ("input_outliers", "not_finite"), outliers=0.03),
        severe("labels_random", ("labels_random", "labels_off_by_one"), bug="labels_rolled"),
        severe("label_noise", mislabelled=0.5),
        severe("loss_sign", ("loss_sign", "not_finite"), bug="minus"),
        severe("loss_summed", ("loss_summed", "learning_rate_too_high"), reduction="sum"),
        mild("double_softmax", ("double_softmax", "output_activation"), last="softmax"),
        severe("output_activation", ("output_activation", "dead_units"), last="relu"),
        severe("dead_units", shift=-4.0),
        severe("init_constant", init="ones"),
        severe("init_too_large", gain=8.0),
        severe("init_too_small", ("init_too_small", "vanishing_gradients"), gain=0.02),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), sigmoids=6),
        severe("samples_mixed", bug="view_batch"),
        severe("target_in_inputs", bug="answer_drawn"),
        severe(
            "clipped_before_unscaled",
            ("clipped_before_unscaled", "clipping_too_hard"),
            scaler=True,
            unscale=False,
            clip=1.0,
        ),
        severe("overfitting", rows=60),
    ],
    healthy=[
        healthy("rate_half", lr=0.015),
        healthy("rate_double", lr=0.06),
        healthy("adam", optimizer="adam", lr=2e-3),
        healthy("adamw", optimizer="adamw", lr=2e-3, wd=0.01),
        healthy("rmsprop", optimizer="rmsprop", lr=1e-3, momentum=0.0),
        healthy("nadam", optimizer="nadam", lr=1.5e-3),
        healthy("nesterov", nesterov=True, wd=5e-4),
        healthy("cosine", schedule="cosine", lr=0.04),
        healthy("warmup", schedule="warmup"),
        healthy("batch_16", batch=16, lr=0.02, steps=600),
        healthy("batch_128", batch=128, lr=0.08, steps=300, step_size=180),
        healthy("small_pieces", batch=8, accumulate=3),
        healthy("summed_small_rate", reduction="sum", lr=0.001),
        healthy("wide_dropout", width=20, dropout=0.3, lr=0.04),
        healthy("elu", act="elu", lr=0.02),
        healthy("leaky", act="leaky"),
        healthy("kaiming", init="kaiming", lr=0.015),
        healthy("orthogonal", init="orthogonal", lr=0.02),
        healthy("zero_head", zero_head=True),
        healthy("clip_1", clip=1.0),
        healthy("scaler_unscaled", scaler=True, clip=2.0),
        healthy("averaged", average=True, step_size=1000),
        healthy("resumed", earlier=300, resume=True, steps=300, lr=0.02),
        healthy("new_head", earlier=300, new_head=True, frozen=True, steps=300),
        healthy("few_labels_wrong", mislabelled=0.03),
    ],
)
