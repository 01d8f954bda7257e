"""Collects the signals of a tracked step: hooks on the model and some of its modules, only while a step is tracked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from cockpit_core.engine.hooks import Handles, LayerHook
from cockpit_core.foundation.transfer import Asked, Transfer
from cockpit_core.foundation.ungraded import Ungraded
from cockpit_core.signals.activations import choose_modules, measure_activity, summarise
from cockpit_core.signals.around_loss import measure_around
from cockpit_core.signals.bending import count_linear
from cockpit_core.signals.between import Between
from cockpit_core.signals.given import measure_given
from cockpit_core.signals.graph_losses import Given, output_and_target, read_graph_loss
from cockpit_core.signals.inputs import measure_checksum, measure_codes, measure_inputs
from cockpit_core.signals.inside import measure_inside, runs_over_samples
from cockpit_core.signals.losses import measure_term
from cockpit_core.signals.model_output import Strays, choose_given
from cockpit_core.signals.order import Order
from cockpit_core.signals.outputs import (
    measure_binary_hits,
    measure_broadcast,
    measure_hits,
    measure_outputs,
    measure_same,
    measure_sums,
)
from cockpit_core.signals.reading import Reading, fetch
from cockpit_core.signals.targets import (
    BESIDE_INPUTS,
    as_columns,
    measure_constant,
    measure_labels,
    measure_likelihood,
    measure_likeness,
    measure_targets,
)
from cockpit_core.signals.tensors import choose_inputs, identify_by, list_tensors
from cockpit_core.signals.turns import Turns
from cockpit_core.signals.wiring import find_mode_dependent, measure_modes

PREFIX = "signal/"
_ELEMENTWISE = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss, nn.BCEWithLogitsLoss)
_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss)
_KNOWN = (*_ELEMENTWISE, *_CLASSES)
MOST_CALLS = 32
LOOKS_AROUND = 4
Part = tuple[str, Callable[[], "Reading | dict[str, float]"]]


class Collector:
    """One for each run. ``listens`` says whether a forward pass is the user's own and its backward pass still to come;
    an error of ours is swallowed, and its signal is missing (``strict`` raises, for tests)."""

    def __init__(
        self, model: nn.Module, loss_fn: Any, names: Mapping[int, str], listens: Callable[[], bool], strict: bool
    ):
        self.model, self.loss_fn, self.names, self.listens, self.strict = model, loss_fn, names, listens, strict
        self.handles, self.hooked = Handles(), ""
        self.watched = choose_modules(model)
        self.mode_dependent = find_mode_dependent(model)
        self.owners = {m: own for m in model.modules() if (own := self._own_names(m))}
        self.failed: dict[str, str] = {}
        self.activity_names: list[str] = []
        self.linear_layers: int | None = None  # of a network in which nothing bends; else 0
        self.looks_around, self.around = LOOKS_AROUND, dict[str, float]()
        self.between = Between(sum(p.numel() for p in model.parameters() if not is_lazy(p)))
        self.graph_loss = ""  # the kind of loss that the graph of a function shows
        self.asks_graph, self.heard = not isinstance(loss_fn, _KNOWN), False  # a module may be named and never called
        self.turns, self.order, self.strays = Turns(), Order(), Strays(model)
        self.resting = False  # there is a record at this step, and no signals
        self.forget()

    def _own_names(self, module: nn.Module) -> list[str]:
        own = module.parameters(recurse=False)
        return [self.names[id(p)] for p in own if p.requires_grad and id(p) in self.names]

    def forget(self) -> None:
        """A new step begins."""
        self.numbers: dict[str, float] = {}
        self.readings: list[tuple[str, Reading]] = []  # by the name of their part; numbers, once they are here
        self.activities: list[tuple[str, Reading]] = []  # by the path of their module
        self.called, self.inputs = dict[str, None](), set[int]()
        self.batch_size = 0
        self.has_loss = False
        self.features: Tensor | None = None
        self.tokens: list[Tensor] = []  # codes among the inputs
        self.looked_up: list[Tensor] = []  # codes of which an embedding took the vectors
        self.module_loss: Tensor | None = None
        self._own_loss: Asked | None = None
        self.given: Given | None = None  # what the model gave

    def begin(self, wanted: bool, outside: bool = False, resting: bool = False) -> None:
        """``outside``: only what goes into the model and comes out of it: next to nothing. ``resting``: this goes without."""
        self.forget()
        self.resting = resting
        self.calls = 0
        hooked = "" if resting else "all" if wanted else "outside" if outside else ""
        if hooked == self.hooked:
            return
        self.handles.remove()
        self.hooked = hooked
        if hooked:
            self.handles.add(self.model.register_forward_pre_hook(LayerHook(self, "on_input"), with_kwargs=True))
            self.handles.add(self.model.register_forward_hook(LayerHook(self, "on_output"), with_kwargs=True))
        for module in {**self.watched, **self.owners} if hooked == "all" else ():
            self.handles.add(module.register_forward_hook(LayerHook(self, "on_module")))

    def close(self) -> None:
        self.handles.remove()
        self.hooked = ""
        self.forget()
        self.watched, self.owners, self.mode_dependent = {}, {}, []
        self.model = self.loss_fn = self.strays = None  # type: ignore[assignment]
        self.listens = bool  # which is False

    # ---- hooks ----

    def _hears(self) -> bool:
        return not self.resting and torch.is_grad_enabled() and self.listens()

    def on_input(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        if self._hears():
            self.forget()  # the last forward pass before the backward pass counts
            self.calls += 1
            self._try("inputs", self._take_inputs, args, kwargs)

    def on_module(self, module: nn.Module, args: tuple, output: Any) -> None:
        if self.resting or not self.listens():
            return
        for name in self.owners.get(module, ()):  # also without a graph, which may have been cut off for them alone
            self.called[name] = None
        if not torch.is_grad_enabled():
            return
        if isinstance(module, nn.Embedding) and args and isinstance(args[0], Tensor):
            self.looked_up.append(args[0])
        if isinstance(module, nn.RNNBase) and runs_over_samples(module, args, self.batch_size):
            self.numbers["batch_is_time"] = 1.0
        if module in self.watched and len(self.activities) < MOST_CALLS:
            self._try("activations", self._take_activity, module, args, output)

    def on_output(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        """What the model returns is taken for what the loss gets, until a loss module shows otherwise."""
        if not self._hears():
            return
        if self.linear_layers is None:
            self._try("bending", self._count_linear, output)
        if self.looked_up:
            self._try("codes", self._read, "inputs", measure_codes, "lookups_constant", self.looked_up)
        if self.asks_graph:
            self._try("outputs", self._take_model_output, kwargs, output)

    def see_loss(self, args: tuple, kwargs: dict, loss: Tensor) -> None:
        if self._hears() and not self.has_loss:
            self.has_loss = self.heard = True
            self.asks_graph = not isinstance(self.loss_fn, _KNOWN)
            self.module_loss = loss.detach()
            self._try("loss", self._take_loss, args, kwargs, self.loss_fn)

    def see_root(self, tensors: Iterable[Tensor]) -> None:
        """What is differentiated, where no module of torch says what it was computed from."""
        if self._hears():
            nodes = [t.grad_fn for t in tensors if t.grad_fn is not None]
            self.asks_graph = self.asks_graph or not self.heard
            if self.asks_graph:
                self._try("graph of the loss", self._take_root, nodes)
            self._try("around the loss", self._look_around, nodes)
        self.given = None

    def glimpse_call(self, args: tuple, kwargs: dict) -> None:
        """A loss of a step that is not on record; every few of them are looked at."""
        if self.between.is_due():
            self._try("hits between records", self.between.look_at_call, self.loss_fn, args, kwargs)

    def glimpse_root(self, loss: Tensor) -> None:
        if self.between.is_due():
            self._try("hits between records", self.between.look_at_root, loss)

    # ---- taking ----

    def _take_inputs(self, args: tuple, kwargs: dict) -> None:
        tensors = list_tensors((args, kwargs))
        self.inputs = {t.data_ptr() for t in tensors}
        self.batch_size = next((t.shape[0] for t in tensors if t.dim()), 0)
        self.numbers |= {"samples": float(self.batch_size)} | ({"calls": float(self.calls)} if self.calls > 1 else {})
        x, codes = choose_inputs(tensors, self.batch_size)
        self.features, self.tokens = x, [t for t in tensors if codes is not None and not t.is_floating_point()]
        if x is not None:
            self._read("inputs", measure_inputs, x, codes is not None, self.order if self.calls == 1 else None)
        self._read("inputs", measure_codes, "codes_constant", self.tokens)
        if parts := identify_by(tensors, self.batch_size):
            self._read("inputs", measure_checksum, *parts)

    def _take_activity(self, module: nn.Module, args: tuple, output: Any) -> None:
        path, at_output = self.watched[module]
        value = output if at_output else (args[0] if args else None)
        if not at_output and isinstance(value, Tensor) and value.data_ptr() in self.inputs:
            return  # the data themselves
        self.activities.append((path, measure_activity(value, module)))

    def _count_linear(self, output: Any) -> None:
        """Once: the graph of later steps is the same, as a rule."""
        self.linear_layers = count_linear(output.grad_fn) if isinstance(output, Tensor) and output.dim() else 0
        self.numbers["linear_layers"] = float(self.linear_layers)
        self.strays.look(output)

    def _take_model_output(self, kwargs: dict, output: Any) -> None:
        self.given = given = choose_given(output, self.batch_size)
        if given is not None and given.value.dim():
            self._read("outputs", measure_outputs, given.value)
        labels = kwargs.get("labels")
        if isinstance(labels, Tensor) and not labels.is_floating_point() and labels.numel():
            self._read("outputs", measure_labels, labels.detach(), self.batch_size, -100)

    def _take_root(self, nodes: list[Any]) -> None:
        loss = read_graph_loss(nodes[0], self.given) if len(nodes) == 1 else None
        if loss is None:
            return
        self.graph_loss = self.graph_loss or type(loss.module).__name__
        if type(loss.module).__name__ != self.graph_loss:
            return  # another loss than at other steps
        self._take_loss((loss.output, loss.target), {}, loss.module)
        weights = {"loss_factor": loss.factor, "loss_addends": loss.addends, "loss_elements": float(loss.elements)}
        self.numbers |= weights
        if loss.growth > 1:
            self.numbers["broadcast"] = loss.growth
        if not loss.alone and loss.target is not None and loss.growth == 1:
            self._read("loss", measure_term, loss)

    def _look_around(self, nodes: list[Any]) -> None:
        """At the first few records: a program computes its loss in one way."""
        if self.looks_around > 0 and len(nodes) == 1:
            self.looks_around -= 1
            self.around = measure_around(nodes[0])
            if self.looks_around == LOOKS_AROUND - 1:
                self.numbers |= measure_inside(nodes[0], self.batch_size)
        known = {"broadcast": max(self.numbers.get("broadcast", 1.0), self.around["broadcast"])} if self.around else {}
        self.numbers |= self.around | known

    def _take_loss(self, args: tuple, kwargs: dict, loss_fn: Any) -> None:
        both = [*args, *kwargs.values()]
        if not both or not isinstance(both[0], Tensor):
            return
        two = len(both) > 1 and isinstance(both[1], Tensor)
        z, y = output_and_target(both[0], both[1], loss_fn) if two else (both[0], None)
        z, y = z.detach(), None if y is None else y.detach()
        if z.is_floating_point() and z.dim():
            self._read("loss", measure_outputs, z)
        if z.dtype == torch.float16:
            self.numbers["output_half"] = 1.0
        if isinstance(loss_fn, _CLASSES):
            self._read("loss", measure_sums, z, isinstance(loss_fn, nn.NLLLoss))
            if z.dim() > 1:
                self.numbers["classes"] = float(z.shape[1])
        if getattr(loss_fn, "reduction", "") == "sum":
            count = float(z.numel() if y is None or y.is_floating_point() else y.numel())
            self.numbers |= {"loss_addends": count, "loss_elements": count}
        features, self.features = self.features, None
        if y is None:
            return
        if features is not None and y.shape == features.shape and y.numel() > len(y):
            self.numbers["target_like_input"] = 1.0  # a reconstruction
        if features is not None:
            self._read("loss", measure_likeness, *as_columns(features, y))
            for measure in BESIDE_INPUTS:
                self._read("loss", measure, features, y)
        self._take_targets(z, y, loss_fn)

    def _take_targets(self, z: Tensor, y: Tensor, loss_fn: Any) -> None:
        if isinstance(loss_fn, (*_ELEMENTWISE, nn.PoissonNLLLoss)):
            self.numbers |= measure_broadcast(z, y)
        if isinstance(loss_fn, (nn.BCELoss, nn.BCEWithLogitsLoss)):
            self._read("loss", measure_binary_hits, z, y, 0.5 if isinstance(loss_fn, nn.BCELoss) else 0.0)
        if y.is_floating_point():
            if y.numel():
                self._read("loss", measure_targets, y)
            if y.dim() and z.shape == y.shape and isinstance(loss_fn, nn.Module):
                self._read("loss", measure_constant, loss_fn, y)
                self._read("loss", measure_likelihood, loss_fn, y)
        elif y.numel():
            size = self.batch_size or (z.shape[0] if z.dim() else 0)
            ignored = getattr(loss_fn, "ignore_index", None)
            self._read("loss", measure_labels, y, size, ignored)
            self._read("loss", measure_hits, z, y, ignored)
            # Labels may be handed to the model as well: what counts is what it looks up, or the only codes that it gets.
            only = self.tokens if len(self.tokens) == 1 else []
            if fitting := [t for t in self.looked_up or only if t.numel() == y.numel()]:
                self._read("loss", measure_same, fitting, y)
            for codes in only:
                self._read("loss", measure_given, codes.double(), y, "code_given")

    def _read(self, name: str, signal: Callable[..., Reading], *args: Any) -> None:
        self.readings.append((name, signal(*args)))

    # ---- giving ----

    def ask(self, transfer: Transfer) -> None:
        """What lies on another device is transferred with the rest of this step."""
        for _, reading in (*self.readings, *self.activities):
            if not reading.is_done:
                self._try("transfer", reading.ask, transfer)
        if self.module_loss is not None:
            self._own_loss = transfer.ask([self.module_loss])

    def read_own_loss(self) -> Tensor | None:
        """What the loss module gave, on the host where it was asked for."""
        return self.module_loss if self._own_loss is None else self._own_loss.read()[0]

    def collect(self, parts: Iterable[Part], transfer: Transfer) -> dict[str, float]:
        """All numbers of the step by the names of columns; ``parts`` are more of them, each with its name."""
        for name, measure in (*parts, ("modes", lambda: measure_modes(self.model, self.mode_dependent))):
            self._try(name, self._take_part, name, measure)
        self._try("transfer", self._fetch, transfer)
        numbers = self.numbers | self.between.take() | self.strays.measure()
        for _, reading in self.readings:
            numbers |= reading.value or {}
        active = [(path, reading.value) for path, reading in self.activities if reading.value is not None]
        self._try("activations", lambda: numbers.update(summarise([activity for _, activity in active])))
        if active and not self.activity_names:
            self.activity_names = [path for path, _ in active]
        return {PREFIX + name: value for name, value in numbers.items()}

    def _take_part(self, name: str, measure: Callable[[], Reading | dict[str, float]]) -> None:
        measured = measure()
        if isinstance(measured, Reading):
            self.readings.append((name, measured))
        else:
            self.numbers |= measured

    def _fetch(self, transfer: Transfer) -> None:
        """What lies on another device, all at once."""
        names = {id(reading): name for name, reading in self.readings}
        for reading, arrays in fetch([reading for _, reading in (*self.readings, *self.activities)], transfer):
            self._try(names.get(id(reading), "activations"), reading.answer, arrays)

    def _try(self, name: str, function: Callable[..., Any], *args: Any) -> None:
        try:
            with Ungraded():
                function(*args)
        except Exception as error:
            if self.strict:
                raise
            self.failed.setdefault(name, f"{type(error).__name__}: {error}")
