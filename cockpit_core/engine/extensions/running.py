"""One forward and backward pass of its own for BackPACK's extensions: the samples of the step, nothing left behind.

The modules are extended while they hold copies of all that they keep (``ModuleState``), with the random state and the
precision of the user's own forward pass. Afterwards modules, parameters, generators and BackPACK's own state are as before:
even where the user has extended the model too, or runs this inside ``with backpack(...)``.
"""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cockpit_core.engine.extensions.results import BackpackValues
from cockpit_core.engine.extensions.watching import Watch
from cockpit_core.engine.forward import Forward, is_close
from cockpit_core.layers.module_state import HOOKS, NotRepeatable
from cockpit_core.layers.seeds import flatten_tensors


@dataclass(frozen=True)
class LossCall:
    """``module(output, target)``, where ``output`` is the model's output of this position."""

    module: nn.Module
    target: Any
    position: int


@dataclass(frozen=True)
class Samples:
    """The pass of a step to be repeated. ``seeds``: dL/d(output) by position. ``loss``: a call, or why there is none."""

    model: nn.Module
    forward: Forward
    seeds: Mapping[int, Tensor]
    loss: LossCall | str
    parameters: Mapping[str, Tensor]


class CannotRun(RuntimeError):
    """BackPACK has no right value here; the message says why."""


def run_extensions(extensions: Mapping[str, Any], samples: Samples) -> BackpackValues:
    """All in one pass; where that fails, in passes of their own, to learn which of them fails."""
    first = {name: e for name, e in extensions.items() if not e.expects_backpropagation_quantities()}
    second = {name: e for name, e in extensions.items() if name not in first}
    values: dict[str, dict[str, Any]] = {}
    reasons: dict[str, str] = {}
    loss = samples.loss if isinstance(samples.loss, str) else why_not(samples.loss) or samples.loss
    if isinstance(loss, str):
        reasons |= dict.fromkeys(second, loss)
    elif second:
        _attempt(extensions, samples, loss, values, reasons)
    again = {name: e for name, e in first.items() if name not in values}
    if again:
        reasons = {name: reason for name, reason in reasons.items() if name in second}
        _attempt(again, samples, None, values, reasons)
    return BackpackValues(values, reasons)


def _attempt(
    wanted: Mapping[str, Any],
    samples: Samples,
    loss: LossCall | None,
    values: dict[str, dict[str, Any]],
    reasons: dict[str, str],
) -> None:
    try:
        results, missing = run_pass(wanted, samples, loss)
        values.update(results)
        reasons.update(missing)
    except (NotRepeatable, CannotRun) as reason:
        reasons.update(dict.fromkeys(wanted, str(reason)))
    except Exception as error:
        if len(wanted) > 1:
            for name, extension in wanted.items():
                _attempt({name: extension}, samples, loss, values, reasons)
        else:
            text = " ".join(str(error).split())[:200]
            reasons.update(dict.fromkeys(wanted, f"BackPACK cannot: {type(error).__name__}: {text}"))


def why_not(loss: LossCall) -> str:
    """Losses that BackPACK silently takes for simpler ones."""
    module, target = loss.module, loss.target
    if not isinstance(target, Tensor):
        return f"{type(module).__name__} was not called with outputs and targets alone"
    if getattr(module, "label_smoothing", 0):
        return "BackPACK's second order does not know label_smoothing"
    if isinstance(module, nn.CrossEntropyLoss):
        if target.is_floating_point():
            return "BackPACK's second order takes classes as targets, not probabilities"
        if bool((target == module.ignore_index).any()):
            return "BackPACK's second order does not know targets that are ignored"
    return ""


