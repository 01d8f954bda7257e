"""A small network learns from a large one: distillation of digits with few labels, KLDivLoss and cross-entropy, SGD, GroupNorm."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, digits, healthy, make_optimizer, mild, severe, wrong_rate


def make_teacher() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 160),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(160, 160),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(160, 10),
    )


def fit_teacher(teacher: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer = torch.optim.Adam(teacher.parameters(), 2e-3)
    for _ in range(250):
        batch = torch.randint(0, len(x), (128,))
        optimizer.zero_grad()
        F.cross_entropy(teacher(x[batch]), y[batch]).backward()
        optimizer.step()
    teacher.eval()


class Student(nn.Module):
    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.bug = o.bug
        act = {"relu": nn.ReLU, "elu": nn.ELU, "sigmoid": nn.Sigmoid, "none": nn.Identity}[o.act]
        w = o.width
        norm = {"group": lambda c: nn.GroupNorm(2, c), "batch": nn.BatchNorm2d, "none": lambda c: nn.Identity()}[o.norm]
        self.features = nn.Sequential(nn.Conv2d(1, w, 3, padding=1), norm(w), act())
        for n in range(o.depth):
            self.features.append(
                nn.Sequential(nn.Conv2d(w, w, 3, stride=2 if n == 0 else 1, padding=1), norm(w), act())
            )
        self.drop = nn.Dropout(o.dropout)
        self.classify = nn.Linear(w * 16, 10)
        for m in self.modules():
            if isinstance(m, nn.Conv2d | nn.Linear):
                if o.gain is not None:
                    m.weight.data.mul_(o.gain)
                if o.bug == "same":
                    nn.init.constant_(m.weight, 0.01)
                if o.bias is not None and isinstance(m, nn.Conv2d):
                    nn.init.constant_(m.bias, o.bias)
        if o.zero_head:
            nn.init.zeros_(self.classify.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.features(x)
        if self.bug == "no_gradient_for_features":  # the hint loss needed them detached, this one does not
            features = features.detach()
        return self.classify(self.drop(features.flatten(1)))


def distillation(s: torch.Tensor, t: torch.Tensor, y: torch.Tensor, o: SimpleNamespace) -> torch.Tensor:
    """Hinton's loss: soft targets at temperature T, and the labels that there are (-1: none)."""
    dim = 0 if o.bug == "dim_0" else 1
    T = o.temperature
    reduction = {"elementwise": "mean", "summed": "sum"}.get(o.bug, "batchmean")
    wanted = F.softmax(t / T, dim=dim)
    if o.bug == "not_log":
        soft = F.kl_div(F.softmax(s / T, dim=dim), wanted, reduction=reduction)
    elif o.bug == "softmax_twice":  # the student's answer was a probability already
        soft = F.kl_div(F.log_softmax(F.softmax(s, dim=1) / T, dim=dim), wanted, reduction=reduction)
    elif o.bug == "log_of_softmax":
        soft = (wanted * (wanted.log() - F.softmax(s * T * T, dim=dim).log())).sum(1).mean()
    elif o.bug == "target_is_log":
        soft = F.kl_div(F.log_softmax(s / T, dim=dim), F.log_softmax(t / T, dim=dim), reduction=reduction)
    else:
        soft = F.kl_div(F.log_softmax(s / T, dim=dim), wanted, reduction=reduction)
    if o.bug != "no_t_squared":
        soft = soft * T**2
    hard = F.cross_entropy(s, y, ignore_index=-1, reduction="sum" if o.bug == "summed" else "mean")
    hard = hard if torch.isfinite(hard) else s.sum() * 0  # no label in this batch
    loss = o.alpha * soft + (1 - o.alpha) * hard
    return -loss if o.bug == "negated" else loss


def jiggle(x: torch.Tensor) -> torch.Tensor:
    """Each batch a pixel to a side, or not."""
    dy, dx = torch.randint(-1, 2, (2,)).tolist()
    return torch.roll(x, (dy, dx), (2, 3))


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, y, x_valid, y_valid = digits(seed)
    x, x_valid = ((part / 16 - 0.305).unsqueeze(1) / 0.376 for part in (x, x_valid))
    teacher = make_teacher()
    if o.bug != "not_loaded":
        fit_teacher(teacher, x, y)
    own, own_valid = x, x_valid
    if o.bug == "student_sees_bytes":
        own, own_valid = (x * 0.376 + 0.305) * 255, (x_valid * 0.376 + 0.305) * 255
    some = torch.where(torch.arange(len(y)) < o.labelled, y, torch.full_like(y, -1))
    with torch.no_grad():
        cached = teacher(x)
    if o.bug == "cache_of_other_order":
        cached = cached[torch.randperm(len(cached))]
        some = some[torch.randperm(len(some))]
    if o.bug == "weak_teacher":
        cached = cached + 9 * torch.randn_like(cached)

    student = Student(o)
    params: list = list(student.parameters())
    if o.bug == "teachers_parameters":
        params = [*teacher.parameters(), *student.classify.parameters()]
    if o.bug == "classifier_only":
        params = list(student.classify.parameters())
    optimizer = make_optimizer(
        o.optimizer,
        params,
        o.lr,
        momentum=o.momentum,
        weight_decay=o.wd,
        nesterov=o.momentum > 0 and o.optimizer == "sgd",
    )
    if o.bug == "best_copy":  # of the features that were best so far; the optimizer holds the original
        student.features = copy.deepcopy(student.features)
    total = 20 if o.bug == "cosine_of_epochs" else o.steps
    cosine = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: o.floor + (1 - o.floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, n / total)))
    )
    run = cockpit_core.track(student, optimizer=optimizer, logdir=logdir)

    order = y.argsort() if o.bug == "sorted_cache" else torch.randperm(len(x))
    place = 0
    for step in range(1, o.steps + 1):
        if place + o.batch > len(x):
            place = 0
            if o.bug != "sorted_cache":
                order = torch.randperm(len(x))
        batch = order[place : place + o.batch]
        place = 0 if o.bug == "place_set_back" else place + o.batch
        images = own[batch]
        if o.online:  # the teacher is asked about the very image that the student sees
            images = jiggle(images)
            with torch.no_grad():
                answers = teacher(images)
        else:
            answers = cached[batch]
        loss = distillation(student(images), answers, some[batch], o)
        loss.backward()
        if o.clip:
            nn.utils.clip_grad_norm_(student.parameters(), o.clip)
        optimizer.step()
        if o.bug != "kept":
            student.zero_grad()
        cosine.step()
        if step % 100 == 0 and o.log:
            student.eval()
            with torch.no_grad():
                run.log(val_loss=F.cross_entropy(student(own_valid), y_valid).item())
            student.train()
    run.close()

    student.eval()
    with torch.no_grad():
        return wrong_rate(student(own_valid), y_valid, 10)


