"""A response surface of six inputs with noise: tanh MLP as a class, nn.MSELoss, Adam, batches by randint."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
from torch import nn, optim

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

N, N_TEST, DIM = 3000, 1000, 6


def surface(u: torch.Tensor) -> torch.Tensor:
    a, b, c, d, e, f = u.unbind(1)
    return torch.sin(2.0 * a) + 0.7 * b * c + torch.cos(d + 0.8 * e) * (0.6 + 0.4 * f) + 0.3 * f


class Surrogate(nn.Module):
    def __init__(self, dim: int, o: SimpleNamespace):
        super().__init__()
        act = {"tanh": nn.Tanh, "silu": nn.SiLU, "relu": nn.ReLU, "sigmoid": nn.Sigmoid, "none": nn.Identity}[o.act]
        self.first = nn.Linear(dim, o.width)
        self.hidden = nn.ModuleList([nn.Linear(o.width, o.width) for _ in range(o.depth)])
        self.norms = nn.ModuleList([nn.LayerNorm(o.width) if o.norm else nn.Identity() for _ in range(o.depth)])
        self.act, self.drop = act(), nn.Dropout(o.dropout)
        self.out = nn.Linear(o.width, o.outputs)
        self.o = o
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        for layer in [self.first, *self.hidden, self.out]:
            if self.o.init == "xavier":
                nn.init.xavier_uniform_(layer.weight)
                layer.bias.zero_()
            layer.weight.mul_(self.o.gain)
        if self.o.shift:
            for layer in [self.first, *self.hidden]:
                layer.bias.fill_(self.o.shift)
        if self.o.zero_head:
            self.out.weight.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.act(self.first(x))
        for layer, norm in zip(self.hidden, self.norms, strict=False):
            if self.o.bug == "numpy_between":
                h = torch.from_numpy(h.detach().numpy())
            step = self.drop(self.act(norm(layer(h))))
            h = h + step if self.o.skip else step
        y = self.out(h)
        return {"none": lambda v: v, "relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh}[self.o.last](y)


class GaussianLoss(nn.Module):
    """Negative log likelihood for a known, small spread of the measurement; below zero if all goes well."""

    def forward(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        sigma = 0.2
        return (((out - y) / sigma) ** 2 / 2 + math.log(sigma)).mean()


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    g = torch.Generator().manual_seed(90)
    u = 4 * torch.rand(N + N_TEST, DIM, generator=g) - 2
    truth = surface(u)
    y = truth + o.noise * truth.std() * torch.randn(len(truth), generator=g)
    if o.tails:
        y = y + o.tails * torch.distributions.StudentT(1.5).sample(y.shape)
    middle, spread = truth.mean(), truth.std()
    y, truth = (y - middle) / spread, (truth - middle) / spread
    y, truth = y * o.y_scale + o.y_offset, truth * o.y_scale + o.y_offset
    x = u / 1.155 * o.x_scale + o.x_offset
    if o.bug == "columns_zero":
        x[:, :2] = 0.0
    test_x, test_truth = x[N:], truth[N:]
    if o.bug == "target_column":
        x = torch.cat([x, y[:, None]], 1)
        test_x = torch.cat([test_x, torch.zeros(N_TEST, 1)], 1)
    x, y = x[:N].clone(), y[:N, None].clone()
    if o.outliers:
        x[torch.rand(x.shape) < o.outliers] *= o.outlier_size
    if o.bug == "wrong_rows":
        y = y[torch.randperm(N)]
    if o.mislabelled:
        rows = (torch.rand(N) < o.mislabelled).nonzero()[:, 0]
        y[rows] = y[rows[torch.randperm(len(rows))]] * 2
    if o.bug == "by_target":
        order = y[:, 0].argsort()
        x, y = x[order], y[order]
    batch = min(o.batch, N)

    net = Surrogate(x.shape[1], o)
    if o.earlier:
        before = optim.Adam(net.parameters(), lr=3e-3)
        for _ in range(o.earlier):
            rows = torch.randint(0, N, (128,))
            before.zero_grad()
            nn.functional.mse_loss(net(x[rows]), y[rows]).backward()
            before.step()
    if o.freeze:
        for p in net.first.parameters():
            p.requires_grad_(False)
    criterion = {"mse": nn.MSELoss(), "huber": nn.HuberLoss(), "l1": nn.SmoothL1Loss(), "nll": GaussianLoss()}[o.loss]
    if o.reduction != "mean":
        criterion = nn.MSELoss(reduction=o.reduction)
    params = [p for p in net.parameters() if p.requires_grad]
    if o.bug == "plain_list":  # as if the hidden layers were kept in a list
        params = [p for name, p in net.named_parameters() if "hidden" not in name]
    opt = make_optimizer(
        o.optimizer, params, o.lr, weight_decay=o.wd, eps=o.eps, momentum=o.momentum, betas=(o.beta1, 0.999)
    )
    if o.earlier and o.resume:
        opt.load_state_dict(before.state_dict())
    if o.bug == "model_again":
        net = Surrogate(x.shape[1], o)
    shapes = {
        "cosine": lambda i: 0.5 + 0.5 * math.cos(math.pi * i / o.steps),
        "constant": lambda i: 1.0,
        "warmup": lambda i: min(1, (i + 1) / 60),
        "linear": lambda i: max(0.0, 1 - i / o.steps),
        "decay": lambda i: o.gamma**i,
    }
    schedule = optim.lr_scheduler.LambdaLR(opt, shapes[o.schedule])
    run = cockpit_core.track(net, criterion, opt, logdir=logdir)

    net.train()
    start = 0
    for i in range(o.steps):
        if i % o.zero_every == 0:
            opt.zero_grad()
        for _ in range(o.accumulate):
            if o.bug == "by_target":
                rows = (torch.arange(batch) + start) % N
                start += batch
            elif o.bug == "same_rows":
                torch.manual_seed(seed)  # "for reproducibility"
                rows = torch.randint(0, N, (batch,))
            else:
                rows = torch.randint(0, N, (batch,))
            out, target = net(x[rows]), y[rows]
            if o.bug == "flat_target":
                target = target.reshape(-1)
            loss = criterion(out, target)
            if o.bug == "relative":  # per cent of the target, through the logarithm
                loss = (torch.log(out) - torch.log(target)).pow(2).mean()
            (loss / o.accumulate if o.divide else loss).backward()
        if o.clip:
            nn.utils.clip_grad_norm_(net.parameters(), o.clip)
        opt.step()
        schedule.step()
    run.close()

    net.eval()
    with torch.no_grad():
        return ((net(test_x)[:, 0] - test_truth).pow(2).mean() / test_truth.var()).item()


PROGRAM = Program(
    name="waves",
    half="G",
    train=train,
    settings={
        "width": 64,
        "depth": 2,
        "act": "tanh",
        "last": "none",
        "outputs": 1,
        "norm": False,
        "skip": False,
        "dropout": 0.0,
        "init": "xavier",
        "gain": 1.0,
        "shift": 0.0,
        "zero_head": False,
        "freeze": False,
        "earlier": 0,
        "resume": False,
        "noise": 0.3,
        "tails": 0.0,
        "y_scale": 1.0,
        "y_offset": 0.0,
        "x_scale": 1.0,
        "x_offset": 0.0,
        "outliers": 0.0,
        "outlier_size": 60.0,
        "mislabelled": 0.0,
        "batch": 96,
        "accumulate": 1,
        "divide": True,
        "zero_every": 1,
        "loss": "mse",
        "reduction": "mean",
        "optimizer": "adam",
        "lr": 8e-3,
        "beta1": 0.9,
        "momentum": 0.9,
        "wd": 0.0,
        "eps": 1e-8,
        "schedule": "cosine",
        "gamma": 1.0,
        "clip": None,
        "steps": 450,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.24),
        mild("learning_rate_too_high", lr=0.06),
        severe("learning_rate_too_low", lr=2e-5),
        mild("learning_rate_too_low", lr=2e-4),
        mild("schedule_too_fast", schedule="decay", gamma=0.98),
        severe("clipping_too_hard", clip=1e-3, optimizer="sgd", lr=0.1),
        mild("weight_decay_too_high", wd=0.03),
        severe("momentum_too_high", optimizer="sgd", lr=0.05, momentum=0.999),
        severe("gradients_not_zeroed", zero_every=1000),
        mild("gradients_not_zeroed", zero_every=5),
        mild("parameters_not_optimized", bug="plain_list"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="model_again"),
        mild("graph_detached", bug="numpy_between"),
        severe("batch_repeated", bug="same_rows"),
        severe("data_not_shuffled", bug="by_target"),
        severe("inputs_not_scaled", ("inputs_not_scaled", "saturated_units"), x_scale=30.0, x_offset=300.0),
        mild("inputs_not_scaled", ("inputs_not_scaled", "saturated_units"), x_scale=16.0),
        severe("targets_not_scaled", y_scale=1000.0, y_offset=3000.0),
        mild("targets_not_scaled", y_scale=30.0, y_offset=100.0),
        severe("labels_random", bug="wrong_rows"),
        mild("label_noise", mislabelled=0.4),
        severe("loss_broadcast", bug="flat_target"),
        severe("init_too_large", ("init_too_large", "saturated_units"), gain=8.0),
        severe("init_too_small", ("init_too_small", "vanishing_gradients"), gain=0.02, optimizer="sgd", lr=0.05),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), act="sigmoid", depth=6),
        severe("dropout_too_high", dropout=0.97),
        mild("output_activation", ("output_activation", "saturated_units"), last="tanh"),
        severe("not_finite", bug="relative"),
        severe("target_in_inputs", bug="target_column"),
        severe("constant_feature", bug="columns_zero"),
        severe("missing_nonlinearity", act="none"),
    ],
    healthy=[
        healthy("sgd_momentum", optimizer="sgd", lr=0.1),
        healthy("adamw", optimizer="adamw", wd=0.05),
        healthy("nadam", optimizer="nadam", lr=4e-3),
        healthy("rmsprop", optimizer="rmsprop", lr=3e-3, momentum=0.0),
        healthy("adagrad", optimizer="adagrad", lr=0.04, schedule="constant"),
        healthy("rate_half", lr=3e-3),
        healthy("rate_double", lr=0.012),
        healthy("constant_rate", schedule="constant", lr=4e-3),
        healthy("warmup", schedule="warmup", lr=4e-3),
        healthy("linear_to_zero", schedule="linear"),
        healthy("batch_32", batch=32),
        healthy("batch_all", batch=3000, steps=250, lr=8e-3),
        healthy("silu", act="silu"),
        healthy("relu_wide", act="relu", width=128),
        healthy("layernorm_skip", norm=True, skip=True),
        healthy("zero_head", zero_head=True),
        healthy("noisy_targets", noise=0.5, width=32),
        healthy("heavy_tails_huber", tails=0.1, loss="huber"),
        healthy("likelihood_below_zero", loss="nll"),
        healthy("clip_1", clip=1.0),
        healthy("resumed", earlier=200, resume=True, lr=3e-3, steps=250),
        healthy("longer", steps=900, lr=4e-3),
    ],
)
