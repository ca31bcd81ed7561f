"""Predicts how long a run lasts, from earlier runs of the same project, user, experiment and shape.

Owns: the levels of likeness, and how few samples lean on the next wider level. Must not know: the queue, clocks.
The prediction is an input of the planner: whoever feeds the planner asks here. What is learnt is bounded: ``MOST_KEYS``
samples of at most 100 durations; those that were not fed for longest go first.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from airyard.core.forecast.accuracy import Accuracy, AccuracyRecord
from airyard.core.forecast.durations import Durations

UNKNOWN_MS = 3_600_000
"""How long a run is taken to last when nothing at all is known: no earlier run in the pool, and no limit."""

LEAN = 4
"""A level of so few samples counts as much as the wider one behind it; with more it counts more."""

MOST_KEYS = 20_000


class Likeness(NamedTuple):
    """What makes runs alike, the widest first. ``shape`` is devices a node and nodes."""

    pool: str
    project: str
    shape: tuple[int, int]
    user: str
    experiment: str

    def levels(self) -> tuple[tuple[object, ...], ...]:
        """Return the keys of its samples: the narrowest first."""
        pool, project, shape, user, experiment = self
        return (
            (pool, project, shape, user, experiment),
            (pool, project, shape, user),
            (pool, project, shape),
            (pool, shape),
            (pool,),
        )


SOURCES = ("experiment", "user", "project", "shape", "pool")
"""What the narrowest level with samples is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """How much longer a run lasts from here.

    ``source`` is the narrowest level that had ``samples``, else ``limit`` or ``none``.
    """

    p50_ms: int
    p90_ms: int
    samples: int
    source: str


class Predictor:
    """Learns from ended runs; deterministic: the same ends in the same order give the same predictions."""

    def __init__(self) -> None:
        self._samples: OrderedDict[tuple[object, ...], Durations] = OrderedDict()
        self._records: dict[str, AccuracyRecord] = {}

    def observe(self, like: Likeness, lasted_ms: int, predicted: tuple[int, int] | None = None) -> None:
        """Learn that a run lasted so long; ``predicted`` is the p50 and p90 that were named at its start."""
        for key in like.levels():
            found = self._samples.get(key)
            if found is None:
                found = self._samples[key] = Durations()
                if len(self._samples) > MOST_KEYS:
                    self._samples.popitem(last=False)
            else:
                self._samples.move_to_end(key)
            found.add(max(lasted_ms, 1))
        if predicted is not None:
            self._records.setdefault(like.pool, AccuracyRecord()).add(*predicted, lasted_ms)

    def remaining(self, like: Likeness, elapsed_ms: int = 0, limit_ms: int | None = None) -> Prediction:
        """Predict how much longer a run lasts that has lasted ``elapsed_ms``; never beyond its limit.

        The limit is that of one attempt: one that has been served longer, over several, may use all of it once more.
        Where no run of a level lasted that long, the next wider level is asked; where none did at all, it is taken to
        last as long again (p90: three times as long), as heavy-tailed durations do, and an hour in all at least.
        Cost: some microseconds.
        """
        p50, p90, samples, source = self._whole(like, elapsed_ms)
        used_ms = elapsed_ms if limit_ms is None or elapsed_ms < limit_ms else 0
        if source == "none" and limit_ms is not None:
            p50 = p90 = float(limit_ms - used_ms + elapsed_ms)
            source = "limit"
        elif source == "none":
            p50, p90 = max(2.0 * elapsed_ms, UNKNOWN_MS), max(4.0 * elapsed_ms, 3.0 * UNKNOWN_MS)
        left50, left90 = max(int(p50) - elapsed_ms, 1), max(int(p90) - elapsed_ms, 1)
        if limit_ms is not None:
            left = max(limit_ms - used_ms, 1)
            left50, left90 = min(left50, left), min(left90, left)
        return Prediction(p50_ms=left50, p90_ms=max(left50, left90), samples=samples, source=source)

    def _whole(self, like: Likeness, elapsed_ms: int) -> tuple[float, float, int, str]:
        """Return p50 and p90 of the whole duration, samples of the narrowest level that has any, and its name.

        Levels are mixed in logarithms, because durations differ by factors.
        """
        weight_left, log50, log90, weights = 1.0, 0.0, 0.0, 0.0
        samples, source = 0, "none"
        for name, key in zip(SOURCES, like.levels(), strict=True):
            found = self._samples.get(key)
            count = found.beyond(elapsed_ms) if found is not None else 0
            if found is None or not count:
                continue
            if source == "none":
                samples, source = count, name
            weight = weight_left * count / (count + LEAN)
            weight_left -= weight
            log50 += weight * math.log(found.quantile(0.5, elapsed_ms))
            log90 += weight * math.log(found.quantile(0.9, elapsed_ms))
            weights += weight
            if weight_left < 0.02:
                break
        if source == "none":
            return 0.0, 0.0, 0, source
        return math.exp(log50 / weights), math.exp(log90 / weights), samples, source

    def accuracy(self) -> dict[str, Accuracy]:
        """Return how good predictions were, by pool."""
        found = {pool: record.summary() for pool, record in self._records.items()}
        return {pool: summary for pool, summary in found.items() if summary is not None}

    def learn(self, ends: Iterable[tuple[Likeness, int]]) -> None:
        """Learn from earlier runs, in the order of their ends."""
        for like, lasted_ms in ends:
            self.observe(like, lasted_ms)
