"""Digits through twelve numbers and back: a convolutional autoencoder, MSELoss, Adam, a DataLoader, nothing logged."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader

import cockpit_core

from .harness import Program, digits, healthy, make_optimizer, mild, severe


class Encoder(nn.Module):
    def __init__(self, o: SimpleNamespace, act: type[nn.Module]) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, o.channels, 3, stride=2, padding=1),
            nn.BatchNorm2d(o.channels) if o.norm else nn.Identity(),
            act(),
            nn.Conv2d(o.channels, 2 * o.channels, 3, stride=2, padding=1),
            act(),
        )
        self.extra = nn.Sequential(*[m for _ in range(o.extra) for m in (nn.Linear(64, 64), act())])
        self.hidden = nn.Sequential(nn.Linear(2 * o.channels * 4, 64), act())
        self.code = nn.Linear(64, o.code)
        self.drop = nn.Dropout(o.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.code(self.drop(self.extra(self.hidden(self.conv(x).flatten(1)))))


class Decoder(nn.Module):
    def __init__(self, o: SimpleNamespace, act: type[nn.Module]) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(o.code, 64), act(), nn.Linear(64, 2 * o.channels * 4), act())
        self.grow = nn.Sequential(
            nn.ConvTranspose2d(2 * o.channels, o.channels, 4, stride=2, padding=1),
            act(),
            nn.ConvTranspose2d(o.channels, 1, 4, stride=2, padding=1),
        )

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        h = self.hidden(z)
        return self.grow(h.view(len(z), -1, 2, 2))


class AutoEncoder(nn.Module):
    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        kinds = {"relu": nn.ReLU, "elu": nn.ELU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "none": nn.Identity}
        self.encoder, self.decoder = Encoder(o, kinds[o.act]), Decoder(o, kinds[o.act])
        last = self.decoder.grow[-1]
        for m in self.modules():
            if not isinstance(m, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
                continue
            if o.init == "constant":
                nn.init.constant_(m.weight, 0.03)
                nn.init.zeros_(m.bias)
            elif o.init == "he":
                nn.init.kaiming_normal_(m.weight)
                nn.init.zeros_(m.bias)
            m.weight.data.mul_(o.gain)
            if o.bias and m is not last:
                nn.init.constant_(m.bias, o.bias)
        if o.zero_head:
            nn.init.zeros_(last.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.encoder(x)
        if self.o.bug == "code_as_array":  # the codes are kept for a plot, and it is the kept ones that go on
            z = torch.tensor(z.detach().cpu().numpy())
        if self.o.bug == "code_softmax":
            z = z.softmax(0)
        out = self.decoder(z)
        if self.o.last == "sigmoid":
            out = torch.sigmoid(out)
        if self.o.last == "relu":
            out = torch.relu(out)
        return out


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, y, x_valid, _ = digits(seed)
    x, x_valid = x[:, None] / 16, x_valid[:, None] / 16
    if o.standard:  # zero mean and unit variance over all pixels
        mean, std = x.mean(), x.std()
        x, x_valid = (x - mean) / std, (x_valid - mean) / std
    target, wanted, look = x, x_valid, x_valid
    if o.input_scale != 1:
        x, look = x * o.input_scale, look * o.input_scale
    if o.target_scale != 1:
        target, wanted = target * o.target_scale, wanted * o.target_scale
    if o.hot:  # some frames are overexposed by far
        x = x.clone()
        x[torch.rand(len(x)) < o.hot] *= 300
    if o.bug == "targets_sorted":  # the files of the targets come in the order of their classes
        target = target[y.argsort()]
    if o.bug == "by_class":
        order = y.argsort()
        x, target = x[order], target[order]
    if o.wrong:
        swap = torch.rand(len(x)) < o.wrong
        target = torch.where(swap[:, None, None, None], target[torch.randperm(len(x))], target)
    if o.blur:
        target = target + o.blur * torch.randn(target.shape)
    if o.bug == "one_broken_file":
        x = x.clone()
        x[17, 0, 3, 3] = float("nan")
    pairs = list(zip(x[: o.rows], target[: o.rows], strict=True))
    loader = DataLoader(pairs, min(o.batch, len(pairs)), shuffle=o.bug != "by_class", drop_last=True)

    model = AutoEncoder(o)
    if o.freeze:
        model.encoder.conv[0].requires_grad_(False)
    params = [p for p in model.parameters() if p.requires_grad]
    if o.bug == "decoder_only":
        params = list(model.decoder.parameters())
    optimizer = make_optimizer(o.optimizer, params, o.lr, weight_decay=o.wd, eps=o.eps, momentum=o.momentum)
    if o.bug == "new_decoder":  # another size of the code was tried, in a cell above
        model.decoder.hidden = AutoEncoder(o).decoder.hidden
    mse = nn.MSELoss(reduction="sum" if o.bug == "sum" else "mean")
    run = cockpit_core.track(model, mse, optimizer, logdir)

    step, kept = 0, None
    while step < o.steps:
        for images, aims in loader:
            if o.bug == "kept_batch":
                images, aims = kept = kept or (images, aims)
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16, enabled=o.half):
                out = model(images)
                if o.bug == "channel_lost":  # [B, 8, 8] against [B, 1, 8, 8]
                    loss = mse(out.squeeze(1), aims)
                else:
                    loss = mse(out, aims)
                if o.bug == "similarity":
                    loss = -loss
                loss = loss * o.weight
            loss.backward()
            if o.bug == "backward_twice":  # of the batch before as well: zero_grad has moved out of the loop
                model.held = getattr(model, "held", None) or [torch.zeros_like(p) for p in model.parameters()]
                for p, h in zip(model.parameters(), model.held, strict=True):
                    h += p.grad
                    p.grad.copy_(h)
            if o.clip:
                nn.utils.clip_grad_norm_(model.parameters(), o.clip)
            if o.drop_every:
                optimizer.param_groups[0]["lr"] = o.lr * o.drop ** (step // o.drop_every)
            optimizer.step()
            step += 1
            if step >= o.steps:
                break
    run.close()

    model.eval()
    with torch.no_grad():
        return ((model(look) - wanted).pow(2).mean() / (wanted - target.mean(0)).pow(2).mean()).item()


PROGRAM = Program(
    name="squeeze",
    half="F",
    train=train,
    settings={
        "channels": 16,
        "code": 12,
        "extra": 0,
        "act": "elu",
        "last": "none",
        "norm": False,
        "dropout": 0.0,
        "init": None,
        "gain": 1.0,
        "bias": 0.0,
        "zero_head": False,
        "freeze": False,
        "standard": True,
        "input_scale": 1.0,
        "target_scale": 1.0,
        "hot": 0.0,
        "wrong": 0.0,
        "blur": 0.0,
        "rows": 1347,
        "half": False,
        "weight": 1.0,
        "batch": 32,
        "optimizer": "adam",
        "lr": 3e-3,
        "momentum": 0.9,
        "wd": 0.0,
        "eps": 1e-8,
        "clip": None,
        "drop_every": 200,
        "drop": 0.5,
        "steps": 550,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.12),
        mild("learning_rate_too_high", lr=0.025, drop=1.0),
        severe("learning_rate_too_low", lr=1e-5),
        mild("learning_rate_too_low", lr=1e-4),
        severe("schedule_too_fast", drop_every=10),
        severe("clipping_too_hard", optimizer="sgd", lr=0.3, clip=1e-3),
        severe("weight_decay_too_high", wd=0.1),
        mild("batch_too_small", ("batch_too_small", "learning_rate_too_high"), batch=1, lr=5e-3, drop=1.0),
        severe("momentum_too_high", optimizer="sgd", lr=0.1, momentum=0.999),
        severe("gradients_not_zeroed", bug="backward_twice"),
        mild("parameters_not_optimized", bug="decoder_only"),
        mild("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="new_decoder"),
        mild("graph_detached", bug="code_as_array"),
        severe("batch_repeated", bug="kept_batch"),
        mild("data_not_shuffled", bug="by_class"),
        severe("inputs_not_scaled", input_scale=255.0),
        mild("inputs_not_scaled", input_scale=24.0),
        mild("input_outliers", hot=0.03),
        severe("targets_not_scaled", target_scale=255.0, optimizer="sgd", lr=0.03),
        severe("labels_random", bug="targets_sorted"),
        mild("label_noise", wrong=0.3),
        severe("loss_sign", bug="similarity"),
        severe("loss_summed", ("loss_summed", "learning_rate_too_high"), bug="sum", optimizer="sgd", lr=0.1),
        severe("loss_broadcast", bug="channel_lost"),
        severe("softmax_over_batch", bug="code_softmax"),
        severe("output_activation", last="sigmoid"),
        mild("output_relu", ("output_activation", "dead_units"), last="relu"),
        severe("dead_units", act="relu", bias=-2.0),
        severe("init_constant", init="constant"),
        severe("init_too_large", gain=6.0),
        severe("init_too_small", ("init_too_small", "vanishing_gradients"), gain=0.1, optimizer="sgd", lr=0.2),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), act="sigmoid", extra=4),
        severe("dropout_too_high", dropout=0.97),
        severe("half_precision_underflow", half=True, weight=1e-6),
        severe("not_finite", bug="one_broken_file"),
        mild("missing_nonlinearity", act="none"),
        mild("overfitting", rows=64, drop=1.0),
    ],
    healthy=[
        healthy("sigmoid_on_pixels", standard=False, last="sigmoid"),
        healthy("pixels_not_centred", standard=False),
        healthy("sgd", optimizer="sgd", lr=0.25, steps=700, drop=1.0),
        healthy("adamw", optimizer="adamw", wd=0.01),
        healthy("nadam", optimizer="nadam"),
        healthy("relu_batch_128", act="relu", batch=128, lr=8e-3),
        healthy("tanh", act="tanh"),
        healthy("batchnorm", norm=True),
        healthy("wider_code", code=20),
        healthy("noise_in_targets", blur=0.3),
        healthy("batch_128", batch=128, lr=6e-3),
        healthy("batch_8", batch=8, lr=2e-3, steps=1000, drop_every=400),
        healthy("zero_head", zero_head=True),
        healthy("first_layer_frozen", freeze=True),
        healthy("clip_1", clip=1.0),
        healthy("fast_rate", lr=8e-3),
    ],
)
