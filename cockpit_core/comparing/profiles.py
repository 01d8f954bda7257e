"""Performance profiles over problems (Dolan and More 2002): how often each contestant is within a given factor of the
fastest.

Cost of a setting on a problem: steps until its median run reaches the target. The ratio compares it with the cheapest
setting of the problem; the profile rho(tau) is the share of problems on which the ratio is at most tau. A problem
whose target was not
named has the median of the settings' final values as target: half of them reach it, whatever the metric is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cockpit_core.comparing.metrics import Metric, median_final, score
from cockpit_core.comparing.settings import Setting

Race = tuple[str, Metric, Sequence[Setting]]
"""A problem, what it is judged by, and who took part."""
FACTORS = (1.0, 1.5, 2.0, 4.0)
TINY = 1e-12


@dataclass(frozen=True)
class Profiles:
    """``ratios``: by contestant and problem, infinite where the target was not reached. ``targets``: metric and value."""

    problems: list[str]
    targets: dict[str, str]
    ratios: dict[str, dict[str, float]]

    def share_within(self, contestant: str, factor: float) -> float:
        own = self.ratios[contestant]
        return sum(own[problem] <= factor * (1 + TINY) for problem in self.problems) / len(self.problems)


def make_profiles(races: Sequence[Race], group: str | None) -> Profiles | None:
    """Of the contestants that ran on all problems; None where there are fewer than two of either."""
    costs: dict[str, dict[str, float]] = {}
    targets = {}
    for problem, usual, settings in races:
        metric = choose_target(settings, usual)
        targets[problem] = f"{metric.name} {metric.target:.4g}"
        for setting in settings:
            costs.setdefault(name_of(setting, group), {})[problem] = find_cost(setting, metric)
    whole = {name: own for name, own in costs.items() if len(own) == len(races)}
    if len(races) < 2 or len(whole) < 2:
        return None
    ratios: dict[str, dict[str, float]] = {name: {} for name in whole}
    for problem in targets:
        best = min(own[problem] for own in whole.values())
        for name, own in whole.items():
            ratios[name][problem] = own[problem] / best if math.isfinite(best) else math.inf
    return Profiles(list(targets), targets, ratios)


def name_of(setting: Setting, group: str | None) -> str:
    return setting.name if group is None else setting.entries[0].settings.get(group, "none")


def choose_target(settings: Sequence[Setting], metric: Metric) -> Metric:
    """As named; else the lower median of what the settings reached in the end."""
    if metric.target is not None:
        return metric
    finals = sorted((median_final(s, metric) for s in settings), reverse=not metric.less_is_better)
    return replace(metric, target=finals[(len(finals) - 1) // 2])


def find_cost(setting: Setting, metric: Metric) -> float:
    """Steps to the target, at least one; infinite where more than half of the seeds do not reach it."""
    steps = [score(run, metric).steps_to_target for run in setting.runs]
    return max(float(np.quantile(steps, 0.5, method="lower")), 1.0)
