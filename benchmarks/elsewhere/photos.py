"""Which photograph, and where in it: convolutions on cut-out patches, a class that trains, Adam with OneCycleLR, nothing logged."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe, wrong_rate

SIDE, PLACES = 12, 4


def patches(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Patches of scikit-learn's two photographs, values 0 to 255; the label is the photograph and the half of its height."""
    from sklearn.datasets import load_sample_images

    photos = torch.stack([torch.tensor(image).permute(2, 0, 1).float() for image in load_sample_images().images])
    photos = F.avg_pool2d(photos, 4)
    rng = torch.Generator().manual_seed(seed)
    label = torch.randint(0, PLACES, (count,), generator=rng)
    half = photos.shape[2] // 2
    top = (label % 2) * half + torch.randint(0, half - SIDE, (count,), generator=rng)
    left = torch.randint(0, photos.shape[3] - SIDE, (count,), generator=rng)
    cut = [photos[k // 2, :, r : r + SIDE, c : c + SIDE] for k, r, c in zip(label, top, left, strict=True)]
    return torch.stack(cut), label


class Net(nn.Module):
    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        w = o.width
        self.conv1 = nn.Conv2d(3, w, 3, padding=1)
        self.conv2 = nn.Conv2d(w, 2 * w, 3, padding=1)
        self.more = nn.ModuleList([nn.Conv2d(2 * w, 2 * w, 3, padding=1) for _ in range(o.more)])
        self.norm1 = nn.BatchNorm2d(w) if o.norm else nn.Identity()
        self.norm2 = nn.BatchNorm2d(2 * w) if o.norm else nn.Identity()
        self.drop = nn.Dropout(o.dropout)
        self.fc1 = nn.Linear(2 * w * 9, 48)
        self.fc2 = nn.Linear(48, PLACES)
        self.reset()

    def reset(self) -> None:
        for m in self.modules():
            if isinstance(m, nn.Conv2d | nn.Linear):
                if self.o.gain == 0:
                    nn.init.zeros_(m.weight)
                elif self.o.gain is not None:
                    nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
                    m.weight.data.mul_(self.o.gain)
                if self.o.bias is not None and m is not self.fc2:
                    nn.init.constant_(m.bias, self.o.bias)
        if self.o.zero_head:
            nn.init.zeros_(self.fc2.weight)

    def act(self, x: torch.Tensor) -> torch.Tensor:
        return {"relu": F.relu, "leaky": F.leaky_relu, "sigmoid": torch.sigmoid, "none": lambda t: t, "gelu": F.gelu}[
            self.o.activation
        ](x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.avg_pool2d(self.act(self.norm1(self.conv1(x))), 2)
        x = self.act(self.norm2(self.conv2(x)))
        for layer in self.more:
            x = self.act(layer(x))
        x = F.avg_pool2d(x, 2)
        if self.o.bug == "numpy_on_the_way":  # a look at the features, and they never came back into the graph
            x = torch.from_numpy(x.detach().numpy())
        x = self.drop(self.act(self.fc1(x.flatten(1))))
        x = self.fc2(x)
        return F.softmax(x, dim=-1) if self.o.bug == "probabilities" else x


class Trainer:
    def __init__(self, model: nn.Module, o: SimpleNamespace, logdir: str) -> None:
        self.o = o
        self.criterion = nn.CrossEntropyLoss()
        params = list(model.parameters())
        if o.bug == "classifier_only":
            params = list(model.fc2.parameters())
        if o.freeze:
            model.conv1.requires_grad_(False)
            params = [p for p in params if p.requires_grad]
        self.optimizer = make_optimizer(o.optimizer, params, o.lr, eps=o.eps, weight_decay=o.wd, momentum=0.9)
        if o.bug == "copied_later":  # the body is to be shared with another network: a copy is put in its place
            for part in ("conv1", "conv2", "fc1"):
                setattr(model, part, copy.deepcopy(getattr(model, part)))
        self.model = model
        if o.bug == "decay":
            self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.95)
        elif o.one_cycle:
            self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, o.lr, total_steps=o.steps + 2)
        else:
            self.scheduler = torch.optim.lr_scheduler.ConstantLR(self.optimizer, 1.0)
        self.scaler = torch.amp.GradScaler("cpu", enabled=o.scaler)
        self.run = cockpit_core.track(self.model, self.criterion, self.optimizer, logdir=logdir)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.float16, enabled=self.o.half):
            out = self.model(x)
            loss = self.criterion(out, y)
        if self.o.bug == "reward":
            loss = -loss
        if self.o.bug == "share_of_the_epoch":  # so that the losses of an epoch add up to its mean
            loss = loss / 20_000
        if self.o.bug == "fixed_scale":  # scaling by hand, and nobody looks whether it was too much
            loss = loss * 2**22
        return loss

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        if self.o.bug != "never_zeroed":
            self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(self.loss(x, y)).backward()
        if self.o.bug == "scheduler_first":
            self.scheduler.step()
        if self.o.bug == "fixed_scale":
            for p in self.model.parameters():
                p.grad.div_(2**22)
        if self.o.clip:
            if self.o.bug != "clipped_scaled":
                self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.o.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.o.bug != "scheduler_first":
            self.scheduler.step()

    def fit(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.model.eval() if self.o.bug == "left_in_eval" else self.model.train()
        done = 0
        while done < self.o.steps:
            order = y.argsort() if self.o.bug == "by_folder" else torch.randperm(len(x))
            for batch in order.split(self.o.batch)[: len(x) // self.o.batch]:
                if self.o.bug == "first_batch":
                    batch = torch.arange(self.o.batch)
                self.step(x[batch], y[batch])
                done += 1
                if done >= self.o.steps:
                    break
        self.run.close()

    @torch.no_grad()
    def score(self, x: torch.Tensor, y: torch.Tensor) -> float:
        self.model.eval()
        return wrong_rate(self.model(x), y, PLACES)


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, y = patches(o.count, 100)
    x_valid, y_valid = patches(600, 200)
    if o.bug != "bytes":
        x, x_valid = x / 255, x_valid / 255
        if o.centred:
            x, x_valid = (x - 0.45) / 0.27, (x_valid - 0.45) / 0.27
    y = corrupt(y, o.noise, PLACES)
    if o.bug == "labels_of_another_shuffle":
        y = y[torch.randperm(len(y))]
    if o.bug == "next_label":
        y = (y + 1) % PLACES
    model = Net(o)
    if o.pretrain:  # first only which photograph, as a short pre-training
        warm = torch.optim.Adam(model.parameters(), 2e-3)
        for batch in torch.randperm(len(x)).split(64)[:60]:
            warm.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch] // 2).backward()
            warm.step()
        model.fc2.reset_parameters()
    trainer = Trainer(model, o, logdir)
    trainer.fit(x, y)
    return trainer.score(x_valid, y_valid)


PROGRAM = Program(
    name="photos",
    half="C",
    train=train,
    settings={
        "width": 8,
        "more": 0,
        "norm": False,
        "activation": "relu",
        "dropout": 0.0,
        "gain": None,
        "bias": None,
        "zero_head": False,
        "freeze": False,
        "pretrain": False,
        "centred": True,
        "count": 2400,
        "noise": 0.0,
        "batch": 32,
        "optimizer": "adam",
        "lr": 5e-3,
        "eps": 1e-8,
        "wd": 0.0,
        "one_cycle": True,
        "steps": 400,
        "clip": None,
        "scaler": False,
        "half": False,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.2),
        mild("learning_rate_too_high", lr=0.05, one_cycle=False),
        severe("learning_rate_too_low", lr=1.5e-5),
        severe("schedule_too_fast", bug="decay"),
        severe("batch_too_small", batch=2),
        severe("gradients_not_zeroed", bug="never_zeroed", one_cycle=False),
        severe("parameters_not_optimized", bug="classifier_only"),
        severe(
            "optimizer_holds_others",
            ("optimizer_holds_others", "parameters_not_optimized"),
            bug="copied_later",
        ),
        severe("graph_detached", bug="numpy_on_the_way"),
        severe("batch_repeated", bug="first_batch"),
        severe("data_not_shuffled", bug="by_folder"),
        severe("inputs_not_scaled", bug="bytes"),
        severe("labels_random", bug="labels_of_another_shuffle"),
        mild("label_noise", noise=0.3),
        severe("labels_off_by_one", bug="next_label"),
        severe("loss_sign", bug="reward"),
        mild("double_softmax", bug="probabilities"),
        severe("dead_units", bias=-4.0),
        mild("dead_units", bias=-1.0),
        severe("init_constant", gain=0),
        severe("init_too_large", gain=8.0),
        severe("init_too_small", gain=0.02),
        mild("init_too_small", gain=0.2),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), more=6, activation="sigmoid"),
        mild("dropout_too_high", dropout=0.85),
        severe("adam_eps_too_large", eps=0.1),
        mild("missing_nonlinearity", activation="none"),
        severe("half_precision_underflow", bug="share_of_the_epoch", half=True),
        severe("not_finite", bug="fixed_scale", half=True),
        mild(
            "clipped_before_unscaled",
            ("clipped_before_unscaled", "clipping_too_hard"),
            bug="clipped_scaled",
            scaler=True,
            clip=1.0,
            optimizer="sgd",
            lr=0.05,
        ),
        mild("eval_mode", bug="left_in_eval", norm=True, dropout=0.2),
        mild("schedule_before_step", bug="scheduler_first"),
    ],
    healthy=[
        healthy("lr_15e-4", lr=1.5e-3),
        healthy("lr_12e-3", lr=1.2e-2),
        healthy("sgd_momentum", optimizer="sgd", lr=0.1),
        healthy("rmsprop", optimizer="rmsprop", lr=2e-3),
        healthy("batch_norm", norm=True),
        healthy("zero_head", zero_head=True),
        healthy("first_layer_frozen", freeze=True, width=12),
        healthy("after_pretraining", pretrain=True, lr=3e-3),
        healthy("constant_rate_clip_1", one_cycle=False, lr=3e-3, clip=1.0),
        healthy("half_precision_scaled", half=True, scaler=True),
        healthy("dropout_02_adamw", dropout=0.2, optimizer="adamw", wd=0.01),
        healthy("gelu_deeper", activation="gelu", more=2),
        healthy("only_divided_by_255", centred=False),
    ],
)
