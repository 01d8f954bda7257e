"""Verdicts by hand: who is harmed, what is left out, what counts as right, and what published thresholds say."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.diagnosis import grading
from benchmarks.diagnosis.ported import MEANS, TOOLS, Trace, autotrainer, count_swings, sagemaker, stalls, umlaut
from benchmarks.diagnosis.saving import open_saved, save
from benchmarks.diagnosis.verdicts import ALL, KINDS, Alarm, Verdict, names_right_layers
from cockpit_core.diagnoses import all_diagnoses
from cockpit_core.diagnosis.history import Observation
from cockpit_core.foundation.records import Finding, Header, LayerInfo


def alarm(name: str, confidence: float = 0.8, severity: str = "likely", at: int = 5) -> Alarm:
    return Alarm(name, severity, confidence, at, 0)


def verdict(case: str, error: float, *alarms: Alarm, seed: int = 0, program: str = "mlp", **more: object) -> Verdict:
    return Verdict(program, case, seed, 100, error, {ALL: list(alarms)}, **more)  # type: ignore[arg-type]


def plain() -> list[Verdict]:
    return [verdict("plain", 0.10 * (1 + seed), seed=seed) for seed in range(3)]


def test_harm_is_decided_by_most_seeds_against_the_plain_run_of_the_same_data() -> None:
    hurt = [verdict("severe/lr_high", error, seed=seed) for seed, error in enumerate((0.5, 0.5, 0.3))]
    fine = [verdict("mild/lr_high", error, seed=seed) for seed, error in enumerate((0.5, 0.2, 0.3))]
    grading.decide_harm([*plain(), *hurt, *fine])
    assert [v.harmed for v in hurt] == [True] * 3
    assert [v.harmed for v in fine] == [False] * 3


def test_a_healthy_draw_may_train_badly_and_noise_is_allowed_for() -> None:
    good, bad, noisy = (verdict(c, e) for c, e in (("healthy", 0.29), ("healthy", 0.32), ("awkward/noisy_labels", 0.5)))
    grading.decide_harm([*plain(), good, bad, noisy])
    assert (good.harmed, bad.harmed, noisy.harmed) == (False, True, False)


def test_equivalent_causes_are_equal_and_the_second_counts_apart() -> None:
    v = verdict("severe/init_large", 1.0, alarm("dead_units"), alarm("learning_rate_too_high"), harmed=True)
    assert not grading.is_right()(v)
    assert grading.is_right(ALL, 2)(v)
    assert grading.confusion([v]) == {"init_large": {"dead_units": 1}}
    assert grading.confusion([replace(v, alarms={ALL: v.alarms[ALL][1:]})]) == {"init_large": {"right": 1}}


def test_confidence_is_that_of_the_other_programs_and_decides_the_order() -> None:
    wrong = [verdict("healthy", 0.1, alarm("dead_units"), seed=i, program="cnn") for i in range(30)]
    judged = verdict("severe/lr_high", 1.0, alarm("dead_units", 0.95), alarm("learning_rate_too_high", 0.7))
    graded = grading.leave_out([*wrong, judged])[-1]
    assert [a.name for a in graded.alarms[ALL]] == ["learning_rate_too_high", "dead_units"]
    assert graded.alarms[ALL][1].confidence < 0.2
    own = grading.leave_out(wrong)[0].alarms[ALL][0]  # nothing of other programs: what the rule's file says
    assert own.confidence == pytest.approx(all_diagnoses()["dead_units"].confidence)


def test_data_are_blamed_only_above_a_half() -> None:
    assert not grading.blames_data(verdict("healthy", 1.0, alarm("labels_random", 0.5)))
    assert grading.blames_data(verdict("healthy", 1.0, alarm("lr", 0.9), alarm("input_outliers", 0.51)))


def test_detection_is_when_it_was_in_the_log() -> None:
    early, late = (verdict("severe/lr_high", 1.0, alarm("learning_rate_too_high", at=at)) for at in (5, 45))
    assert grading.when_found([early, late]) == pytest.approx(0.25)
    assert math.isnan(grading.when_found([verdict("severe/lr_high", 1.0, alarm("dead_units"))]))


def test_saved_verdicts_come_back_as_they_were(tmp_path: Path) -> None:
    some = verdict(
        "severe/lr_high", 0.1234, alarm("dead_units"), alarm("loss_sign", severity="broken", at=45), layer=False
    )
    some.alarms = {kind: list(some.alarms[ALL]) if kind != "loss curve only" else [] for kind in KINDS}
    some.advice, some.tools = ["batch_too_large"], {"UMLAUT": ["input range"]}
    other = replace(some, alarms={kind: [] for kind in KINDS}, advice=[], tools={}, layer=None, case="plain")
    save([some, other], tmp_path / "verdicts.json")
    assert open_saved(tmp_path / "verdicts.json") == [some, other]


def test_a_layer_is_right_if_all_that_is_named_lies_in_the_fault() -> None:
    def found(*layers: str) -> Finding:
        return Finding("dead_units", "likely", "", 0, list(layers))

    assert names_right_layers(found("3.weight", "4"), ["3", "4"])
    assert not names_right_layers(found("3.weight", "5"), ["3", "4"])
    assert not names_right_layers(found("31.weight"), ["3"])
    assert not names_right_layers(found(), ["3"])


def trace(losses: list[float], gradients: tuple[float, float] = (1.0, 1.0), hits: float = 0.9, **more: object) -> Trace:
    layers = [LayerInfo("0.weight", (4, 4), 16), LayerInfo("2.weight", (4, 4), 16)]
    vectors = {"GradNorm": np.array(gradients), "UpdateSize": np.full(2, 0.01), "ParamNorm": np.ones(2)}
    steps = [
        Observation(5 * i, {"Loss": loss, "LearningRate": 0.01, "signal/accuracy": hits, "signal/dead": 0.0}, vectors)
        for i, loss in enumerate(losses)
    ]
    given = {"static": {}, "inputs": (0.0, 1.0), "error": 0.3, "classes": True, **more}
    return Trace(steps, Header(run_id="", name="", created=0.0, layers=layers), **given)  # type: ignore[arg-type]


FALLING = [2.0 * 0.9**i for i in range(30)]


def test_published_thresholds_are_silent_on_an_easy_run() -> None:
    for tool, test in TOOLS.items():
        expected = ["slow convergence"] if tool == "AutoTrainer" else ["accuracy not increasing"]
        assert test(trace(FALLING)) == (expected if tool in ("AutoTrainer", "DeepDiagnosis") else []), tool


def test_published_thresholds_speak_where_their_papers_say() -> None:
    assert autotrainer(trace(FALLING, (1e-5, 1.0), hits=0.1)) == ["vanishing gradient"]
    assert autotrainer(trace(FALLING, (71.0, 1.0), hits=0.1)) == ["exploding gradient"]
    assert autotrainer(trace([2.0, math.nan])) == ["exploding gradient"]
    assert "input range" in umlaut(trace(FALLING, inputs=(-1.1, 1.0)))
    assert "validation too good" in umlaut(trace(FALLING, error=0.04))
    assert "vanishing gradient" in sagemaker(trace(FALLING, (1e-7, 1.0)))
    assert "loss not decreasing" in sagemaker(trace([*FALLING, 2.0, 2.0]))
    assert stalls([1.0, 0.9, 0.9995], 1)
    assert not stalls([1.0, 0.9, 0.8], 1)
    assert count_swings([0.1, 0.5, 0.1, 0.5, 0.1], 0.03) == 1


def test_what_published_words_mean_are_diagnoses() -> None:
    for names in MEANS.values():
        assert set(names) <= set(all_diagnoses())
