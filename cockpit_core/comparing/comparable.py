"""Which values of two logs must not be put side by side, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cockpit_core.comparing.curves import IN_PARAMETER_SPACE, STABILITY, list_quantities
from cockpit_core.comparing.metrics import has_diverged
from cockpit_core.comparing.settings import Entry, Setting, is_lost, name_loss
from cockpit_core.events.data import RunData
from cockpit_core.foundation.records import Header

OF_THE_NETWORK = (*IN_PARAMETER_SPACE, "HessTrace", "HessMaxEV", "TICDiag", "TICTrace", STABILITY)
OF_CURVATURE = ("HessTrace", "TICDiag", "TICTrace")
FREE_OPTIONS = ("bins", "range", "parameter_range")  # how a histogram is drawn


@dataclass(frozen=True)
class Comparable:
    excluded: set[str]
    notes: list[str]


def check_comparable(settings: Sequence[Setting]) -> Comparable:
    runs = [run for setting in settings for run in setting.runs]
    headers = [run.header for run in runs]
    excluded: set[str] = set()
    notes: list[str] = []
    if len({name_loss(header) for header in headers}) > 1:
        excluded.add("Loss")
        notes.append(
            f"different loss functions ({list_values(name_loss(h) for h in headers)}): their losses are not compared"
        )
    if len({describe_network(header) for header in headers}) > 1:
        excluded |= set(OF_THE_NETWORK)
        notes.append("different networks: lengths and curvature in the space of the parameters are not compared")
    for name in find_redefined(headers):
        excluded.add(name)
        notes.append(f"{name} was measured with different options and is not compared")
    if len({header.curvature for header in headers}) > 1:
        excluded |= set(OF_CURVATURE)
        notes.append(f"curvature of different kinds ({list_values(h.curvature for h in headers)}) is not compared")
    return Comparable(excluded, notes + describe_recording(settings, headers) + describe_missing(settings, excluded))


def describe_network(header: Header) -> tuple:
    return tuple((layer.name, tuple(layer.shape)) for layer in header.layers)


def find_redefined(headers: Sequence[Header]) -> list[str]:
    defined: dict[str, set[tuple]] = {}
    for header in headers:
        for quantity in header.quantities:
            options = tuple(sorted((k, v) for k, v in quantity.options.items() if k not in FREE_OPTIONS))
            defined.setdefault(quantity.name, set()).add(options)
    return [name for name, options in defined.items() if len(options) > 1]


def describe_recording(settings: Sequence[Setting], headers: Sequence[Header]) -> list[str]:
    notes = []
    for key in ("cockpit", "torch"):
        versions = {header.versions[key] for header in headers if key in header.versions}
        if len(versions) > 1:
            what = " (a quantity may be defined differently)" if key == "cockpit" else ""
            notes.append(f"different versions of {key}: {', '.join(sorted(versions))}{what}")
    if len({header.batch_size for header in headers if header.batch_size}) > 1:
        notes.append(
            "different batch sizes: a step is not the same amount of data; noise and signal share depend on it"
        )
    if len({header.schedule for header in headers}) > 1:
        notes.append("tracked at different steps: first differences are read at the steps of the coarsest run")
    lasts = {s.name: max(last_step(run) for run in s.runs) for s in settings}
    longest = max(lasts.values(), default=0)
    short = [f"{name} (step {last})" for name, last in lasts.items() if last < 0.9 * longest]
    if short:
        notes.append(
            f"shorter than the longest (step {longest}): {'; '.join(short)}; their final values come from different steps"
        )
    return notes


def describe_missing(settings: Sequence[Setting], excluded: set[str]) -> list[str]:
    having = {s.name: {name for run in s.runs for name in list_quantities(run)} for s in settings}
    everywhere = set.intersection(*having.values()) if having else set()
    anywhere = {name for names in having.values() for name in names} - excluded
    partly = sorted(anywhere - everywhere)
    return [f"measured by some settings only, and not compared with the others: {', '.join(partly)}"] if partly else []


def describe_states(entries: Sequence[Entry]) -> list[str]:
    """Runs that did not end as they should."""
    notes = []
    for entry in entries:
        if has_diverged(entry.data):
            notes.append(f"{entry.name}: the loss ended as NaN or infinite; it counts as the worst")
        elif entry.data.status not in ("finished", "stopped"):
            notes.append(f"{entry.name} is {entry.data.status}: its last value is not a final one")
        if is_lost(entry.data.header):
            notes.append(f"{entry.name}: its header is lost, so its settings are not known")
        if entry.data.broken:
            notes.append(f"{entry.name}: {entry.data.broken} damaged records were skipped")
    if len(notes) > 12:
        notes[12:] = [f"and {len(notes) - 12} more of this kind"]
    return notes


def last_step(run: RunData) -> int:
    return int(run.rows.step.max()) if run.rows.step.size else 0


def list_values(values: object) -> str:
    return ", ".join(sorted({str(value) or "unknown" for value in values}))  # type: ignore[attr-defined]
