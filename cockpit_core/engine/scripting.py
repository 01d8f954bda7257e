"""``torch.jit`` compiles the hooks of a module along with it. Our hooks are hidden while it does."""

from __future__ import annotations

from typing import Any

import torch.jit._recursive as compiler
from torch import nn

from cockpit_core.layers.hook_watch import is_ours

_create = compiler.create_script_module
_users = 0


def _create_without_ours(nn_module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    names = ("_forward_hooks", "_forward_pre_hooks")
    held = [getattr(module, name) for module in nn_module.modules() for name in names]
    before = [(hooks, dict(hooks)) for hooks in held if any(map(is_ours, hooks.values()))]
    try:
        for hooks, content in before:
            hooks.clear()
            hooks.update({key: hook for key, hook in content.items() if not is_ours(hook)})
        return _create(nn_module, *args, **kwargs)
    finally:
        for hooks, content in before:
            hooks.clear()
            hooks.update(content)


class HiddenFromScript:
    """As long as one of these is not removed, scripting does not see our hooks."""

    def __init__(self) -> None:
        global _users
        _users += 1
        compiler.create_script_module = _create_without_ours

    def remove(self) -> None:
        global _users
        _users -= 1
        if not _users:
            compiler.create_script_module = _create
