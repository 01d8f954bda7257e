"""Faults as transformations of a program: of its settings, its model, its data, or its loop. Severe and mild."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from benchmarks.diagnosis.programs import Data, Program, Settings, make_optimizer


@dataclass
class Job:
    """One run, to be changed in place by a fault. The loop reads the flags."""

    program: Program
    settings: Settings
    data: Data
    model: nn.Module
    loss: nn.Module
    optimizer: torch.optim.Optimizer | None = None
    zero_grad: bool = True
    sign: float = 1.0
    shuffle: bool = True
    same_batch: bool = False
    eval_mode: bool = False
    divide: bool = True  # the loss by the number of accumulated parts
    output: Callable[[Tensor], Tensor] | None = None  # what is done to the output before the loss
    mild: bool = False

    def remake_optimizer(self) -> None:
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(self.settings.optimizer, parameters, self.settings)


Fault = Callable[[Job], None]
ADAPTIVE = ("adam", "adamw", "rmsprop", "adagrad")
MATRICES = (nn.Linear, nn.Conv1d, nn.Conv2d)


def change(**by: tuple[float, float]) -> Fault:
    """Set settings to (severe, mild)."""

    def apply(job: Job) -> None:
        job.settings = replace(job.settings, **{name: pair[job.mild] for name, pair in by.items()})  # type: ignore[arg-type]

    return apply


def lr_high(job: Job) -> None:
    factor = (40, 10) if job.settings.optimizer in ADAPTIVE else (25, 6)
    job.settings.lr *= factor[job.mild]


def lr_low(job: Job) -> None:
    job.settings.lr /= (300, 30)[job.mild]


def schedule_fast(job: Job) -> None:
    job.settings.schedule, job.settings.decay = "exponential", (0.95, 0.98)[job.mild]


def decay_high(job: Job) -> None:
    job.settings.weight_decay = (
        (0.03, 0.006)[job.mild] / job.settings.lr if job.settings.optimizer == "adamw" else (0.3, 0.06)[job.mild]
    )


def batch_small(job: Job) -> None:
    job.settings.batch = (2, 4)[job.mild]


def momentum_high(job: Job) -> None:
    job.settings.optimizer = "momentum" if job.settings.optimizer == "sgd" else job.settings.optimizer
    job.settings.momentum = (0.999, 0.99)[job.mild]


def not_zeroed(job: Job) -> None:
    job.zero_grad = False


def not_optimized(job: Job) -> None:
    """Only the last layer (severe), or all but the first two tensors (mild)."""
    parameters = list(job.model.parameters())
    job.optimizer = make_optimizer(
        job.settings.optimizer, parameters[2:] if job.mild else parameters[-2:], job.settings
    )


def detached(job: Job) -> None:
    """Behind the middle layer that is called (severe), or behind the first (mild)."""
    layers = [m for m in job.model.modules() if isinstance(m, (*MATRICES, nn.GRU, nn.Embedding))]
    chosen = layers[0 if job.mild else max(0, len(layers) // 2 - 1)]
    chosen.register_forward_hook(lambda module, args, output: cut(output))


def cut(output: object) -> object:
    if isinstance(output, tuple):
        return tuple(cut(part) for part in output)
    return output.detach() if isinstance(output, Tensor) else output


def same_batch(job: Job) -> None:
    job.same_batch = True


def sorted_data(job: Job) -> None:
    """By label, or by the target's mean."""
    data = job.data
    order = data.y.reshape(len(data.y), -1).float().mean(1).argsort()
    data.x, data.y = data.x[order], data.y[order]
    job.shuffle = False
    if job.mild:  # a tenth of the data out of order
        stray = torch.randperm(len(order), generator=torch.Generator().manual_seed(0))[: len(order) // 4]
        data.x[stray], data.y[stray] = data.x[stray.flip(0)].clone(), data.y[stray.flip(0)].clone()


def raw_inputs(job: Job) -> None:
    factor = (255.0, 16.0)[job.mild]
    job.data.x, job.data.valid_x = job.data.x * factor, job.data.valid_x * factor


def outliers(job: Job) -> None:
    share, factor = ((0.03, 60.0), (0.01, 15.0))[job.mild]
    hit = torch.rand(len(job.data.x), generator=torch.Generator().manual_seed(1)) < share
    job.data.x = job.data.x.clone()
    job.data.x[hit] *= factor


def targets_raw(job: Job) -> None:
    scale, shift = ((1000.0, 3000.0), (30.0, 100.0))[job.mild]
    data = job.data
    data.y, data.valid_y = data.y * scale + shift, data.valid_y * scale + shift


def labels_random(job: Job) -> None:
    order = torch.randperm(len(job.data.y), generator=torch.Generator().manual_seed(2))
    job.data.y = job.data.y[order]


def label_noise(job: Job) -> None:
    hit = torch.rand(len(job.data.y), generator=torch.Generator().manual_seed(3)) < (0.4, 0.25)[job.mild]
    wrong = job.data.y[torch.randperm(len(job.data.y), generator=torch.Generator().manual_seed(4))]
    job.data.y = torch.where(hit.reshape(-1, *[1] * (job.data.y.dim() - 1)), wrong, job.data.y)


def wrong_sign(job: Job) -> None:
    job.sign = -1.0


def summed(job: Job) -> None:
    job.loss.reduction = "sum"


def double_softmax(job: Job) -> None:
    job.output = lambda z: z.softmax(1)


def softmax_over_batch(job: Job) -> None:
    job.output = lambda z: z.softmax(0)


def broadcast(job: Job) -> None:
    job.data.y, job.data.valid_y = job.data.y[:, 0], job.data.valid_y[:, 0]


def dead_units(job: Job) -> None:
    biased = [m for m in job.model.modules() if isinstance(m, MATRICES) and m.bias is not None][:-1]
    for module in biased:
        nn.init.constant_(module.bias, (-4.0, -1.0)[job.mild])


def scale_weights(factor: Callable[[Job], float]) -> Fault:
    def apply(job: Job) -> None:
        with torch.no_grad():
            for module in job.model.modules():
                if isinstance(module, (*MATRICES, nn.GRU, nn.Embedding)):
                    for p in module.parameters():
                        p.mul_(factor(job))

    return apply


def sigmoid_deep(job: Job) -> None:
    job.settings.activation, job.settings.depth = "sigmoid", (6, 3)[job.mild]
    job.model = job.program.make_model(job.settings)


def dropout_high(job: Job) -> None:
    job.settings.dropout = (0.97, 0.85)[job.mild]
    job.model = job.program.make_model(job.settings)


def eval_mode(job: Job) -> None:
    job.settings.dropout = max(job.settings.dropout, 0.2)
    job.model = job.program.make_model(job.settings)
    job.eval_mode = True


def not_divided(job: Job) -> None:
    job.settings.accumulate, job.divide = (16, 4)[job.mild], False


def eps_high(job: Job) -> None:
    job.remake_optimizer()
    assert job.optimizer is not None
    for group in job.optimizer.param_groups:
        group["eps"] = (0.1, 0.01)[job.mild]


def not_shifted(job: Job) -> None:
    job.data.y = job.data.x.clone()


ANY = ("classes", "values", "tokens", "reconstruction")
FLOAT = ("classes", "values", "reconstruction")
FAULTS: dict[str, tuple[Fault, tuple[str, ...], tuple[str, ...]]] = {
    # name: what to do, kinds of programs it fits, diagnoses that name it (equivalent causes)
    "lr_high": (lr_high, ANY, ("learning_rate_too_high",)),
    "lr_low": (lr_low, ANY, ("learning_rate_too_low",)),
    "schedule_fast": (schedule_fast, ANY, ("schedule_too_fast", "learning_rate_too_low")),
    "clip_hard": (change(clip=(1e-3, 0.03)), ANY, ("clipping_too_hard", "learning_rate_too_low")),
    "decay_high": (decay_high, ANY, ("weight_decay_too_high",)),
    "batch_small": (batch_small, ANY, ("batch_too_small", "learning_rate_too_high")),
    "momentum_high": (momentum_high, ANY, ("momentum_too_high", "learning_rate_too_high")),
    "not_zeroed": (not_zeroed, ANY, ("gradients_not_zeroed",)),
    "not_optimized": (not_optimized, ANY, ("parameters_not_optimized",)),
    "detached": (detached, ANY, ("graph_detached",)),
    "same_batch": (same_batch, ANY, ("batch_repeated",)),
    "sorted": (sorted_data, ("classes", "values"), ("data_not_shuffled",)),
    "inputs_raw": (raw_inputs, FLOAT, ("inputs_not_scaled",)),
    "outliers": (outliers, FLOAT, ("input_outliers",)),
    "targets_raw": (targets_raw, ("values",), ("targets_not_scaled",)),
    "labels_random": (labels_random, ("classes", "values", "tokens"), ("labels_random",)),
    "label_noise": (label_noise, ("classes", "values"), ("label_noise", "labels_random")),
    "wrong_sign": (wrong_sign, ANY, ("loss_sign",)),
    "summed": (summed, ANY, ("loss_summed", "learning_rate_too_high")),
    "double_softmax": (double_softmax, ("classes", "tokens"), ("double_softmax",)),
    "softmax_over_batch": (softmax_over_batch, ("classes",), ("softmax_over_batch",)),
    "broadcast": (broadcast, ("values",), ("loss_broadcast",)),
    "dead_units": (dead_units, ANY, ("dead_units",)),
    "init_zero": (scale_weights(lambda job: 0.0), ANY, ("init_constant",)),
    "init_large": (scale_weights(lambda job: (8.0, 3.0)[job.mild]), ANY, ("init_too_large", "learning_rate_too_high")),
    "init_small": (scale_weights(lambda job: (0.02, 0.2)[job.mild]), ANY, ("init_too_small", "vanishing_gradients")),
    "sigmoid_deep": (sigmoid_deep, ANY, ("vanishing_gradients", "init_too_small")),
    "dropout_high": (dropout_high, ANY, ("dropout_too_high",)),
    "eval_mode": (eval_mode, ANY, ("eval_mode",)),
    "not_divided": (not_divided, ANY, ("accumulation_not_divided", "learning_rate_too_high")),
    "eps_high": (eps_high, ANY, ("adam_eps_too_large", "learning_rate_too_low")),
    "not_shifted": (not_shifted, ("tokens",), ("targets_not_shifted",)),
}
ONE_GRADE = {"not_zeroed", "same_batch", "labels_random", "wrong_sign", "summed", "double_softmax", "softmax_over_batch",
             "broadcast", "init_zero", "eval_mode", "not_shifted"}  # fmt: skip


def fits(name: str, program: Program) -> bool:
    if program.kind not in FAULTS[name][1]:
        return False
    if name == "eps_high":
        return program.settings.optimizer in ("adam", "adamw")
    if name == "dead_units":
        return program.name not in ("gru", "decoder", "resnet")
    return True
