"""How sure a finding is: the measured precision of its rule, where the benchmark has named it often enough."""

from __future__ import annotations

from cockpit_core.diagnosis.measured import MEASURED

PRIOR = 4  # runs that the estimate in the rule's own file counts for
DATA = ("labels_random", "label_noise", "target_in_inputs")  # blamed with a half at most: a badly tuned run looks alike
MOST = 0.99


def weigh(estimate: float, right: int, said: int) -> float:
    """Precision over the benchmark's runs, with the rule's own estimate as if it were four more of them."""
    return min(MOST, (right + PRIOR * estimate) / (said + PRIOR))


def confidence_of(name: str, estimate: float) -> float:
    """The confidence of a rule. ``estimate`` is what its file says; for a user's own rule there is nothing else."""
    if name in DATA:
        return min(0.5, estimate)
    return round(weigh(estimate, *MEASURED.get(name, (0, 0))), 2)
