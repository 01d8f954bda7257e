"""What a call was given, without the graph that it came from, as it was before the call."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cockpit_core.layers.seeds import copy_object, flatten_tensors


def detach_inputs(values: Any) -> Any:
    """The same structure without the graph; tensors share their memory. Objects of the user (a state that is handed from call to
    call) are copied, as the call may change them."""
    if isinstance(values, Tensor):
        return values.detach()
    if isinstance(values, tuple) and hasattr(values, "_fields"):
        return type(values)(*(detach_inputs(value) for value in values))
    if isinstance(values, (tuple, list)):
        return type(values)(detach_inputs(value) for value in values)
    if type(values) is dict:
        return {key: detach_inputs(value) for key, value in values.items()}
    return copy_object(values)


def detach_all(args: tuple, kwargs: dict) -> tuple[Any, Any, list[Tensor]]:
    """Arguments and keywords without the graph, and the floating point tensors among them."""
    if len(args) == 1 and not kwargs and isinstance(args[0], Tensor):  # most layers are called like that
        given = args[0].detach()
        return (given,), {}, [given] if given.is_floating_point() else []
    inputs, named = detach_inputs(args), detach_inputs(kwargs)
    return inputs, named, flatten_tensors((inputs, named))
