"""When several runs of a node have all ended: later than each one's median, never later than the last p90."""

from __future__ import annotations

import pytest

from airyard.core.scheduling.ends import LATENESS, MOST, Staying, releases

HOUR = 3_600_000


def test_one_run_is_expected_at_its_median() -> None:
    assert list(releases([Staying(2 * HOUR, 9 * HOUR, HOUR, 2)])) == [2 * HOUR, 2 * HOUR]


def test_two_alike_have_both_ended_later_than_the_median_of_each() -> None:
    alike = Staying(HOUR + 4 * HOUR, HOUR + 16 * HOUR, HOUR, 1)
    first, both = releases([alike, alike])
    assert first == alike.end_ms
    # Log-normal with p90 = 4 x p50: the later of two has its median at 4 h x 4 ** (z(0.707) / z(0.9)).
    assert both - HOUR == pytest.approx(4 * HOUR * 4 ** (0.5450 / 1.2816), rel=0.001)


def test_an_end_that_is_certain_is_not_late() -> None:
    certain = [Staying(HOUR * at, HOUR * at, 0, 1) for at in range(1, 10)]
    assert list(releases(certain)) == [HOUR * at for at in range(1, 10)]


def test_lateness_grows_with_the_number_of_runs() -> None:
    assert LATENESS[1] == pytest.approx(0, abs=1e-9)
    assert len(LATENESS) == MOST + 1
    assert list(LATENESS[1:]) == sorted(set(LATENESS[1:]))
