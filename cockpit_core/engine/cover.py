"""Which module measures which parameter, and by what means."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn

from cockpit_core.foundation.records import LayerInfo
from cockpit_core.foundation.sharded import is_sharded
from cockpit_core.layers.fallback import ATOMIC
from cockpit_core.layers.hook_watch import has_foreign_forward_hooks
from cockpit_core.layers.module_state import ModuleState
from cockpit_core.layers.registry import Repeating, find_rule

COMPLEX = "its elements are complex numbers, for which individual gradients are not measured"
UNSEEN = "no tracked backward pass has gone through it"
TRANSFORMER_LAYERS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def select_layers(model: nn.Module, patterns: Iterable[str] | str | None) -> set[str]:
    """Names of the parameters that the glob patterns choose; a pattern that chooses nothing is an error."""
    names = [name for name, _ in model.named_parameters()]
    if patterns is None:
        return set(names)
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise ValueError(f"layers={pattern!r} matches no parameter; the names are: {', '.join(names)}")
    return {name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)}


def find_batch_dims(model: nn.Module) -> dict[nn.Module, int]:
    """Inside torch's own transformers with ``batch_first=False`` samples are counted by dimension 1, whatever the network
    around them does; where there are as many positions as samples, no shape would tell."""
    dims: dict[nn.Module, int] = {}
    for module in model.modules():
        layers = [module] if isinstance(module, TRANSFORMER_LAYERS) else []
        if isinstance(module, (nn.TransformerEncoder, nn.TransformerDecoder)):
            layers = list(module.layers)
        if any(isinstance(layer, TRANSFORMER_LAYERS) and not layer.self_attn.batch_first for layer in layers):
            dims |= dict.fromkeys(module.modules(), 1)
    return dims


def leave_to_inner(hosts: list[tuple[nn.Module, str]]) -> list[tuple[nn.Module, str]]:
    """A module that holds a parameter for a module inside it (the bias of BERT's head is that of its last layer): run again as a
    whole it would count the inner use twice, so the inner one measures it alone. If something is missing then, the
    check says so."""
    if len(hosts) < 2:
        return hosts
    inside = {id(module): {id(m) for m in module.modules()} - {id(module)} for module, _ in hosts}
    return [
        (module, local)
        for module, local in hosts
        if find_rule(module) is not None or not any(id(other) in inside[id(module)] for other, _ in hosts)
    ]


def find_tensor(module: nn.Module | None, local: str) -> Tensor | None:
    """What a module holds in the place of this parameter now."""
    *path, last = local.split(".")
    for part in path:
        module = None if module is None else module._modules.get(part)
    return None if module is None else module._parameters.get(last)


class Cover:
    """For each parameter the modules whose calls contribute to it.

    At first a parameter belongs to the modules that own it. Where that does not add up to ``p.grad`` (its weight is
    used by a function, or broadcast over the batch), ``escalate`` moves it to the enclosing module, up to the model.
    """

    def __init__(
        self,
        model: nn.Module,
        patterns: Iterable[str] | str | None,
        guard: Callable[[str], Any] = nullcontext,
    ):
        """``guard``: what to do with an error of ours."""
        self.model = model
        self.selected = select_layers(model, patterns)
        self.parameters = dict(model.named_parameters())
        self.names = {id(p): name for name, p in self.parameters.items()}
        self.paths = {id(module): path for path, module in model.named_modules()}
        self.methods = {n: ("not covered", COMPLEX) for n, p in self.parameters.items() if p.is_complex()}
        self.distrusted: set[nn.Module] = set()
        self.sharded = any(is_sharded(p) for p in self.parameters.values())
        self.wholes: dict[str, Tensor] = {}  # sharded parameters whose values are being looked at
        self.guard = guard
        self.hosts: dict[str, list[tuple[nn.Module, str]]] = {name: [] for name in self.parameters}
        self._assign(model)
        self.hosts = {name: leave_to_inner(hosts) for name, hosts in self.hosts.items()}
        self.dims = find_batch_dims(model)
        self._places: dict[tuple[nn.Module, str], str] | None = None
        self.modules = list(model.modules())

    def _assign(self, module: nn.Module) -> None:
        whole = isinstance(module, ATOMIC)
        for local, p in module.named_parameters(recurse=whole, remove_duplicate=False):
            host = (module, local)
            if id(p) in self.names and host not in self.hosts[self.names[id(p)]]:
                self.hosts[self.names[id(p)]].append(host)
        if not whole:
            for child in module.children():
                self._assign(child)

    def name_of(self, module: nn.Module, local: str) -> str:
        """The parameter that ``module`` measures as ``local``. By place, not by object: fully_shard swaps the objects."""
        return self.places[module, local]

    @property
    def places(self) -> dict[tuple[nn.Module, str], str]:
        if self._places is None:
            self._places = {place: name for name, places in self.hosts.items() for place in places}
        return self._places

    def value(self, name: str) -> Tensor:
        return self.wholes.get(name, self.parameters[name])

    def batch_dim(self, module: nn.Module, default: int) -> int:
        return self.dims.get(module, default)

    def trainable(self) -> dict[str, nn.Parameter]:
        return {n: p for n, p in self.parameters.items() if p.requires_grad and n in self.selected}

    def find_swapped(self, module: nn.Module, names: Iterable[str], state: ModuleState | None) -> set[str]:
        """Parameters in whose place a module works with another tensor now: inside ``functional_call``, or after pruning.
        Its rule knows the gradient of what it was given, not what lies between. The same where somebody has given this
        one module another ``forward``, or a hook that may return another output, or one inside a module that is to be run
        again (``state``)."""
        if self.sharded:
            return set()
        named = [(self.places[module, local], find_tensor(module, local)) for local in names]
        patched = "forward" in vars(module) or has_foreign_forward_hooks(module)
        patched = patched or (state is not None and state.has_hooks)
        return {name for name, tensor in named if patched or tensor is not self.parameters[name]}

    def holds(self, name: str) -> bool:
        """Is it still a parameter of the model? Another may have been tied in its place."""
        places = self.hosts[name]
        return self.sharded or any(find_tensor(module, own) is self.parameters[name] for module, own in places)

    def strangers(self) -> list[str]:
        """Parameters that are trained now and were not there when the run began: a head was replaced, an adapter
        added."""
        if self.sharded:
            return []  # fully_shard swaps the objects
        known, names = set(map(id, self.modules)), self.names
        for module in self.modules:
            if any(id(child) not in known for child in module._modules.values() if child is not None):
                break
            if any(p is not None and id(p) not in names for p in module._parameters.values()):
                break
        else:
            return []  # the usual case, in a moment
        return [name for name, p in self.model.named_parameters() if id(p) not in names and p.requires_grad]

    def hooked_modules(self) -> dict[nn.Module, list[str]]:
        """Each module to hook, with the local names of the parameters that it measures."""
        modules: dict[nn.Module, list[str]] = {}
        for name in self.trainable():
            if self.is_left_out(name):
                continue
            for module, local in self.hosts[name]:
                modules.setdefault(module, []).append(local)
        return modules

    def has_rule(self, module: nn.Module, local: str) -> bool:
        """Can it be measured without running any part of the module again?"""
        if "." in local or not self.trusts(module):
            return False
        rule = find_rule(module)
        return rule is not None and not isinstance(rule, Repeating)

    def trusts(self, module: nn.Module) -> bool:
        return module not in self.distrusted

    def distrust(self, module: nn.Module, error: Exception | None = None) -> None:
        """The module's own rule gave an error or a wrong sum: its fallback is used from now on. An error is
        reported."""
        self.distrusted.add(module)
        for name, hosts in self.hosts.items():
            if any(host is module for host, _ in hosts):
                self.methods.pop(name, None)  # looked up again
        if error is not None:
            with self.guard(f"the rule of {self.paths.get(id(module)) or 'the model'} ({type(module).__name__})"):
                raise error

    def note_method(self, name: str, method: str, reason: str, interacts: str) -> None:
        """How it is measured. Once samples have been seen to interact, they may do so again: a BatchNorm that begins to
        train later, too."""
        interacts = interacts or (reason if method == "contribution" else "")
        if interacts and self.methods.get(name, ("",))[0] != "contribution":
            self.methods[name] = ("contribution", interacts)
        self.methods.setdefault(name, (method, reason))

    def is_left_out(self, name: str) -> bool:
        """Nothing gave its individual gradients, so they are not asked for any more."""
        return self.methods.get(name, ("",))[0] == "not covered"

    def escalate(self, name: str, reason: str) -> bool:
        """Measure this parameter at the enclosing module from now on; False if there is none left."""
        module, local = self.hosts[name][0]
        path = self.paths[id(module)]
        if self.sharded:
            reason += " (and it is sharded, so the module around it cannot be run again)"
        parent, parent_path = self._enclosing(path)
        if parent is None or self.sharded:
            self.methods[name] = ("not covered", reason)
            return False
        own = path[len(parent_path) + 1 :] if parent_path else path
        self.hosts[name] = [(parent, f"{own}.{local}")]
        self._places = None
        if self.methods.get(name, ("",))[0] != "contribution":  # what was recorded so far stays marked
            self.methods[name] = ("fallback", f"measured at {parent_path or type(parent).__name__}: {reason}")
        return True

    def _enclosing(self, path: str) -> tuple[nn.Module | None, str]:
        """The next module around this one that can be called: a ModuleList or ModuleDict never is."""
        while path:
            path = path.rpartition(".")[0]
            module = self.model.get_submodule(path) if path else self.model
            if getattr(type(module).forward, "__name__", "") != "_forward_unimplemented":
                return module, path
        return None, ""

    def describe(self, without_gradient: set[str]) -> list[LayerInfo]:
        """The header's list of layers, each with the way it is measured."""
        infos = []
        for name, p in self.parameters.items():
            owner = self.hosts[name][0][0] if self.hosts[name] else self.model
            info = LayerInfo(name, tuple(p.shape), p.numel(), type(owner).__name__)
            if name not in self.selected:
                info.method, info.reason = "not selected", "excluded by layers="
            elif not p.requires_grad:
                info.method, info.reason = "no gradient", "requires_grad is False"
            elif name in without_gradient:
                info.method, info.reason = "no gradient", "unused: the backward pass left its gradient empty"
            else:
                seen = any(reason != COMPLEX for _, reason in self.methods.values())
                unseen = ("not covered", UNSEEN) if seen else ("", "")
                info.method, info.reason = self.methods.get(name, unseen)
            infos.append(info)
        return infos

    def share(self, infos: list[LayerInfo]) -> float:
        """Share of trainable, selected parameters whose individual gradients are measured."""
        eligible = [i for i in infos if i.method not in ("not selected", "no gradient")]
        covered = sum(i.size for i in eligible if i.method != "not covered")
        return covered / max(1, sum(i.size for i in eligible))
