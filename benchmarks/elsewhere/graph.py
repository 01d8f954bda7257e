"""Communities in one synthetic graph: a two-layer graph network with own message passing,
the whole graph in each step, validation logged."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe, wrong_rate

NODES, CLASSES, FEATURES = 360, 5, 20


def world(isolated: bool, weights: list[float]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Neighbour lists as an edge table, features that say little by themselves, and the community of each node."""
    label = torch.multinomial(torch.tensor(weights), NODES, replacement=True)
    chance = torch.where(label[:, None] == label[None], 0.05, 0.006)
    adjacency = (torch.rand(NODES, NODES) < chance).triu(1)
    adjacency = adjacency | adjacency.T
    if isolated:
        adjacency[:15] = False
        adjacency[:, :15] = False
    centres = torch.randn(CLASSES, FEATURES) * 0.45
    return adjacency.nonzero().T, centres[label] + torch.randn(NODES, FEATURES), label


class Hop(nn.Module):
    """Mixes each node with its neighbours."""

    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        self.own, self.other = nn.Linear(cin, cout), nn.Linear(cin, cout, bias=False)

    def forward(self, h: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        source, sink = edges
        message = torch.zeros_like(h).index_add(0, sink, h[source] * weight[:, None])
        return self.own(h) + self.other(message)


class GraphNet(nn.Module):
    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        sizes = [FEATURES] + [o.width] * (o.hops - 1) + [CLASSES]
        self.hops = nn.ModuleList(Hop(a, b) for a, b in itertools.pairwise(sizes))
        self.act = {"relu": F.relu, "tanh": torch.tanh, "elu": F.elu, "sigmoid": torch.sigmoid}[o.activation]

    def forward(self, h: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        for n, hop in enumerate(self.hops):
            h = hop(F.dropout(h, self.o.dropout, self.training), edges, weight)
            if n < len(self.hops) - 1:
                h = self.act(h)
                if self.o.bug == "hidden_detached":
                    h = h.detach()
        if self.o.bug == "softmax_nodes":
            return h.log_softmax(0)
        return h.softmax(-1) if self.o.bug == "softmax_in_model" else h


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    edges, x, label = world(o.bug == "isolated", o.weights)
    order = torch.randperm(NODES)
    fit, valid = order[: o.labelled], order[200:]
    degree = torch.zeros(NODES).index_add(0, edges[1], torch.ones(edges.shape[1]))
    if o.bug != "isolated":
        degree = degree.clamp(min=1)
    root = degree**-0.5
    if o.bug == "isolated":  # nodes without neighbours, kept by a loop to themselves of weight 1/0
        loops = torch.arange(NODES).expand(2, -1)
        edges = torch.cat([edges, loops], 1)
    weight = root[edges[0]] * root[edges[1]]
    if o.bug == "raw_features":
        x = x * torch.logspace(-1, 4, FEATURES)
    if o.bug == "few_huge":
        hit = torch.rand(x.shape) < 0.02
        x = torch.where(hit, x * 1000, x)
    known = corrupt(label, o.noise, CLASSES)
    if o.bug == "renumbered":  # nodes were renumbered, labels were not
        known = label[torch.randperm(NODES)]

    net = GraphNet(o)
    for p in net.parameters():
        if o.init is not None and p.dim() > 1:
            nn.init.normal_(p, std=o.init) if o.init > 0 else nn.init.constant_(p, 0.1)
    chosen = net.hops[-1:].parameters() if o.bug == "last_hop_only" else net.parameters()
    opt = make_optimizer(o.optimizer, chosen, o.lr, weight_decay=o.wd, eps=o.eps, momentum=o.momentum)
    sched = torch.optim.lr_scheduler.StepLR(opt, o.every, o.gamma)
    run = cockpit_core.track(net, optimizer=opt, logdir=logdir)

    for epoch in range(o.steps):
        net.train()
        opt.zero_grad()
        out = net(x, edges, weight)
        loss = F.cross_entropy(out[fit], known[fit])
        if o.bug == "maximised":
            loss = F.softmax(out[fit], -1).gather(1, known[fit, None]).mean()
        loss.backward()
        if o.clip:
            nn.utils.clip_grad_norm_(net.parameters(), o.clip)
        opt.step()
        sched.step()
        if epoch % 50 == 49:
            net.eval()
            with torch.no_grad():
                scores = net(x, edges, weight)[valid]
                hits = (scores.argmax(-1) == label[valid]).float().mean().item()
                run.log(valid_loss=F.cross_entropy(scores, label[valid]).item(), valid_accuracy=hits)
    run.close()
    net.eval()
    with torch.no_grad():
        return wrong_rate(net(x, edges, weight)[valid], label[valid], CLASSES)


PROGRAM = Program(
    name="graph",
    half="A",
    train=train,
    settings={
        "width": 32,
        "hops": 2,
        "activation": "relu",
        "dropout": 0.3,
        "weights": [1.0] * CLASSES,
        "labelled": 200,
        "noise": 0.0,
        "init": None,
        "optimizer": "adam",
        "lr": 0.01,
        "wd": 5e-4,
        "eps": 1e-8,
        "momentum": 0.9,
        "every": 150,
        "gamma": 0.3,
        "steps": 300,
        "clip": None,
    },
    faults=[
        severe("learning_rate_too_high", lr=3.0),
        severe("learning_rate_too_low", lr=2e-6),
        mild("learning_rate_too_low", lr=5e-5),
        severe("schedule_too_fast", every=1, gamma=0.8),
        severe("weight_decay_too_high", optimizer="adamw", wd=20.0),
        mild("weight_decay_too_high", wd=0.5),
        severe("dropout_too_high", dropout=0.97),
        severe("labels_random", bug="renumbered"),
        mild("label_noise", noise=0.5),
        severe("inputs_not_scaled", bug="raw_features"),
        severe("input_outliers", bug="few_huge"),
        severe("not_finite", bug="isolated"),
        severe("loss_sign", bug="maximised"),
        severe("double_softmax", bug="softmax_in_model", optimizer="sgd", lr=0.3),
        severe("softmax_over_batch", bug="softmax_nodes"),
        severe("graph_detached", bug="hidden_detached"),
        severe("parameters_not_optimized", bug="last_hop_only"),
        severe("init_constant", init=-1.0),
        severe("init_too_large", init=30.0),
        severe("adam_eps_too_large", eps=1.0),
        severe("vanishing_gradients", hops=9, activation="sigmoid", dropout=0.0),
        severe("overfitting", labelled=15, dropout=0.0, wd=0.0),
        severe("clipping_too_hard", optimizer="sgd", lr=0.5, clip=1e-4),
    ],
    healthy=[
        healthy("lr_3e-3", lr=3e-3),
        healthy("lr_003", lr=0.03, gamma=0.1),
        healthy("sgd", optimizer="sgd", lr=0.3),
        healthy("no_dropout", dropout=0.0, wd=5e-3, steps=250),
        healthy("dropout_half", dropout=0.5),
        healthy("three_hops", hops=3),
        healthy("tanh", activation="tanh"),
        healthy("elu_flat", activation="elu", gamma=1.0),
        healthy("imbalanced", weights=[4.0, 2.0, 1.0, 1.0, 0.7]),
        healthy("narrow", width=12, dropout=0.1),
        healthy("small_init", init=0.05),
        healthy("clip_1", clip=1.0, noise=0.05),
    ],
)
