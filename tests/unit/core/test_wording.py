"""Times and spans in messages of the core."""

from __future__ import annotations

import pytest

from airyard.core.wording import hours, moment, span


def test_a_moment_shows_seconds_only_where_there_are_some() -> None:
    assert moment(1_796_198_400_000) == "2026-12-02 08:00 UTC"
    assert moment(1_796_198_405_999) == "2026-12-02 08:00:05 UTC"


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (-5, "0 s"),
        (59_999, "59 s"),
        (60_000, "1 min"),
        (200_000, "3 min 20 s"),
        (7_500_000, "2 h 5 min"),
        (7_201_000, "2 h"),
        (273_600_000, "3 d 4 h"),
    ],
)
def test_a_span_has_two_units_at_most(ms: int, words: str) -> None:
    assert span(ms) == words


@pytest.mark.parametrize(
    ("amount", "words"),
    [(0.0, "0.0"), (0.001, "0.001"), (0.00123, "0.0012"), (0.26, "0.26"), (2.64, "2.6"), (1200.0, "1200.0")],
)
def test_few_hours_are_not_rounded_away(amount: float, words: str) -> None:
    assert hours(amount) == words
