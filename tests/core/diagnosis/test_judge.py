"""What becomes a finding, what follows from what, and what is taken back."""

from __future__ import annotations

import math

from cockpit_core.diagnoses.base import Diagnosis, Found
from cockpit_core.diagnosis.history import Observation
from cockpit_core.diagnosis.judge import EVERY, FIRST, PATIENCE, Judge, rank
from cockpit_core.foundation.records import Finding
from tests.histories import healthy_scalars, make_header, replay_history


class High(Diagnosis):
    """A user's own: one class."""

    name = ""  # set in the tests, so that it is not registered for all
    hold, after = 3, 0

    def test(self, view):
        return Found("x is high.", "Lower it.") if view.last("x") > 1 else None


def judge_of(*rules: Diagnosis) -> Judge:
    judge = Judge(rules)
    judge.know(make_header())
    return judge


def make(name: str, base: type[Diagnosis] = High, **more: object) -> Diagnosis:
    rule = base()
    for key, value in {"name": name, **more}.items():
        setattr(rule, key, value)
    return rule


def see(judge: Judge, *values: float, key: str = "x") -> list[list[Finding]]:
    start = judge.history.count
    return [judge.see(Observation(start + i, {key: value})) for i, value in enumerate(values)]


def test_a_rule_must_hold_for_some_steps_in_a_row() -> None:
    judge = judge_of(make("high"))
    assert see(judge, 2, 2, 0, 2, 2) == [[]] * 5
    (news,) = see(judge, 2)
    assert [(f.name, f.since, f.step) for f in news] == [("high", 3, 5)]
    assert see(judge, 2, 2) == [[], []], "said once"


def test_two_causes_that_nothing_separates_name_one_another() -> None:
    one = make("one", hold=1, title="one is wrong", rivals={"two": "a run without the other."})
    two = make("two", hold=1, title="two is wrong")
    two.test = lambda view: Found("y is high.", "Lower it.") if view.last("y") > 1 else None  # type: ignore[method-assign]
    judge = judge_of(one, two)
    see(judge, 2, 2)
    assert judge.found["one"].text == "x is high."
    judge.see(Observation(2, {"x": 2.0, "y": 2.0}))
    assert judge.found["one"].text == "x is high. Either this, or two is wrong."
    assert judge.found["two"].text == "y is high. Either this, or one is wrong."
    assert judge.found["one"].remedy == judge.found["two"].remedy == "Lower it. What decides: a run without the other."
    for step in range(3, 4 + PATIENCE):
        judge.see(Observation(step, {"x": 2.0, "y": 0.0}))
    assert judge.found["two"].retracted
    assert judge.found["one"].text == "x is high."
    assert judge.found["one"].remedy == "Lower it."


def test_a_cause_and_its_consequence_are_no_rivals() -> None:
    one = make("one", hold=1, title="one is wrong", rivals={"two": "a run."}, explains=("two",))
    judge = judge_of(one, make("two", hold=1, title="two is wrong"))
    see(judge, 2, 2)
    assert judge.found["one"].text == "x is high."


def test_a_fact_whose_consequence_is_an_alarm_does_harm() -> None:
    fact = make("fact", hold=1, severity="advice", explains=("symptom",))
    symptom = make("symptom", hold=1)
    symptom.test = lambda view: Found("y is high.", "Lower it.") if view.last("y") > 1 else None  # type: ignore[method-assign]
    judge = judge_of(fact, symptom)
    see(judge, 2)
    assert [(f.name, f.severity) for f in rank(judge.found.values())] == [("fact", "advice")]
    judge.see(Observation(1, {"x": 2.0, "y": 2.0}))
    assert [(f.name, f.severity) for f in rank(judge.found.values())] == [("fact", "likely")]


def test_probes_are_asked_for_on_suspicion_one_at_a_time() -> None:
    rules = [make(name, probe=name, suspects=lambda view: view.last("x") > 1) for name in ("line", "mode")]
    judge = judge_of(*rules)
    see(judge, *[2] * 9)
    assert judge.probe == "", "nobody who only reads a log asks"
    judge.probing = True
    see(judge, 2)
    assert judge.probe == "line"
    judge.see(Observation(10, {"x": 2.0, "signal/probe/line": 1.0}))
    assert judge.probe == "mode", "what was looked at least often"
    see(judge, 0)
    assert judge.probe == ""


