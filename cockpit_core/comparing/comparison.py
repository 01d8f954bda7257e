"""``compare(runs)``: tables of settings, and the order in which they came apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cockpit_core.comparing.comparable import check_comparable, describe_states
from cockpit_core.comparing.curves import list_quantities
from cockpit_core.comparing.first import Difference, TooFew, find_difference
from cockpit_core.comparing.levels import Level, compare_at_level
from cockpit_core.comparing.metrics import (
    Metric,
    Score,
    Sensitivity,
    choose_metric,
    measure_sensitivity,
    median_final,
    parse_target,
    score,
)
from cockpit_core.comparing.profiles import Profiles, make_profiles
from cockpit_core.comparing.settings import Entry, Setting, group_by_setting, group_by_source, read_seed, read_settings
from cockpit_core.events.data import RunData, load
from cockpit_core.report.show import find_runs

if TYPE_CHECKING:
    import pandas


@dataclass
class Pair:
    """The best setting against another: what separated first, and what never did."""

    first: str
    second: str
    differences: list[Difference]  # in order of their steps
    alike: list[str]  # quantities that both have and that do not separate
    too_few: list[str]  # too few values to say


@dataclass
class Section:
    """The runs of one problem. Settings are in order of their median final metric, the best first."""

    problem: str
    metric: Metric
    settings: list[Setting]
    scores: dict[str, list[Score]]  # by setting, in order of its entries
    sensitivity: list[Sensitivity]
    level: Level | None
    pairs: list[Pair]
    notes: list[str] = field(default_factory=list)  # what cannot be compared, and why


@dataclass
class Comparison:
    """What ``compare`` found. ``print(comparison)`` is what ``cockpit compare`` prints."""

    sections: list[Section]
    notes: list[str] = field(default_factory=list)
    profiles: Profiles | None = None

    def __str__(self) -> str:
        from cockpit_core.comparing.words import describe

        return "\n".join(describe(self))

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, texts and numbers; None where a number is not known or a target was not reached."""
        from cockpit_core.comparing.tables import make_dict

        return make_dict(self)

    def to_pandas(self) -> pandas.DataFrame:
        """One row per run: its setting, what differs, and how well it did."""
        from cockpit_core.comparing.tables import make_frame

        return make_frame(self)


def compare(runs: Any, *, target: str | None = None, group: str | None = None, metric: str | None = None) -> Comparison:
    """Compare runs by their logs.

    runs: log directories, folders that hold some, ``RunData`` or ``Run`` objects, in any mix.
    target: "valid_accuracy=0.97" counts steps and seconds until then; ``<=`` and ``>=`` say which way is better.
    group: a setting ("optimizer") whose values are compared, each by its best setting.
    metric: the metric to compare by; default: the first usual one that all runs logged.

    Runs with equal settings count as seeds of one setting; where no setting differs at all, each thing that was named (a
    folder of runs, or a run without a seed of its own) is one. Runs of different problems (as ``cockpit sweep`` or
    ``run.note_settings(problem=...)`` recorded them) stand apart. Instruments are compared where the runs have reached
    the same loss.
    """
    entries, notes = read_runs(runs)
    wanted = parse_target(target) if target else None
    if metric is not None:
        wanted = choose_named(metric, wanted)
    problems: dict[str, list[Entry]] = {}
    for entry in entries:
        problems.setdefault(entry.settings.get("problem", ""), []).append(entry)
    if len(problems) > 1:
        named = ", ".join(name or "no problem on record" for name in problems)
        notes.append(f"runs of different problems ({named}) are not compared with each other")
    check_wanted(entries, wanted, group)
    sections = [make_section(problem, members, wanted, group) for problem, members in problems.items()]
    races = [(section.problem, section.metric, section.settings) for section in sections]
    return Comparison(sections, notes, make_profiles(races, group))


def choose_named(name: str, target: Metric | None) -> Metric:
    if target is not None and target.name != name:
        raise ValueError(f"metric={name!r} and a target of {target.name!r} contradict each other")
    return target or Metric(name, parse_target(f"{name}=0").less_is_better)


def read_runs(runs: Any) -> tuple[list[Entry], list[str]]:
    """Each run once. Runs without values are left out, with a note."""
    given: Iterable[Any] = [runs] if isinstance(runs, (str, Path, RunData)) or hasattr(runs, "logdir") else runs
    entries: dict[str, Entry] = {}
    notes = []
    for item in given:
        for name, data in open_runs(item):
            key = str(data.path.resolve()) if data.path else name
            if key in entries:
                continue
            if not data.names:
                notes.append(f"{name} has no values and is left out")
                continue
            source = name if isinstance(item, RunData) else str(getattr(item, "logdir", item))
            entries[key] = Entry(name, data, read_settings(data.header), read_seed(data.header), source)
    if not entries:
        raise ValueError("no run to compare" + (f": {'; '.join(notes)}" if notes else ""))
    return list(entries.values()), notes


