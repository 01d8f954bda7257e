"""What sets runs apart: the optimizer, its hyperparameters, the network, whatever the user noted. Seeds are kept
apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cockpit_core.events.data import RunData
from cockpit_core.foundation.records import Header

SEEDS = ("seed", "random_seed")
# How and where a run was watched, not how it was trained. Every run has its own logdir.
ASIDE = (
    *("batch_dim", "memory_budget", "logdir", "hardware", "threads", "trial", "stage"),
    *("budget", "lent for early steps", "left out", "start kept", "loss function", "activations"),
    *("constant weights", "linear pairs", "copied weights", "fresh weights", "frozen fresh weights"),
)
OF_THE_MODEL = ("model", "parameters", "network")  # only as many as tell the rows apart
LONGEST = 48  # letters of one value in a name
SWITCHES = ("foreach", "fused", "capturable", "differentiable")  # other code for the same formula


@dataclass
class Entry:
    """One run: its name, its columns, and what its header says about the training."""

    name: str
    data: RunData
    settings: dict[str, str]
    seed: str = ""
    source: str = ""  # what the user named: the run itself, or a folder that holds it

    @property
    def optimizer(self) -> str:
        return self.settings.get("optimizer", "")


@dataclass
class Setting:
    """Runs that differ in nothing but their seed: one row of every table."""

    name: str
    entries: list[Entry]
    chosen_from: int = 1  # with a group: how many settings of the group there were
    values: dict[str, str] = field(default_factory=dict)

    @property
    def runs(self) -> list[RunData]:
        return [entry.data for entry in self.entries]


def read_settings(header: Header) -> dict[str, str]:
    """Everything in the header that belongs to the training, as text."""
    if is_lost(header):
        return {"settings": "lost"}
    settings = {key: value for key, value in header.options.items() if key not in (*ASIDE, *SEEDS)}
    settings |= {"model": header.model, "parameters": str(int(header.num_parameters)), "loss": name_loss(header)}
    if header.batch_size:
        settings["batch_size"] = str(header.batch_size)
    # A sweep tells SGD from SGD with momentum by name; the class alone does not.
    settings["optimizer"] = header.options.get("optimizer") or " + ".join(
        optimizer.name for optimizer in header.optimizers
    )
    for number, optimizer in enumerate(header.optimizers):
        groups = [with_peak(group) for group in optimizer.groups]
        first = groups[0] if groups else {}
        for index, group in enumerate(groups):
            for key, value in group.items():
                if key in SWITCHES or (index and first.get(key) == value):
                    continue
                settings[name_hyperparameter(key, number, index)] = value
    return {key: value for key, value in settings.items() if value}


def with_peak(group: dict[str, str]) -> dict[str, str]:
    """A schedule begins with a rate of its own: the one that it leads to is what the user chose."""
    rest = {key: value for key, value in group.items() if key not in ("initial_lr", "max_lr")}
    rate = group.get("max_lr") or group.get("initial_lr")
    return {**rest, "lr": rate} if rate else rest


def is_lost(header: Header) -> bool:
    """A log whose beginning is damaged can be read from there on, but what was trained is not known."""
    return not (header.model or header.layers or header.optimizers)


def name_loss(header: Header) -> str:
    """The module that was handed over, else the name read from the graph of the loss."""
    return header.loss or header.options.get("loss function", "")


def name_hyperparameter(key: str, optimizer: int, group: int) -> str:
    """``lr``; ``lr[1]`` in the second parameter group, ``2: lr`` of the second optimizer."""
    name = f"{key}[{group}]" if group else key
    return f"{optimizer + 1}: {name}" if optimizer else name


def read_seed(header: Header) -> str:
    return next((header.options[key] for key in SEEDS if key in header.options), "")


def find_differing(entries: Sequence[Entry]) -> list[str]:
    """Keys with more than one value among the runs that have them, or that only some runs of one optimizer have."""
    differing = []
    for key in dict.fromkeys(key for entry in entries for key in entry.settings):
        having = [entry for entry in entries if key in entry.settings]
        values = {entry.settings[key] for entry in having}
        optimizers = {entry.optimizer for entry in having}
        partly = any(key not in entry.settings and entry.optimizer in optimizers for entry in entries)
        if len(values) > 1 or partly:
            differing.append(key)
    # What an optimizer has by default (betas) is not worth a word beside its name.
    fixed = {key for key in differing if is_default(key, entries)}
    return drop_repeated(sorted((key for key in differing if key not in fixed), key=rank), entries)


def drop_repeated(keys: list[str], entries: Sequence[Entry]) -> list[str]:
    """Of the keys that describe the network, only those that tell more rows apart than the problem and the keys
    before them."""
    kept = list[str]()
    apart: list[tuple[str, ...]] = [(entry.settings.get("problem", ""),) for entry in entries]
    for key in OF_THE_MODEL:
        finer: list[tuple[str, ...]] = [
            (*old, entry.settings.get(key, "")) for old, entry in zip(apart, entries, strict=True)
        ]
        if key in keys and len(set(finer)) > len(set(apart)):
            kept.append(key)
            apart = finer
    return [key for key in keys if key not in OF_THE_MODEL or key in kept]


def is_default(key: str, entries: Sequence[Entry]) -> bool:
    """It depends on the optimizer alone, so the optimizer's name says it."""
    if key in ("optimizer", "lr") or len({entry.optimizer for entry in entries}) < 2:
        return False
    if not any(key in group for entry in entries for o in entry.data.header.optimizers for group in o.groups):
        return False
    by_optimizer: dict[str, set[str]] = {}
    for entry in entries:
        by_optimizer.setdefault(entry.optimizer, set()).add(entry.settings.get(key, ""))
    return all(len(values) == 1 for values in by_optimizer.values())


def rank(key: str) -> tuple[int, str]:
    first = ("problem", "model", "optimizer", "lr", "momentum", "batch_size")
    return (first.index(key) if key in first else len(first), key)


def group_by_setting(entries: Sequence[Entry]) -> list[Setting]:
    """Runs with equal settings are one row; the name says what differs between the rows."""
    differing = find_differing(entries)
    rows: dict[tuple[tuple[str, str], ...], Setting] = {}
    for entry in entries:
        key = tuple(sorted(entry.settings.items()))
        if key not in rows:
            values = {k: entry.settings[k] for k in differing if k in entry.settings}
            rows[key] = Setting(name_setting(values) or entry.name, [], values=values)
        rows[key].entries.append(entry)
    return make_unique(list(rows.values()))


def group_by_source(entries: Sequence[Entry]) -> list[Setting]:
    """The headers are the same, but the user named several runs or folders: each of them is a row."""
    rows: dict[str, Setting] = {}
    for entry in entries:
        rows.setdefault(entry.source, Setting(entry.source, [])).entries.append(entry)
    return list(rows.values())


def name_setting(values: dict[str, str]) -> str:
    plain = [values[key] for key in ("problem", "optimizer") if key in values]
    rest = [f"{key}={shorten(value)}" for key, value in values.items() if key not in ("problem", "optimizer")]
    return " ".join(plain + rest)


def shorten(value: str) -> str:
    flat = ", ".join(value.split("\n"))
    return flat if len(flat) <= LONGEST else f"{flat[: LONGEST - 1]}…"


def make_unique(settings: list[Setting]) -> list[Setting]:
    """Rows that differ only in what the name leaves out get a number: every row needs a name."""
    seen: dict[str, int] = {}
    for setting in settings:
        seen[setting.name] = seen.get(setting.name, 0) + 1
        if seen[setting.name] > 1:
            setting.name += f" ({seen[setting.name]})"
    return settings