PROGRAM = Program(
    name="student",
    half="E",
    train=train,
    settings={
        "width": 8,
        "depth": 1,
        "act": "relu",
        "norm": "group",
        "dropout": 0.0,
        "gain": None,
        "bias": None,
        "zero_head": False,
        "temperature": 4.0,
        "alpha": 0.8,
        "labelled": 200,
        "online": False,
        "batch": 64,
        "optimizer": "sgd",
        "lr": 0.01,
        "momentum": 0.9,
        "wd": 0.0,
        "floor": 0.0,
        "clip": None,
        "log": False,
        "steps": 400,
    },
    faults=[
        severe("learning_rate_too_high", lr=1.5),
        mild("learning_rate_too_low", lr=5e-4),
        severe("schedule_too_fast", bug="cosine_of_epochs", lr=1e-3),
        severe("clipping_too_hard", clip=1e-3),
        severe("gradients_not_zeroed", bug="kept", lr=0.03),
        mild("parameters_not_optimized", bug="classifier_only"),
        mild(
            "optimizer_holds_others",
            ("optimizer_holds_others", "parameters_not_optimized"),
            bug="best_copy",
        ),
        mild(
            "teacher_in_the_optimizer",
            ("optimizer_holds_others", "parameters_not_optimized"),
            bug="teachers_parameters",
        ),
        mild("graph_detached", bug="no_gradient_for_features"),
        mild("batch_repeated", bug="place_set_back"),
        severe("data_not_shuffled", bug="sorted_cache"),
        severe("inputs_not_scaled", bug="student_sees_bytes", norm="none"),
        severe("labels_random", bug="cache_of_other_order"),
        mild("label_noise", bug="weak_teacher"),
        severe("teacher_not_loaded", ("labels_random", "label_noise", "not_learning"), bug="not_loaded", alpha=1.0),
        severe("loss_sign", bug="negated"),
        severe("loss_summed", ("loss_summed", "learning_rate_too_high"), bug="summed", lr=0.05),
        mild("kl_without_log", ("double_softmax", "output_activation", "not_learning"), bug="not_log", alpha=1.0),
        mild("double_softmax", bug="softmax_twice", alpha=1.0),
        mild("softmax_over_batch", bug="dim_0", alpha=1.0),
        severe("log_target", ("not_learning", "loss_sign"), bug="target_is_log", alpha=1.0),
        mild("temperature_not_squared", "learning_rate_too_low", bug="no_t_squared", alpha=1.0, lr=3e-3),
        mild("mean_over_classes", "learning_rate_too_low", bug="elementwise", alpha=1.0, lr=2e-3),
        severe("dead_units", bias=-6.0, norm="none"),
        severe("init_too_large", gain=12.0, norm="none"),
        severe("init_constant", bug="same", norm="none"),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), act="sigmoid", depth=7, norm="none"),
        mild("dropout_too_high", dropout=0.97),
        severe("not_finite", bug="log_of_softmax", temperature=8.0),
    ],
    healthy=[
        healthy("adam", optimizer="adam", lr=3e-3),
        healthy("adamw_online", optimizer="adamw", lr=3e-3, wd=0.02, online=True, steps=500),
        healthy("rmsprop", optimizer="rmsprop", lr=1e-3, momentum=0.0),
        healthy("sgd_without_momentum", momentum=0.0, lr=0.06),
        healthy("batchnorm", norm="batch"),
        healthy("no_norm", norm="none"),
        healthy("deeper_elu", depth=2, act="elu"),
        healthy("wide_val_logged", width=14, log=True),
        healthy("temperature_2", temperature=2.0, lr=0.02),
        healthy("temperature_1_no_labels", temperature=1.0, alpha=1.0, lr=0.03, log=True),
        healthy("all_labels", labelled=1347, alpha=0.5),
        healthy("zero_head", zero_head=True),
        healthy("batch_16", batch=16, lr=4e-3, steps=700),
        healthy("clip_2", clip=2.0, lr=0.02),
        healthy("dropout_02_decay", dropout=0.2, wd=1e-3),
        healthy("constant_rate", floor=1.0, lr=5e-3),
    ],
)
