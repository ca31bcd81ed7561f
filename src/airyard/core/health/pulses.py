"""What is remembered of the signs that a gang gives: how regular they were, and what its GPUs are at.

Owns: bursts, gaps, when a GPU counts as idle or pinned. Must not know: clocks (each call says when it is), where signs
come from, what follows from them (``core.health.signs``). Bounded: some hundred octets a source and a device.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum

BURST_MS = 1000
"""Signs that come within a second of each other are one: a step that logs ten metrics has made one step."""
WARM_UP = 3
"""The first silences are those of loading and compiling: they say nothing of the others."""
GAPS = 50
IDLE_PERCENT = 5.0
PINNED_PERCENT = 99.0
DROPPED = 0.8
"""A GPU whose kernels only wait draws less than this of what it drew at work."""
_SAME_MEMORY_MB = 16.0
_SAME_POWER = 0.15
_SAME_POWER_W = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One source, as it was until now. ``beats``: signs apart from each other; ``span_ms``: from the first to the last.

    ``usual_ms`` is the 99th percentile of the last 50 silences, ``longest_ms`` the longest that ever ended.
    """

    age_ms: int
    beats: int
    span_ms: int
    usual_ms: int
    longest_ms: int


class Pulse:
    """The signs of one source. Cost of a sign: a comparison, and once a second an entry."""

    __slots__ = ("_beat_ms", "_beats", "_first_ms", "_gaps", "_last_ms", "_longest_ms")

    def __init__(self) -> None:
        self._beats = 0
        self._first_ms = self._beat_ms = self._last_ms = 0
        self._longest_ms = 0
        self._gaps: deque[int] = deque(maxlen=GAPS)

    def beat(self, at_ms: int) -> None:
        """Take in a sign; one that is told late counts as if it came with the newest."""
        if self._beats == 0:
            self._first_ms = at_ms
        elif at_ms - self._beat_ms < BURST_MS:
            self._last_ms = max(self._last_ms, at_ms)
            return
        elif self._beats > WARM_UP:
            gap_ms = at_ms - self._last_ms
            self._gaps.append(gap_ms)
            self._longest_ms = max(self._longest_ms, gap_ms)
        self._beats += 1
        self._beat_ms = self._last_ms = at_ms

    def told(self, now_ms: int) -> Told | None:
        """Return what is known of it; None where there was no sign."""
        if self._beats == 0:
            return None
        gaps = sorted(self._gaps)
        return Told(
            age_ms=max(0, now_ms - self._last_ms),
            beats=self._beats,
            span_ms=self._last_ms - self._first_ms,
            usual_ms=gaps[math.ceil(0.99 * len(gaps)) - 1] if gaps else 0,
            longest_ms=self._longest_ms,
        )


class Picture(Enum):
    """What a GPU is at, as far as its readings tell."""

    WORKING = "WORKING"
    IDLE = "IDLE"
    """No kernel runs."""
    PINNED = "PINNED"
    """A kernel runs all the time and nothing else changes: that is what waiting in a collective looks like."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as its readings show it. ``still_ms``: how long it has been idle or pinned without any change.

    ``worked``: readings at work; ``work_ms``: from the first of them to the last. ``longest_ms``: the longest that it
    was still and then worked again. ``age_ms``: since the newest reading.
    """

    index: int
    picture: Picture
    age_ms: int
    still_ms: int
    worked: int
    work_ms: int
    longest_ms: int


class GpuTrack:
    """The readings of one GPU.

    A utilisation of 100 % says only that some kernel runs, and many a training shows nothing else from its first
    minute to its last. So pinned is a GPU only where its memory does not change either, and, where it tells its
    power, draws little and always the same: a kernel that spins until others come uses few of the units.
    """

    __slots__ = (
        "_first_work_ms",
        "_last_ms",
        "_last_work_ms",
        "_longest_ms",
        "_memory_mb",
        "_most_w",
        "_picture",
        "_power_w",
        "_still_since_ms",
        "_worked",
    )

    def __init__(self) -> None:
        self._picture = Picture.WORKING
        self._last_ms = self._still_since_ms = 0
        self._memory_mb = self._power_w = 0.0
        self._most_w = 0.0
        self._worked = 0
        self._first_work_ms = self._last_work_ms = 0
        self._longest_ms = 0

    def read(self, at_ms: int, percent: float, memory_mb: float | None, power_w: float | None) -> None:
        """Take in a reading."""
        memory_mb, watts = memory_mb or 0.0, power_w or 0.0
        self._most_w = max(self._most_w, watts)
        found = self._found(percent, watts)
        same_power = found is Picture.IDLE or abs(watts - self._power_w) <= max(
            _SAME_POWER_W, _SAME_POWER * self._power_w
        )
        same = found is self._picture and same_power and abs(memory_mb - self._memory_mb) <= _SAME_MEMORY_MB
        if found is Picture.WORKING or not same:
            if self._picture is not Picture.WORKING:
                self._longest_ms = max(self._longest_ms, at_ms - self._still_since_ms)
            self._picture, self._still_since_ms = found, at_ms
            self._memory_mb, self._power_w = memory_mb, watts
        if found is Picture.WORKING:
            self._first_work_ms = self._first_work_ms if self._worked else at_ms
            self._last_work_ms = at_ms
            self._worked += 1
        self._last_ms = at_ms

    def _found(self, percent: float, watts: float) -> Picture:
        if percent <= IDLE_PERCENT:
            return Picture.IDLE
        if percent >= PINNED_PERCENT and (not watts or watts < DROPPED * self._most_w):
            return Picture.PINNED
        return Picture.WORKING

    def seen(self, index: int, now_ms: int) -> Gpu:
        """Return what is known of it."""
        still = self._picture is not Picture.WORKING
        return Gpu(
            index=index,
            picture=self._picture,
            age_ms=max(0, now_ms - self._last_ms),
            still_ms=self._last_ms - self._still_since_ms if still else 0,
            worked=self._worked,
            work_ms=self._last_work_ms - self._first_work_ms,
            longest_ms=self._longest_ms,
        )
