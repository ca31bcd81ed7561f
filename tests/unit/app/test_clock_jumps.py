"""The loop tells its ticks of a clock that was set ahead, and of nothing else that a clock does."""

from __future__ import annotations

import pytest

from airyard.adapters.system_clock import SystemClock
from airyard.app import loop as loops


@pytest.mark.parametrize(
    ("wall_s", "steady_s", "jumped_s"),
    [(1, 1, 0), (900, 900, 0), (20, 1, 0), (3601, 1, 3600), (-3600, 1, 0)],
    ids=["a second", "a slow look", "kept by NTP", "set ahead", "set back"],
)
def test_a_clock_that_is_set_ahead_is_told_of(wall_s: int, steady_s: int, jumped_s: int) -> None:
    told = [1_700_000_000, 50]
    clock = SystemClock(lambda: told[0] * 10**9, lambda: told[1] * 10**9)
    loop = object.__new__(loops.ControlLoop)
    loop._clock, loop._ahead_ms = clock, None
    assert loop._jumped_ms() == 0
    told[0] += wall_s
    told[1] += steady_s
    assert loop._jumped_ms() == jumped_s * 1000
    assert loop._jumped_ms() == 0