def run_pass(
    wanted: Mapping[str, Any], samples: Samples, loss: LossCall | None
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    from backpack import backpack

    watch, fresh = Watch(samples.model), [renew(extension) for extension in wanted.values()]
    with ExitStack() as stack:
        inputs, named = stack.enter_context(samples.forward.setting(samples.model))
        stack.enter_context(unmarked(samples.parameters.values()))
        stack.enter_context(extended(watch))
        result = flatten_tensors(samples.model(*inputs, **named))
        if not samples.forward.is_same(result):
            raise NotRepeatable("the model gives other outputs when its forward pass is repeated")
        refuse(watch.find_problem())
        with backpack(*fresh):
            if loss is None:
                differentiate_seeded(result, samples)
            else:
                refuse(watch.find_gap(result[loss.position]))
                differentiate_loss(result, samples, loss)
        return collect(wanted, samples.parameters, watch)


def differentiate_seeded(result: list[Tensor], samples: Samples) -> None:
    ends = [(result[k], seed.to(result[k].dtype)) for k, seed in samples.seeds.items() if result[k].requires_grad]
    if not ends:
        raise NotRepeatable("no gradient came back to the model's outputs")
    wanted = list(samples.parameters.values())
    torch.autograd.grad([out for out, _ in ends], wanted, [seed for _, seed in ends], allow_unused=True)


def differentiate_loss(result: list[Tensor], samples: Samples, loss: LossCall) -> None:
    """The gradient at the model's output must be the user's own: else something more was differentiated."""
    from backpack import extend

    twin, output = extend(without_hooks(loss.module)), result[loss.position]
    value = twin(output, loss.target)
    gradient = torch.autograd.grad(value, [output, *samples.parameters.values()], allow_unused=True)[0]
    seed = samples.seeds.get(loss.position)
    if seed is None or gradient is None or len(samples.seeds) > 1 or not is_close(gradient, seed.to(gradient.dtype)):
        raise CannotRun(
            "more than loss_fn was differentiated, or with a factor: BackPACK's second order does not see that"
        )


def collect(
    wanted: Mapping[str, Any], parameters: Mapping[str, Tensor], watch: Watch
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    values: dict[str, dict[str, Any]] = {}
    reasons: dict[str, str] = {}
    wrong = watch.find_owners(parameters)
    for name, extension in wanted.items():
        own = {n: detach(vars(p)[name]) for n, p in parameters.items() if name in vars(p) and n not in wrong}
        values[name] = own
        lacking = [n for n in parameters if n not in own]
        if lacking:
            others = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
            reason = wrong.get(lacking[0], f"BackPACK's {type(extension).__name__} knows no rule for {lacking[0]}")
            reasons[name] = f"{reason}{others and f' ({others.strip()})'}"
    return values, reasons


def detach(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(detach(item) for item in value)
    return value.detach() if isinstance(value, Tensor) else value


def refuse(reason: str) -> None:
    if reason:
        raise CannotRun(reason)


def renew(extension: Any) -> Any:
    """What it hands from module to module belongs to one pass; the user's own instance stays as it is."""
    from backpack.extensions.saved_quantities import SavedQuantities

    fresh = copy.copy(extension)
    fresh.saved_quantities = SavedQuantities()
    return fresh


def without_hooks(module: nn.Module) -> nn.Module:
    """The same module once more, without hooks."""
    twin = copy.copy(module)
    for name in HOOKS:
        vars(twin)[name] = OrderedDict()
    vars(twin).pop("_backpack_extend", None)
    return twin


@contextmanager
def unmarked(parameters: Any) -> Iterator[None]:
    """BackPACK writes its results onto the parameters; what the user has there is kept."""
    before = [(p, dict(vars(p))) for p in parameters]
    try:
        yield
    finally:
        for p, content in before:
            vars(p).clear()
            vars(p).update(content)


@contextmanager
def extended(watch: Watch) -> Iterator[None]:
    """Inside ``Forward.setting``, which puts back all attributes. Only innermost modules: containers do nothing."""
    from backpack import disable, extend
    from backpack.context import CTX

    known, stores = CTX.hook_handles, disable.store_io
    CTX.hook_handles, disable.store_io = [], True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says of every full backward hook that its inputs need no gradient
            for module in watch.leaves:
                vars(module).pop("_backpack_extend", None)
                if vars(module).get("inplace") is True:  # BackPACK's hooks forbid it; the outputs are compared
                    module.inplace = False
                extend(module)
            watch.start()
            yield
    finally:
        watch.stop()
        CTX.remove_hooks()
        CTX.hook_handles, disable.store_io = known, stores
