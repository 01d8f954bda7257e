"""Drawn shapes of 14x14 pixels in noise: a small CNN as a class, F.cross_entropy, Adam, DataLoader; no validation is logged."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe, wrong_rate

SIZE, KINDS = 14, 6


def draw(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Grey images, 0 to 1: block, ring, plus, diagonal cross, triangle, bars."""
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(0, KINDS, (count,), generator=g)

    def between(a: float, b: float) -> torch.Tensor:
        return (a + (b - a) * torch.rand(count, generator=g))[:, None, None]

    u, v = torch.meshgrid(torch.arange(SIZE) - 6.5, torch.arange(SIZE) - 6.5, indexing="ij")
    u, v = u - between(-2, 2), v - between(-2, 2)
    r = between(3.0, 4.8)
    box = (u.abs() <= r) & (v.abs() <= r)
    far = (u * u + v * v).sqrt()
    pictures = torch.stack(
        [
            box & (u.abs().maximum(v.abs()) > r - 1.4),
            (far <= r) & (far > r - 1.5),
            box & ((u.abs() < 0.8) | (v.abs() < 0.8)),
            box & (((u - v).abs() < 1.1) | ((u + v).abs() < 1.1)),
            (u <= r) & (u >= -r) & (v.abs() <= (u + r) / 2),
            box & (torch.sin(1.7 * u) > 0.1),
        ]
    )
    picture = pictures[kind, torch.arange(count)].float() * between(0.5, 1.0)
    picture = picture + 0.32 * torch.randn(count, SIZE, SIZE, generator=g)
    return picture.clamp(0, 1)[:, None], kind


