"""Energy label (A to F) of a house from its survey sheet: a plain MLP, F.cross_entropy, SGD without momentum, a bare
loop over slices of a tensor, nothing watched but the training loss."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe, wrong_rate

GRADES = 6
HOUSES, HELD_OUT = 3000, 1000


def survey(n, seed):
    """Area, year, wall U, window U, roof cm, glazing share, storeys, thermostat, boiler efficiency, air changes,
    occupants, garden: in the units of the sheet. And the demand in kWh per m2 and year."""
    g = torch.Generator().manual_seed(seed)

    def u(low, high):
        return low + (high - low) * torch.rand(n, generator=g)

    area, year, wall, window = u(45, 260), u(1900, 2022), u(0.12, 1.9), u(0.7, 4.5)
    roof, glazing, storeys, warm = u(0, 40), u(0.05, 0.6), u(1, 4).round(), u(16, 25)
    boiler, air, people, garden = u(0.6, 1.0), u(0.1, 1.6), u(1, 6).round(), u(0, 900)
    shell = wall * (1 - glazing) + window * glazing + 1.2 / storeys / (1 + roof / 8)
    demand = (shell * 40 * (100 / area) ** 0.25 + 30 * air) * (warm - 12) / 8 / boiler - 3 * people
    table = torch.stack([area, year, wall, window, roof, glazing, storeys, warm, boiler, air, people, garden], 1)
    return table, demand


def load(o):
    x, demand = survey(HOUSES, 11)
    xv, demand_v = survey(HELD_OUT, 12)
    edges = torch.quantile(demand, torch.arange(1, GRADES) / GRADES)
    y, yv = torch.bucketize(demand, edges), torch.bucketize(demand_v, edges)
    if o.bug == "log_of_roof":  # "insulation works logarithmically": but some roofs have none
        x[:, 4], xv[:, 4] = x[:, 4].round().log(), xv[:, 4].round().log()
    if o.bug == "columns_sorted":
        x = x.sort(0).values  # meant to sort the houses by area
    if o.houses:
        x, y = x[: o.houses], y[: o.houses]

    if o.scale == "standard":
        mean, std = x.mean(0), x.std(0).clamp_min(1e-6)
        x, xv = (x - mean) / std, (xv - mean) / std
    elif o.scale == "unit":
        low, span = x.amin(0), x.amax(0) - x.amin(0)
        x, xv = (x - low) / span * 2 - 1, (xv - low) / span * 2 - 1
    if o.bug == "missing_code":  # empty cells are coded as 999, and this was done after scaling
        x[torch.rand(x.shape) < o.empty_cells] = 999.0
    if o.bug == "old_label":  # the label on the old certificate, unknown for new houses
        x = torch.cat([x, y[:, None].float() - 2.5], 1)
        xv = torch.cat([xv, torch.zeros(HELD_OUT, 1)], 1)
    y = corrupt(y, o.misread, GRADES)
    if o.bug == "by_grade":
        order = y.argsort()
        x, y = x[order], y[order]
    return x, y, xv, yv


class Net(nn.Module):
    def __init__(self, columns, o):
        super().__init__()
        sizes = [columns] + [o.width] * o.depth
        layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
        self.layers = layers if o.bug == "plain_list" else nn.ModuleList(layers)
        self.head = nn.Linear(o.width, GRADES)
        self.act = {"relu": F.relu, "tanh": torch.tanh, "silu": F.silu, "elu": F.elu, "sigmoid": torch.sigmoid}[o.act]
        self.o = o

    def forward(self, x):
        for k, layer in enumerate(self.layers):
            x = layer(x)
            if self.o.bug != "act_forgotten":
                x = self.act(x)
            if self.o.drop:
                x = F.dropout(x, self.o.drop, self.training)
            if self.o.bug == "numpy_roundtrip" and k == len(self.layers) - 1:
                x = torch.from_numpy(x.detach().numpy())  # left over from plotting the features
        return self.head(x)


def initialise(net, o):
    for layer in net.layers:
        if o.init == "he":
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
        elif o.init == "xavier":
            nn.init.xavier_uniform_(layer.weight)
        elif o.init == "normal":
            nn.init.normal_(layer.weight, std=o.init_std)
        if o.bias is not None:
            nn.init.constant_(layer.bias, o.bias)
    if o.zero_head:
        nn.init.zeros_(net.head.weight)


def train(o, seed, logdir):
    x, y, xv, yv = load(o)
    n, batch = len(x), min(o.batch, len(x))
    net = Net(x.shape[1], o)
    initialise(net, o)
    if o.pretrained:
        first = torch.optim.SGD(net.parameters(), lr=0.15)
        for _ in range(o.pretrained):
            rows = torch.randint(0, n, (64,))
            first.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            first.step()
    if o.frozen:
        net.layers[0].requires_grad_(False)

    params = [p for p in net.parameters() if p.requires_grad]
    opt = make_optimizer(o.optimizer, params, o.lr, momentum=o.momentum, weight_decay=o.decay, nesterov=o.nesterov)
    schedule = {
        "none": lambda s: 1.0,
        "linear": lambda s: 1 - s / o.steps,
        "warmup": lambda s: min(1.0, (s + 1) / 40),
        "stairs": lambda s: 0.5 ** (4 * s // o.steps),
        "power": lambda s: o.gamma**s,
    }[o.schedule]
    sched = torch.optim.lr_scheduler.LambdaLR(opt, schedule)
    run = cockpit_core.track(net, None, opt, logdir=logdir)

    step = micro = 0
    while step < o.steps:
        if o.bug != "by_grade":
            order = torch.randperm(n)
            x, y = x[order], y[order]
            if o.bug == "only_x_reordered":
                y = y[order.argsort()]
        for i in range(0, n - batch + 1, batch):
            xb, yb = x[i : i + batch], y[i : i + batch]
            if o.bug == "slice_from_zero":
                if step == 0 and i == 0:
                    kept = x[:batch].clone(), y[:batch].clone()
                xb, yb = kept
            if micro % o.accumulate == 0 and o.bug != "no_zero_grad":
                opt.zero_grad()
            scores = net(xb)
            if o.gradient_noise:
                scores = scores + 0.1 * torch.randn_like(scores)
            if o.bug == "softmax_twice":
                scores = F.softmax(scores, dim=1)
            if o.bug == "softmax_dim_0":
                loss = F.nll_loss(F.log_softmax(scores, dim=0), yb)
            elif o.bug == "summed":
                loss = F.cross_entropy(scores, yb, reduction="sum")
            else:
                loss = F.cross_entropy(scores, yb, label_smoothing=o.smooth)
            if o.bug == "ascent":
                loss = -loss
            (loss / o.accumulate).backward()
            micro += 1
            if micro % o.accumulate:
                continue
            if o.clip:
                nn.utils.clip_grad_norm_(net.parameters(), o.clip)
            if o.bug != "no_step":
                opt.step()
            sched.step()
            step += 1
            if step >= o.steps:
                break
    run.close()

    net.eval()
    with torch.no_grad():
        return wrong_rate(net(xv), yv, GRADES)


PROGRAM = Program(
    name="energy_label",
    half="I",
    train=train,
    settings={
        "houses": None,
        "scale": "standard",
        "empty_cells": 0.01,
        "misread": 0.0,
        "width": 64,
        "depth": 2,
        "act": "relu",
        "drop": 0.0,
        "init": "he",
        "init_std": 1.0,
        "bias": None,
        "zero_head": False,
        "pretrained": 0,
        "frozen": False,
        "batch": 48,
        "accumulate": 1,
        "gradient_noise": False,
        "smooth": 0.0,
        "optimizer": "sgd",
        "lr": 0.2,
        "momentum": 0.0,
        "nesterov": False,
        "decay": 0.0,
        "schedule": "none",
        "gamma": 1.0,
        "clip": None,
        "steps": 600,
    },
    faults=[
        severe("learning_rate_too_high", lr=6.0),
        mild("learning_rate_too_high", lr=2.0),
        severe("learning_rate_too_low", lr=7e-4),
        mild("learning_rate_too_low", lr=7e-3),
        severe("schedule_too_fast", schedule="power", gamma=0.9),
        severe("clipping_too_hard", clip=1e-3),
        mild("clipping_too_hard", clip=0.1),
        mild("weight_decay_too_high", decay=0.05),
        severe("batch_too_small", ("batch_too_small", "learning_rate_too_high"), batch=2),
        severe("gradients_not_zeroed", bug="no_zero_grad"),
        severe("layers_in_a_list", "parameters_not_optimized", bug="plain_list"),
        severe("graph_detached", ("graph_detached", "parameters_not_optimized"), bug="numpy_roundtrip"),
        severe("nothing_moves", ("nothing_moves", "parameters_not_optimized"), bug="no_step"),
        severe("batch_repeated", bug="slice_from_zero"),
        severe("data_not_shuffled", bug="by_grade"),
        severe("inputs_not_scaled", scale="raw"),
        severe("input_outliers", bug="missing_code"),
        severe("labels_random", bug="only_x_reordered"),
        mild("label_noise", misread=0.4),
        severe("loss_sign", bug="ascent"),
        severe("loss_summed", ("loss_summed", "learning_rate_too_high"), bug="summed"),
        mild("double_softmax", ("double_softmax", "output_activation"), bug="softmax_twice"),
        severe("softmax_over_batch", bug="softmax_dim_0"),
        severe("dead_units", bias=-4.0),
        severe("samples_mixed", ("samples_mixed", "labels_random"), bug="columns_sorted"),
        severe("target_in_inputs", bug="old_label"),
        severe("missing_nonlinearity", bug="act_forgotten"),
        severe("not_finite", bug="log_of_roof"),
    ],
    healthy=[
        healthy("rate_third", lr=0.1),
        healthy("rate_double", lr=0.4),
        healthy("momentum", momentum=0.9, lr=0.03),
        healthy("nesterov", momentum=0.9, nesterov=True, lr=0.04),
        healthy("adam", optimizer="adam", lr=3e-3),
        healthy("adamw", optimizer="adamw", lr=4e-3, decay=0.02),
        healthy("rmsprop", optimizer="rmsprop", lr=2e-3),
        healthy("linear_decay", schedule="linear", lr=0.3),
        healthy("warmed_up", schedule="warmup"),
        healthy("stairs", schedule="stairs", lr=0.3),
        healthy("batch_24", batch=24, lr=0.12),
        healthy("batch_128", batch=128, lr=0.3),
        healthy("all_houses", batch=HOUSES, lr=0.5, steps=400),
        healthy("accumulated", batch=16, accumulate=4),
        healthy("wide", width=160),
        healthy("three_layers", depth=3),
        healthy("tanh_xavier", act="tanh", init="xavier"),
        healthy("silu", act="silu", lr=0.3),
        healthy("unit_range", scale="unit", lr=0.3),
        healthy("zero_head", zero_head=True),
        healthy("fine_tuned", pretrained=500, frozen=True, lr=0.05, steps=200),
        healthy("few_misread", misread=0.03),
        healthy("smoothed", smooth=0.05),
        healthy("clip_1", clip=1.0),
        healthy("small_decay", decay=5e-4),
        healthy("fewer_houses", houses=1500),
        healthy("noisy_scores", gradient_noise=True),
    ],
)
