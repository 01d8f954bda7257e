"""A network in one line: its modules in the order in which they were made, equal ones in a row once."""

from __future__ import annotations

from itertools import groupby

from torch import nn

LONGEST = 1500  # characters: a header is read by people
SIZES = (
    ("in_features", "out_features"), ("in_channels", "out_channels"),
    ("num_embeddings", "embedding_dim"), ("input_size", "hidden_size"),
)  # fmt: skip
PLAIN = (nn.Sequential, nn.ModuleList, nn.ModuleDict)  # what they are called says nothing


def describe_network(model: nn.Module) -> str:
    """``Linear 64→32, ReLU, 4 × Block(LayerNorm, Linear 32→32), Linear 32→10``."""
    text = describe_children(model) or describe_leaf(model)
    return text if len(text) <= LONGEST else text[: LONGEST - 2].rsplit(",", 1)[0] + ", …"


def describe_children(module: nn.Module) -> str:
    """Modules that are alike and follow each other are counted."""
    texts = filter(None, (describe_module(child) for child in module.children()))
    counted = ((text, sum(1 for _ in same)) for text, same in groupby(texts))
    return ", ".join(text if count == 1 else f"{count} × {bracket(text)}" for text, count in counted)


def describe_module(module: nn.Module) -> str:
    if next(module.children(), None) is None:
        return "" if isinstance(module, PLAIN) else describe_leaf(module)
    inner = describe_children(module)
    return inner if isinstance(module, PLAIN) else f"{type(module).__name__}({inner})"


def describe_leaf(module: nn.Module) -> str:
    """Sizes only for torch's own modules: in a user's module ``in_features`` may mean anything."""
    name = type(module).__name__
    if not type(module).__module__.startswith("torch.nn."):
        return name
    for first, last in SIZES:
        if isinstance(getattr(module, first, None), int) and isinstance(getattr(module, last, None), int):
            return f"{name} {getattr(module, first)}→{getattr(module, last)}"
    return name


def bracket(text: str) -> str:
    """A list that is counted is put in brackets; a single module is not."""
    return f"({text})" if ", " in text and not text.endswith(")") else text