class Net(nn.Module):
    def __init__(self, o: SimpleNamespace):
        super().__init__()
        c = o.channels
        self.conv1 = nn.Conv2d(1, c, 3, padding=1)
        self.conv2 = nn.Conv2d(c, 2 * c, 3, padding=1)
        self.norm1 = {"none": nn.Identity, "batch": nn.BatchNorm2d, "group": lambda n: nn.GroupNorm(4, n)}[o.norm](c)
        self.norm2 = {"none": nn.Identity, "batch": nn.BatchNorm2d, "group": lambda n: nn.GroupNorm(4, n)}[o.norm](
            2 * c
        )
        self.extra = nn.ModuleList(nn.Linear(o.hidden, o.hidden) for _ in range(o.extra))
        self.drop = nn.Dropout(o.dropout)
        self.fc1 = nn.Linear(2 * c * 9, o.hidden)
        self.fc2 = nn.Linear(o.hidden, KINDS)
        self.act = {"relu": F.relu, "silu": F.silu, "elu": F.elu, "sigmoid": torch.sigmoid, "none": lambda h: h}[o.act]
        self.between = torch.sigmoid if o.extra_act == "sigmoid" else F.relu
        self.bug, self.pool = o.bug, F.avg_pool2d if o.pool == "avg" else F.max_pool2d
        with torch.no_grad():
            for module in (self.conv1, self.conv2, self.fc1, self.fc2):
                module.weight.mul_(o.gain)
                if o.init == "zeros":
                    module.weight.zero_()
                    module.bias.zero_()
                elif o.init == "he":
                    nn.init.kaiming_normal_(module.weight)
                    module.bias.zero_()
            if o.bias:
                for module in (self.conv1, self.conv2, self.fc1):
                    module.bias.fill_(o.bias)
            if o.zero_head:
                self.fc2.weight.zero_()
                self.fc2.bias.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.pool(self.act(self.norm1(self.conv1(x))), 2)
        if self.bug == "no_grad_backbone":
            with torch.no_grad():
                h = self.pool(self.act(self.norm2(self.conv2(h))), 2)
        else:
            h = self.pool(self.act(self.norm2(self.conv2(h))), 2)
        if self.bug == "flatten_wrong":  # channels last, it was thought
            h = h.permute(1, 2, 3, 0).reshape(len(x), -1)
        h = self.drop(self.act(self.fc1(h.flatten(1))))
        for layer in self.extra:
            h = self.between(layer(h))
        h = self.fc2(h.detach() if self.bug == "features_detached" else h)
        if self.bug == "softmax_last":
            h = F.softmax(h, dim=1)
        return h


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    images, labels = draw(1800, 41)
    test_images, test_labels = draw(700, 42)
    if o.inputs == "bytes":
        images, test_images = images * 255, test_images * 255
    elif o.inputs == "centred":
        images, test_images = (images - 0.5) / 0.5, (test_images - 0.5) / 0.5
    else:
        mean, std = images.mean(), images.std()
        images, test_images = (images - mean) / std, (test_images - mean) / std
    if o.bug == "label_pixel":
        images = images.clone()
        images[:, 0, 0, :KINDS] = 8.0 * F.one_hot(labels, KINDS)
    if o.spikes:
        hit = torch.rand(len(images)) < o.spikes
        images[hit] *= o.spike_size
    if o.imbalance:
        keep = (labels < 2) | (torch.rand(len(labels)) < 1 / o.imbalance)
        images, labels = images[keep], labels[keep]
    if o.wrong:
        labels = corrupt(labels, o.wrong, KINDS)
    if o.bug == "labels_permuted":
        labels = labels[torch.randperm(len(labels))]
    if o.bug == "folder_order":
        order = labels.argsort()
        images, labels = images[order], labels[order]
    batch = len(images) if o.batch == "full" else o.batch
    data = TensorDataset(images, labels)
    if o.weighted:
        weights = 1 / torch.bincount(labels, minlength=KINDS).float()[labels]
        loader = DataLoader(data, batch, sampler=WeightedRandomSampler(weights.tolist(), len(data)))
    else:
        loader = DataLoader(data, batch, shuffle=o.bug != "folder_order", drop_last=o.norm == "batch")

    model = Net(o)
    if o.trained_before:
        first = torch.optim.Adam(model.parameters(), lr=2e-3)
        for _i in range(o.trained_before):
            pick = torch.randint(0, len(images), (32,))
            first.zero_grad()
            F.cross_entropy(model(images[pick]), labels[pick]).backward()
            first.step()
    if o.freeze:
        model.conv1.requires_grad_(False)
    if o.bug == "half":
        model = model.half()
        images, test_images = images.half(), test_images.half()
        loader = DataLoader(TensorDataset(images, labels), batch, shuffle=True)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(o.optimizer, parameters, o.lr, betas=o.betas, eps=o.eps, weight_decay=o.wd, momentum=0.9)
    if o.trained_before and o.resume:
        optimizer.load_state_dict(first.state_dict())
    if o.bug == "new_layers":
        model.fc1 = nn.Linear(model.fc1.in_features, o.hidden)
        model.conv2 = nn.Conv2d(o.channels, 2 * o.channels, 3, padding=1)
    if o.schedule == "onecycle":
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=o.lr, total_steps=o.steps)
    elif o.schedule == "cosine":
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, o.steps)
    elif o.schedule == "thirds":
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, o.steps // 3, 0.3)
    else:
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, o.gamma)
    run = cockpit_core.track(model, optimizer=optimizer, logdir=logdir)

    model.train()
    step = 0
    fixed = next(iter(loader))
    while step < o.steps:
        for xb, yb in loader:
            if o.bug == "next_iter":
                xb, yb = fixed
            logits = model(xb)
            if o.bug == "softmax_dim0":
                loss = F.nll_loss(F.log_softmax(logits, 0), yb)
            else:
                loss = F.cross_entropy(logits, yb, reduction=o.reduction, label_smoothing=o.smooth)
            if o.bug == "gain":
                loss = -loss
            if o.bug != "never_zeroed":
                optimizer.zero_grad()
            loss.backward()
            if o.clip:
                nn.utils.clip_grad_norm_(model.parameters(), o.clip)
            if o.schedule_first:
                scheduler.step()
            optimizer.step()
            if not o.schedule_first:
                scheduler.step()
            step += 1
            if step == o.steps:
                break
    run.close()

    model.eval()
    with torch.no_grad():
        return wrong_rate(model(test_images), test_labels, KINDS)


