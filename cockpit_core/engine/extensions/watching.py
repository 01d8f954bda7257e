"""Do BackPACK's rules hold for this forward pass? Its hooks see modules one by one, and cannot tell by themselves.

First order is right for any network, module by module, as long as each is called once and owns its parameters. Second order
is handed from module to module by the memory that tensors lie in: whatever happens between two modules goes
unnoticed. So each input of a module must be the output of another one, as the graph shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from cockpit_core.curvature.autograd_graph import WRAPPER


class Watch:
    """Hooks on the innermost modules of one forward pass, beside those of BackPACK."""

    def __init__(self, model: nn.Module):
        self.names = {module: name or "the model" for name, module in model.named_modules()}
        self.leaves = [module for module in self.names if not any(module.children())]
        self.calls: Counter[nn.Module] = Counter()
        self.made: set[Any] = set()
        self.broken = ""
        """What lies between two modules, if anything does."""
        self.handles: list[Any] = []

    def start(self) -> None:
        for module in self.leaves:
            self.handles.append(module.register_forward_pre_hook(self.before))
            self.handles.append(module.register_forward_hook(self.after))

    def stop(self) -> None:
        for handle in self.handles:
            handle.remove()

    def before(self, module: nn.Module, inputs: tuple) -> None:
        self.calls[module] += 1
        for value in inputs:
            if isinstance(value, Tensor) and not self.comes_from_module(value) and not self.broken:
                self.broken = f"{name_of(value)} stands before {self.names[module]}"

    def after(self, module: nn.Module, inputs: tuple, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) and output else output  # a recurrent layer gives its state too
        if isinstance(first, Tensor) and first.grad_fn is not None:
            self.made.add(first.grad_fn)

    def comes_from_module(self, value: Tensor) -> bool:
        """Or from data, which no parameter has touched."""
        node = value.grad_fn
        if node is not None and node.name() == WRAPPER:
            node = node.next_functions[value.output_nr][0]
        return not value.requires_grad or node in self.made

    def find_problem(self) -> str:
        """Why no extension at all is right here; "" if nothing is wrong."""
        twice = next((module for module, count in self.calls.items() if count > 1 and own_parameters(module)), None)
        if twice is not None:
            return (
                f"BackPACK sees the last call of a module, and {self.names[twice]} is called {self.calls[twice]} times"
            )
        own = next((m for m in self.calls if "forward" in vars(m)), None)
        if own is not None:
            return f"the forward of {self.names[own]} was replaced, and BackPACK goes by the type of a module"
        odd = next((m for m in self.calls if getattr(m, "padding_mode", "zeros") != "zeros"), None)
        if odd is not None:
            return f"BackPACK does not know the padding of {self.names[odd]} ({odd.padding_mode})"
        return ""

    def find_gap(self, output: Tensor) -> str:
        """Why second order does not reach all modules."""
        twice = next((module for module, count in self.calls.items() if count > 1), None)
        if twice is not None:
            return f"{self.names[twice]} is called {self.calls[twice]} times, and BackPACK sees the last call"
        broken = self.broken or (
            "" if self.comes_from_module(output) else f"{name_of(output)} stands after the modules"
        )
        return broken and f"BackPACK's second order goes from module to module, and {broken}; make it a module"

    def find_owners(self, parameters: Mapping[str, Tensor]) -> dict[str, str]:
        """Parameters that BackPACK has no right value for, with the reason."""
        owners = Counter(id(p) for module in self.leaves for p in own_parameters(module))
        uncalled = {id(p) for module in self.leaves if not self.calls[module] for p in own_parameters(module)}
        reasons = {}
        for name, p in parameters.items():
            if owners[id(p)] > 1:
                reasons[name] = f"{name} belongs to several modules, and BackPACK sees one of them"
            elif id(p) in uncalled:
                reasons[name] = f"the module of {name} is not called itself, and BackPACK sees calls of modules"
        return reasons


def own_parameters(module: nn.Module) -> list[Tensor]:
    return list(module.parameters(recurse=False))


def name_of(value: Tensor) -> str:
    node = value.grad_fn
    if node is not None and node.name() == WRAPPER:
        node = node.next_functions[value.output_nr][0]
    name = "a parameter" if node is None else node.name()
    return name.removesuffix("0").removesuffix("Backward")