def test_a_finding_is_taken_back_and_comes_again() -> None:
    judge = judge_of(make("high"))
    see(judge, *[2] * 3)
    news = see(judge, *[0] * PATIENCE)
    assert [f.retracted for f in news[-1]] == [True]
    assert all(not some for some in news[:-1])
    assert rank(judge.found.values())[0].retracted
    again = see(judge, 2, 2, 2)
    assert [f.retracted for f in again[-1]] == [False]
    assert judge.found["high"].since == 0, "it is the same finding"


def test_what_has_happened_is_not_taken_back() -> None:
    judge = judge_of(make("high", sticky=True))
    see(judge, *[2] * 3, *[0] * 3 * PATIENCE)
    assert not judge.found["high"].retracted


def test_nothing_is_taken_back_after_the_loss_has_broken() -> None:
    judge = judge_of(make("high"))
    see(judge, *[2] * 3)
    see(judge, *[math.nan] * 3 * PATIENCE, key="Loss")
    assert not judge.found["high"].retracted


def test_causes_fold_their_symptoms_also_by_way_of_others() -> None:
    rules = [make("cause", explains=("middle",)), make("middle", explains=("end",)), make("end"), make("other")]
    judge = judge_of(*rules)
    see(judge, *[2] * 3)
    shown = rank(judge.found.values())
    assert [f.name for f in shown] == ["cause", "other"]
    assert shown[0].explains == ["middle", "end"]


def test_two_that_explain_each_other_do_not_both_vanish() -> None:
    rules = [make("one", explains=("two",), confidence=0.5), make("two", explains=("one",), confidence=0.9)]
    judge = judge_of(*rules)
    see(judge, *[2] * 3)
    assert [f.name for f in rank(judge.found.values())] == ["two"]


def test_what_made_the_loss_nan_has_broken_the_run() -> None:
    judge = judge_of(make("high", explains=("not_finite",)), make("not_finite", severity="broken"))
    see(judge, *[2] * 3)
    assert [(f.name, f.severity) for f in rank(judge.found.values())] == [("high", "broken")]


def test_worst_first() -> None:
    rules = [
        make("c", severity="advice"),
        make("b", confidence=0.5),
        make("a", confidence=0.9),
        make("d", severity="broken"),
    ]
    judge = judge_of(*rules)
    see(judge, *[2] * 3)
    assert [f.name for f in rank(judge.found.values())] == ["d", "a", "b", "c"]


def test_a_rule_that_fails_is_silent_and_noted() -> None:
    class Bad(High):
        def test(self, view):
            return 1 / 0

    judge = judge_of(make("bad", Bad), make("high"))
    see(judge, *[2] * 3)
    assert list(judge.found) == ["high"]
    assert "ZeroDivisionError" in judge.failed["bad"]


def test_missing_evidence_is_silent_and_named() -> None:
    judge = Judge()
    judge.know(make_header())
    for i in range(40):
        judge.see(Observation(5 * i, {"Loss": healthy_scalars(i, 40)["Loss"]}))
    assert rank(judge.found.values()) == []
    missing = judge.not_examined()
    assert "dead" in missing["dead_units"]
    assert "not_finite" not in missing
    assert replay_history().not_examined().keys() < missing.keys()


def test_memory_is_bounded() -> None:
    judge = replay_history(n=300)
    assert len(judge.history.late) <= 48
    assert sum(bool(seen.layers) for seen in judge.history.late) <= 7


def test_a_run_of_three_steps_raises_nothing() -> None:
    assert rank(replay_history(n=3).found.values()) == []
    assert rank(replay_history(n=0).found.values()) == []


def test_later_steps_are_judged_now_and_then_but_at_once_where_the_loss_breaks() -> None:
    judge = judge_of(make("high", hold=6))
    see(judge, *[0] * (FIRST - 1))
    news = see(judge, *[2] * 12)
    told = [place for place, some in enumerate(news) if some]
    assert told == [2 * EVERY], "the streak counts tracked steps, not judgements"
    assert judge.found["high"].since == FIRST - 1
    taken_back = [some for some in see(judge, *[0] * (PATIENCE + EVERY)) if some]
    assert [f.retracted for f in taken_back[0]] == [True]
    judge = judge_of(
        make("nan", hold=1, test=lambda view: Found("x", "y") if view.history.first_not_finite >= 0 else None)
    )
    see(judge, *[1.0] * (FIRST + 1), key="Loss")
    assert see(judge, math.nan, key="Loss")[0], "a loss that breaks does not wait"