PROGRAM = Program(
    name="shapes",
    half="G",
    train=train,
    settings={
        "channels": 8,
        "hidden": 48,
        "act": "relu",
        "pool": "max",
        "norm": "none",
        "extra": 0,
        "extra_act": "relu",
        "dropout": 0.0,
        "init": None,
        "gain": 1.0,
        "bias": 0.0,
        "zero_head": False,
        "freeze": False,
        "trained_before": 0,
        "resume": False,
        "inputs": "standard",
        "spikes": 0.0,
        "spike_size": 60.0,
        "imbalance": 0,
        "weighted": False,
        "wrong": 0.0,
        "batch": 32,
        "reduction": "mean",
        "smooth": 0.0,
        "optimizer": "adam",
        "lr": 2e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "wd": 0.0,
        "schedule": "exp",
        "gamma": 1.0,
        "schedule_first": False,
        "clip": None,
        "steps": 300,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.08),
        severe("learning_rate_too_low", lr=7e-6),
        mild("learning_rate_too_low", lr=7e-5),
        mild("schedule_too_fast", gamma=0.98),
        severe("weight_decay_too_high", wd=0.3),
        mild("weight_decay_too_high", wd=0.06),
        mild("batch_too_small", batch=2, lr=4e-3),
        mild("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="new_layers"),
        severe("gradients_not_zeroed", bug="never_zeroed"),
        severe("graph_detached", bug="features_detached"),
        mild("graph_detached", bug="no_grad_backbone"),
        severe("batch_repeated", bug="next_iter"),
        severe("data_not_shuffled", bug="folder_order"),
        mild("inputs_not_scaled", inputs="bytes"),
        mild("input_outliers", spikes=0.03, spike_size=60.0),
        mild("class_imbalance", imbalance=50),
        severe("labels_random", bug="labels_permuted"),
        mild("label_noise", wrong=0.4),
        mild("softmax_over_batch", bug="softmax_dim0"),
        mild("double_softmax", bug="softmax_last"),
        severe("loss_sign", bug="gain"),
        severe("dead_units", bias=-4.0),
        severe("init_too_large", gain=8.0),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), extra=6, extra_act="sigmoid"),
        severe("dropout_too_high", dropout=0.97),
        severe("target_in_inputs", bug="label_pixel"),
        mild("adam_eps_too_large", ("adam_eps_too_large", "learning_rate_too_low"), eps=0.1),
        severe("half_precision_underflow", ("half_precision_underflow", "not_finite"), bug="half"),
        severe("samples_mixed", bug="flatten_wrong"),
    ],
    healthy=[
        healthy("sgd_momentum", optimizer="sgd", lr=0.03),
        healthy("adamw", optimizer="adamw", wd=0.05),
        healthy("rmsprop", optimizer="rmsprop", lr=1e-3),
        healthy("nadam", optimizer="nadam"),
        healthy("adagrad", optimizer="adagrad", lr=0.02),
        healthy("rate_third", lr=1e-3),
        healthy("rate_double", lr=4e-3),
        healthy("onecycle", schedule="onecycle", lr=5e-3),
        healthy("cosine", schedule="cosine", lr=3e-3),
        healthy("step_lr", schedule="thirds", lr=3e-3),
        healthy("batch_16", batch=16),
        healthy("batch_96", batch=96, lr=4e-3),
        healthy("batchnorm", norm="batch"),
        healthy("groupnorm_silu", norm="group", act="silu"),
        healthy("dropout_30", dropout=0.3),
        healthy("average_pooling", pool="avg", lr=4e-3),
        healthy("label_smoothing_clip", smooth=0.1, clip=5.0),
        healthy("he_zero_head", init="he", zero_head=True),
        healthy("first_layer_random", freeze=True),
        healthy("resumed", trained_before=150, resume=True, steps=200),
        healthy("inputs_centred", inputs="centred"),
        healthy("rare_classes_weighted", imbalance=3, weighted=True),
    ],
)
