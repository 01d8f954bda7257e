"""What a diagnosis lacks: a quantity that was not tracked, a loss that was not logged, signals of a log without any.

A signal without a value in a log that has others does not apply to the run (a loss without classes), nor does the entropy of
attention to a network without: nothing is lacking then.
"""

from __future__ import annotations

from collections.abc import Iterable

from cockpit_core.diagnosis.history import SIGNAL, History

PROBE = "probe/"
VALIDATION = "valid_loss"
NOT_EVERYWHERE = ("AttentionEntropy",)
"""Quantities that have no value in networks of another kind, although they are asked for."""
WORDS = {VALIDATION: "a validation loss (run.log(valid_loss=...))"}


def lacking(needs: Iterable[str], history: History, planned: set[str]) -> list[str]:
    """Which of these would bring evidence; none where one of them is there, or where no value is to be expected."""
    wanted = list(needs)
    if any(is_there(need, history) for need in wanted):
        return []
    has_signals = any(name.startswith(SIGNAL) for name in history.names) or bool(history.static)
    lacks = []
    for need in wanted:
        if need.startswith(PROBE):
            continue  # made when there is a suspicion
        is_quantity = need[:1].isupper()
        if need == VALIDATION or (is_quantity and not (need in planned and need in NOT_EVERYWHERE)):
            lacks.append(need)
        elif not is_quantity and not has_signals:
            lacks.append(SIGNAL + need)
    return lacks


def is_there(need: str, history: History) -> bool:
    if need == VALIDATION:
        return history.logged.looks("loss") is not None
    return need in history.names or SIGNAL + need in history.names or need in history.static


def describe(lacks: Iterable[str]) -> list[str]:
    """For people: signals, which come all together, once."""
    names = sorted(set(lacks))
    signals = any(name.startswith(SIGNAL) for name in names)
    words = [WORDS.get(name, name) for name in names if not name.startswith(SIGNAL)]
    return words + ["the signals that every tracked step records since this version"] * signals
