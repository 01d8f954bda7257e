"""What one run of a sweep is, where it lies, and whether it is finished. No torch."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULT, SPEC, ERROR, OUTPUT = "result.json", "sweep.json", "error.txt", "output.txt"


@dataclass(frozen=True)
class Trial:
    """``optimizer`` is written as on the command line: ``SGD,momentum=0.9`` or ``mypackage:MyOptimizer``."""

    problem: str
    optimizer: str
    lr: float
    seed: int
    epochs: int
    batch_size: int

    @property
    def setting(self) -> str:
        return f"{self.optimizer} lr={self.lr:g}"

    def __str__(self) -> str:
        return f"{self.problem} {self.setting} seed {self.seed}"

    def find_folder(self, root: Path) -> Path:
        parts = (self.problem, f"{self.optimizer},lr={self.lr:g}", f"seed{self.seed}")
        return root.joinpath(*(re.sub(r"[^\w.,=+-]", "_", part) for part in parts))


def parse_optimizer(text: str) -> tuple[str, dict[str, Any]]:
    """``SGD,momentum=0.9,nesterov=True`` -> the name and its options, values as Python writes them."""
    name, *rest = split_options(text)
    options = {}
    for part in rest:
        key, equals, value = part.partition("=")
        if not equals or not key.isidentifier():
            raise ValueError(f"{text!r}: an option of an optimizer is written name=value, got {part!r}")
        try:
            options[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[key] = value
    if "lr" in options:
        raise ValueError(f"{text!r}: learning rates are given by --lr, so that all optimizers get the same ones")
    return name, options


def split_options(text: str) -> list[str]:
    """At commas that are not inside brackets: ``Adam,betas=(0.9,0.99)``."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def space_rates(rates: Sequence[float], trials: int | None) -> list[float]:
    """The rates as given; with ``trials``, that many from the smallest to the largest, at equal ratios."""
    if any(rate <= 0 for rate in rates):
        raise ValueError(f"a learning rate is a positive number, got {', '.join(f'{rate:g}' for rate in rates)}")
    if trials is None:
        return list(dict.fromkeys(rates))
    low, high = min(rates), max(rates)
    if low == high or trials < 2:
        raise ValueError("--trials needs at least 2, and two different rates in --lr: the ends of the search space")
    ratio = (high / low) ** (1 / (trials - 1))
    return [float(f"{low * ratio**k:.4g}") for k in range(trials)]


def list_trials(
    problems: Sequence[tuple[str, int, int]], optimizers: Sequence[str], rates: Sequence[float], seeds: Sequence[int]
) -> Iterator[Trial]:
    """Every combination; ``problems`` are (name, epochs, batch size). Seeds outermost: an early stop leaves whole grids."""
    for seed in seeds:
        for name, epochs, batch_size in problems:
            for optimizer in optimizers:
                for rate in rates:
                    yield Trial(name, optimizer, rate, seed, epochs, batch_size)


def read_result(folder: Path, trial: Trial) -> dict[str, Any] | None:
    """The result of a finished trial; None if it is not finished. One with other settings is an error, not a result."""
    try:
        result = json.loads((folder / RESULT).read_text("utf-8"))
        stored = result["trial"]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / RESULT} cannot be read; delete it to run this trial again") from error
    wanted = dataclasses.asdict(trial)
    differing = [key for key in wanted if stored.get(key) != wanted[key]]
    if differing:
        was = ", ".join(f"{key}={stored.get(key)}" for key in differing)
        now = ", ".join(f"{key}={wanted[key]}" for key in differing)
        raise ValueError(f"{folder} was run with {was}, not with {now}; choose another --logdir")
    return result


def clear_unfinished(folder: Path) -> None:
    """What a killed run left behind. Only files that a sweep writes are removed, and only where a sweep began."""
    if not folder.exists():
        return
    if not (folder / SPEC).is_file():
        if any(folder.iterdir()):
            raise ValueError(f"{folder} holds something that no sweep wrote; choose another --logdir")
        return
    for file in folder.iterdir():
        if file.name.startswith("events.out.") or file.name == ERROR or file.name.endswith(".new"):
            file.unlink()


def write_json(path: Path, content: Any) -> None:
    """Whole or not at all: a kill between two bytes must not leave half a result."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    temporary.write_text(json.dumps(content, indent=1), "utf-8")
    temporary.replace(path)