def open_runs(item: Any) -> list[tuple[str, RunData]]:
    if isinstance(item, RunData):
        return [(item.header.name or str(item.path), item)]
    path = Path(item.logdir if hasattr(item, "logdir") else item)
    if path.is_file():
        return [(str(path), load(path))]
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such folder")
    folders = list(find_runs(path))
    if not folders:
        raise FileNotFoundError(f"{path}: no run here or below")
    return [(str(folder), load(folder)) for folder in folders]


def check_wanted(entries: Sequence[Entry], wanted: Metric | None, group: str | None) -> None:
    if wanted is not None:
        choose_metric([entry.data for entry in entries], wanted)
    keys = dict.fromkeys(key for entry in entries for key in entry.settings)
    if group is not None and group not in keys:
        raise ValueError(f"no run has a setting called {group!r}; there are {', '.join(sorted(keys))}")


def make_section(problem: str, entries: list[Entry], wanted: Metric | None, group: str | None) -> Section:
    runs = [entry.data for entry in entries]
    notes = describe_states(entries)
    known = {name.removeprefix("log/") for run in runs for name in run.names}
    metric = choose_metric(runs, wanted if wanted is None or wanted.name in known else None)
    if wanted is not None and metric is not wanted:
        notes.append(f"{problem or 'these runs'} has no {wanted.name}: {metric.name} is used instead")
    rows = group_by_setting(entries)
    if len(rows) == 1 and name_settings_themselves(entries):
        rows = group_by_source(entries)
        notes.append(
            "the headers do not differ: the runs or folders named are compared; what sets them apart is not on record"
        )
    everything = sort_by_metric(rows, metric)
    settings = everything if group is None else choose_best(everything, group, notes)
    comparable = check_comparable(settings)
    excluded = comparable.excluded
    level = None if "Loss" in excluded or len(settings) < 2 else compare_at_level(settings, excluded)
    if level is None and len(settings) > 1 and "Loss" not in excluded:
        notes.append("there is no loss that all runs reach: instruments are not compared at equal loss")
    pairs = [compare_pair(settings[0], other, excluded) for other in settings[1:]]
    scores = {setting.name: [score(run, metric) for run in setting.runs] for setting in settings}
    sensitivity = measure_sensitivity(everything, metric)
    return Section(problem, metric, settings, scores, sensitivity, level, pairs, notes + comparable.notes)


def name_settings_themselves(entries: Sequence[Entry]) -> bool:
    """Several things were named, and they are more than seeds: folders of runs, or runs without seeds of their own."""
    sources, seeds = {entry.source for entry in entries}, [entry.seed for entry in entries]
    distinct = all(seeds) and len(set(seeds)) == len(seeds)
    return len(sources) > 1 and (len(sources) < len(entries) or not distinct)


def sort_by_metric(settings: list[Setting], metric: Metric) -> list[Setting]:
    return sorted(settings, key=lambda s: median_final(s, metric) * (1 if metric.less_is_better else -1))


def choose_best(settings: list[Setting], group: str, notes: list[str]) -> list[Setting]:
    """The best setting of each value of the key; ``settings`` are sorted. A note says if the numbers of trials
    differ."""
    chosen: dict[str, Setting] = {}
    for setting in settings:
        value = setting.entries[0].settings.get(group, "none")
        if value in chosen:
            chosen[value].chosen_from += 1
        else:
            chosen[value] = setting
    trials = {value: setting.chosen_from for value, setting in chosen.items()}
    if len(set(trials.values())) > 1:
        counts = ", ".join(f"{value} {count}" for value, count in trials.items())
        notes.append(
            f"unequal numbers of settings were tried ({counts}): more trials find a better one by chance alone"
        )
    return list(chosen.values())


def compare_pair(first: Setting, second: Setting, excluded: set[str]) -> Pair:
    names = [{name: None for run in setting.runs for name in list_quantities(run)} for setting in (first, second)]
    differences, alike, too_few = [], [], []
    for name in names[0]:
        if name in excluded or name not in names[1]:
            continue
        try:
            difference = find_difference(name, first, second)
        except TooFew:
            too_few.append(name)
            continue
        if difference is not None:
            differences.append(difference)
        else:
            alike.append(name)
    return Pair(first.name, second.name, sorted(differences, key=lambda d: d.step), alike, too_few)
