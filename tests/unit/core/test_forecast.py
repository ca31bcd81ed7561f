"""What is predicted from few and many ended runs, and how good it was."""

from __future__ import annotations

import pytest

from airyard.core.forecast.durations import KEPT, Durations
from airyard.core.forecast.expectations import Expectations
from airyard.core.forecast.predictor import LEAN, MOST_KEYS, UNKNOWN_MS, Likeness, Predictor

HOUR_MS = 3_600_000


def like(project: str = "nlp", user: str = "ada", experiment: str = "a", devices: int = 1) -> Likeness:
    return Likeness(pool="H100", project=project, shape=(devices, 1), user=user, experiment=experiment)


def test_quantiles_are_of_the_last_ones_that_lasted_longer() -> None:
    found = Durations()
    for lasted in range(1, KEPT + 101):
        found.add(lasted)
    assert len(found) == KEPT
    assert found.in_order()[0] == 101
    assert found.quantile(0.5) == 101 + (KEPT - 1) // 2
    assert found.beyond(KEPT + 90) == 10
    assert found.quantile(0.0, KEPT + 90) == KEPT + 91
    with pytest.raises(IndexError):
        found.quantile(0.5, KEPT + 100)


def test_nothing_known_is_an_hour_or_the_limit() -> None:
    found = Predictor().remaining(like())
    assert (found.p50_ms, found.samples, found.source) == (UNKNOWN_MS, 0, "none")
    young = Predictor().remaining(like(), elapsed_ms=60_000)
    assert young.p50_ms == UNKNOWN_MS - 60_000
    limited = Predictor().remaining(like(), limit_ms=60_000)
    assert (limited.p50_ms, limited.p90_ms, limited.source) == (60_000, 60_000, "limit")


def test_the_narrowest_level_decides_once_it_has_samples() -> None:
    learnt = Predictor()
    for _ in range(50):
        learnt.observe(like(user="eve", experiment="b"), 10 * HOUR_MS)
    for _ in range(50):
        learnt.observe(like(), HOUR_MS)
    assert learnt.remaining(like()).p50_ms == pytest.approx(HOUR_MS, rel=0.25)
    assert learnt.remaining(like(user="eve", experiment="b")).p50_ms == pytest.approx(10 * HOUR_MS, rel=0.25)
    assert learnt.remaining(like(user="joe")).source == "project"


def test_one_sample_leans_on_the_wider_level() -> None:
    learnt = Predictor()
    for _ in range(100):
        learnt.observe(like(user="eve", experiment="b"), HOUR_MS)
    learnt.observe(like(), 100 * HOUR_MS)
    found = learnt.remaining(like())
    assert found.source == "experiment"
    assert HOUR_MS < found.p50_ms < 10 * HOUR_MS
    assert LEAN > 1


def test_what_has_lasted_is_compared_with_those_that_lasted_longer() -> None:
    learnt = Predictor()
    for lasted in (1, 1, 1, 1, 20, 40):
        learnt.observe(like(), lasted * HOUR_MS)
    assert learnt.remaining(like(), 10 * HOUR_MS).p50_ms == 10 * HOUR_MS
    beyond_all = learnt.remaining(like(), 50 * HOUR_MS)
    assert (beyond_all.p50_ms, beyond_all.p90_ms) == (50 * HOUR_MS, 150 * HOUR_MS)


def test_a_limit_caps_what_is_left() -> None:
    learnt = Predictor()
    learnt.observe(like(), 10 * HOUR_MS)
    found = learnt.remaining(like(), HOUR_MS, limit_ms=2 * HOUR_MS)
    assert (found.p50_ms, found.p90_ms) == (HOUR_MS, HOUR_MS)


def test_what_is_learnt_is_bounded() -> None:
    learnt = Predictor()
    for number in range(MOST_KEYS):
        learnt.observe(like(experiment=str(number)), HOUR_MS)
    assert len(learnt._samples) <= MOST_KEYS
    assert learnt.remaining(like(experiment=str(MOST_KEYS - 1))).source == "experiment"
    assert learnt.remaining(like(experiment="0")).source == "user"


def test_accuracy_counts_hits_and_factors() -> None:
    learnt = Predictor()
    for lasted in (1, 2, 3, 8):
        learnt.observe(like(), lasted * HOUR_MS, (2 * HOUR_MS, 4 * HOUR_MS))
    found = learnt.accuracy()["H100"]
    assert (found.runs, found.before_p50, found.before_p90) == (4, 0.5, 0.75)
    assert found.median_factor == pytest.approx((1.5 * 2) ** 0.5)


def test_waiting_runs_are_told_when_expectations_move_far_enough() -> None:
    waiting = Expectations()
    waiting.wait(1, like(), HOUR_MS)
    waiting.wait(2, like(), HOUR_MS)
    waiting.wait(3, like(experiment="other"), HOUR_MS)
    assert waiting.outdated(like(), int(1.1 * HOUR_MS)) == ()
    assert waiting.outdated(like(), 2 * HOUR_MS) == (1, 2)
    assert waiting.outdated(like(), 2 * HOUR_MS) == ()
    waiting.leave(1)
    waiting.leave(7)
    assert waiting.outdated(like(), 4 * HOUR_MS) == (2,)


def test_a_run_served_for_longer_than_its_limit_over_several_attempts_may_use_all_of_it_again() -> None:
    found = Predictor().remaining(like(), 6 * HOUR_MS, limit_ms=HOUR_MS)
    assert (found.p50_ms, found.p90_ms, found.source) == (HOUR_MS, HOUR_MS, "limit")
    learnt = Predictor()
    for _ in range(20):
        learnt.observe(like(), 10 * HOUR_MS)
    assert learnt.remaining(like(), 6 * HOUR_MS, limit_ms=HOUR_MS).p90_ms == HOUR_MS
