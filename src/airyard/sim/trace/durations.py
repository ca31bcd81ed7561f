"""How long runs are thought to last in a replay: known, or learnt from the runs that have ended.

Owns: what a replay asks of a forecast, the oracle, a plain median, and how far off a forecast was.
Must not know: the planner, events.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right, insort
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from airyard.core.scheduling.snapshot import UNKNOWN_MS
from airyard.sim.trace.demand import Job

KEPT = 200
"""Ended runs of one key that the plain median looks at."""


class Durations(Protocol):
    """A forecast: told of ends, asked about runs. Times are in ms."""

    def remaining(self, job: Job, served_ms: int, saved_ms: int) -> tuple[int, int]:
        """Return how much longer a job lasts (p50, p90), each at least 1.

        It has had ``served_ms`` of service, of which ``saved_ms`` of work is saved; only the oracle may look at that.
        """
        ...

    def ended(self, job: Job, lasted_ms: int) -> None:
        """Learn from a job that has ended after so much service."""
        ...


class TrueDurations:
    """The oracle: it knows what each job needs."""

    def remaining(self, job: Job, served_ms: int, saved_ms: int) -> tuple[int, int]:
        """Return what is left of the work."""
        rest_ms = max(job.run.duration_ms - saved_ms, 1)
        return rest_ms, rest_ms

    def ended(self, job: Job, lasted_ms: int) -> None:
        """There is nothing to learn."""


class _Past:
    """The durations of the last ``KEPT`` ended runs of one key, in order of end and sorted."""

    __slots__ = ("by_end", "by_length")

    def __init__(self) -> None:
        self.by_end: deque[int] = deque()
        self.by_length: list[int] = []

    def add(self, lasted_ms: int) -> None:
        self.by_end.append(lasted_ms)
        insort(self.by_length, lasted_ms)
        if len(self.by_end) > KEPT:
            del self.by_length[bisect_left(self.by_length, self.by_end.popleft())]

    def beyond(self, served_ms: int) -> tuple[int, int] | None:
        """Return p50 and p90 of those that lasted longer, less what was served; None when none did."""
        first = bisect_right(self.by_length, served_ms) if served_ms else 0
        count = len(self.by_length) - first
        if not count:
            return None
        p50 = self.by_length[first + (count - 1) // 2]
        p90 = self.by_length[first + (count - 1) * 9 // 10]
        return max(p50 - served_ms, 1), max(p90 - served_ms, 1)


class MedianDurations:
    """The plain forecast: the median of the last 200 of (project, devices), else of all, else the limit or an hour."""

    def __init__(self) -> None:
        self._of_key: dict[tuple[str, int], _Past] = {}
        self._all = _Past()

    def remaining(self, job: Job, served_ms: int, saved_ms: int) -> tuple[int, int]:
        """Return median and p90 of those that lasted longer than ``served_ms``, within the time limit."""
        past = self._of_key.get((job.run.project, job.run.devices))
        found = past.beyond(served_ms) if past is not None else None
        if found is None:
            found = self._all.beyond(served_ms)
        limit_ms = job.run.limit_ms
        if found is None:
            rest_ms = max((limit_ms or UNKNOWN_MS) - served_ms, served_ms // 2, 1000)
            return rest_ms, rest_ms
        if limit_ms is None:
            return found
        rest_ms = max(limit_ms - served_ms, 1)
        return min(found[0], rest_ms), min(found[1], rest_ms)

    def ended(self, job: Job, lasted_ms: int) -> None:
        """Learn a duration."""
        key = job.run.project, job.run.devices
        past = self._of_key.get(key)
        if past is None:
            past = self._of_key[key] = _Past()
        past.add(lasted_ms)
        self._all.add(lasted_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """How far a forecast was off when runs first started. ``runs`` 0: nothing was predicted.

    Half of the runs lasted between the prediction divided by ``factor_p50`` and times it; ``within_p90`` is the share
    that lasted no longer than the p90 that was named.
    """

    runs: int
    factor_p50: float
    factor_p90: float
    within_p50: float
    within_p90: float


class Judge:
    """Compares predictions with what came."""

    def __init__(self) -> None:
        self._off: list[float] = []
        self._within_p50 = 0
        self._within_p90 = 0

    def note(self, predicted: tuple[int, int], lasted_ms: int) -> None:
        """Take in one prediction (p50, p90) and the duration that came."""
        self._off.append(abs(math.log(max(lasted_ms, 1) / max(predicted[0], 1))))
        self._within_p50 += lasted_ms <= predicted[0]
        self._within_p90 += lasted_ms <= predicted[1]

    def accuracy(self) -> Accuracy:
        """Return the verdict."""
        count = len(self._off)
        if not count:
            return Accuracy(runs=0, factor_p50=1.0, factor_p90=1.0, within_p50=1.0, within_p90=1.0)
        ordered = sorted(self._off)
        return Accuracy(
            runs=count,
            factor_p50=math.exp(statistics.median(ordered)),
            factor_p90=math.exp(ordered[(count - 1) * 9 // 10]),
            within_p50=self._within_p50 / count,
            within_p90=self._within_p90 / count,
        )
