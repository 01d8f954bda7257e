"""What one step of an untracked loop looked like, and the gradients of its samples: plain autograd, one sample at a time.

Nothing here knows the engine. ``watch_training`` repeats a training loop without tracking and keeps what each step saw.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

# ---- one step, frozen in the instant before its forward pass -------------------------------------------------------


@dataclass(frozen=True)
class Moment:
    model: nn.Module
    loss_fn: nn.Module
    inputs: Tensor
    targets: Tensor
    random_state: Tensor
    lrs: tuple[float, ...]
    after: dict[str, Tensor] = field(default_factory=dict)

    def parameters(self) -> dict[str, Tensor]:
        return {
            name: p.detach().clone().requires_grad_() for name, p in self.model.named_parameters() if p.requires_grad
        }

    def predict(self, parameters: dict[str, Tensor]) -> Tensor:
        """The forward pass as the user's loop sees it: same dropout masks, same batch statistics."""
        buffers = {name: b.clone() for name, b in self.model.named_buffers()}
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.random_state)
            return torch.func.functional_call(self.model, {**parameters, **buffers}, (self.inputs.clone(),))

    def loss(self, parameters: dict[str, Tensor]) -> Tensor:
        return self.loss_fn(self.predict(parameters), self.targets)


def freeze(model: nn.Module, loss_fn: nn.Module, inputs: Tensor, targets: Tensor, lrs: Iterable[float] = ()) -> Moment:
    state = torch.get_rng_state()
    return Moment(copy.deepcopy(model), loss_fn, inputs.clone(), targets.clone(), state, tuple(lrs))


def watch_training(problem, make_optimizer: Callable, steps: int, seed: int = 0) -> list[Moment]:
    model, loss_fn, batches = problem.make(seed)
    torch.manual_seed(seed)
    return watch_loop(model, loss_fn, make_optimizer(problem.groups(model)), batches(steps))


def watch_loop(model: nn.Module, loss_fn: nn.Module, optimizer, batches: Iterable) -> list[Moment]:
    """The unchanged loop, untracked; what each step looked like before it ran, and the parameters after it."""
    moments = []
    for inputs, targets in batches:
        moment = freeze(model, loss_fn, inputs, targets, [group["lr"] for group in optimizer.param_groups])
        optimizer.zero_grad()
        loss_fn(model(inputs), targets).backward()
        optimizer.step()
        moment.after.update({name: p.detach().clone() for name, p in model.named_parameters()})
        moments.append(moment)
    return moments


# ---- individual losses and gradients -------------------------------------------------------------------------------


def individual_losses(loss_fn: nn.Module, prediction: Tensor, target: Tensor) -> Tensor:
    """``l_n`` [B], scaled so that their mean is the scalar that the user differentiates."""
    unreduced = copy.copy(loss_fn)
    unreduced.reduction = "none"
    raw = unreduced(prediction, target)
    B = len(target)
    per_sample = raw.reshape(B, -1).sum(1)
    if loss_fn.reduction == "sum":
        return B * per_sample
    if isinstance(loss_fn, (nn.CrossEntropyLoss, nn.NLLLoss)) and not target.is_floating_point():
        valid = target != loss_fn.ignore_index
        weight = prediction.new_ones(prediction.shape[1]) if loss_fn.weight is None else loss_fn.weight
        return per_sample * B / weight[target[valid]].sum()
    return per_sample / (raw.numel() / B)


def individual_gradients(moment: Moment) -> dict[str, Tensor]:
    """``g_n`` [B, *shape] of each parameter that gets a gradient; their mean is the gradient of the loss."""
    if any(isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training for m in moment.model.modules()):
        return contributions(moment)
    theta = moment.parameters()
    losses = individual_losses(moment.loss_fn, moment.predict(theta), moment.targets)
    rows = [torch.autograd.grad(l_n, theta.values(), retain_graph=True, allow_unused=True) for l_n in losses]
    used = {name: [row[i] for row in rows] for i, name in enumerate(theta) if rows[0][i] is not None}
    return {name: torch.stack(gradients) for name, gradients in used.items()}


def contributions(moment: Moment) -> dict[str, Tensor]:
    """``B * dL/dtheta^(n)`` when each sample has a copy of the parameters of its own, in the graph of the whole batch.

    Every module that owns parameters is run again on its own, and differentiated with all rows of its output gradient
    set to zero except one sample's. Where samples do not mix, this is the gradient of ``l_n``.
    """
    model, calls = copy.deepcopy(moment.model), []

    def remember(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        calls.append((module, args[0].detach().clone(), output))
        return output.clone()  # so that an in-place activation does not overwrite what is differentiated

    owners = [m for m in model.modules() if any(p.requires_grad for p in m.parameters(recurse=False))]
    handles = [module.register_forward_hook(remember) for module in owners]
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(moment.random_state)
        loss = moment.loss_fn(model(moment.inputs), moment.targets)
    output_gradients = torch.autograd.grad(loss, [output for _, _, output in calls])
    for handle in handles:
        handle.remove()

    names, B = {p: name for name, p in model.named_parameters()}, len(moment.targets)
    result: dict[str, Tensor] = {}
    for (module, inputs, _), b in zip(calls, output_gradients, strict=True):
        parameters = [p for p in module.parameters(recurse=False) if p.requires_grad]
        output = module(inputs)
        for n in range(B):
            only_n = torch.zeros_like(b)
            only_n[n] = b[n]
            gradients = torch.autograd.grad(output, parameters, only_n, retain_graph=True)
            for p, gradient in zip(parameters, gradients, strict=True):
                G = result.setdefault(names[p], torch.zeros(B, *p.shape, dtype=p.dtype))
                G[n] += B * gradient
    return {name: result[name] for name in moment.parameters() if name in result}
