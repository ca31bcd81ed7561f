"""How long runs are thought to last in a replay: known, or learnt from the runs that have ended.

Owns: what a replay asks of a forecast, the oracle, the live yard's predictor put to jobs, and how far off a forecast
was. Must not know: the planner, events.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Protocol

from airyard.core.forecast.expectations import Expectations
from airyard.core.forecast.predictor import Likeness, Predictor
from airyard.sim.trace.demand import Job
from airyard.sim.trace.records import TraceOutcome

TEACHES_NOT = frozenset({TraceOutcome.CANCELLED, TraceOutcome.NODE_FAILED, TraceOutcome.PREEMPTED})
"""How a run ends that does not tell how long such runs last."""


class Durations(Protocol):
    """A forecast: told of ends, asked about runs. Times are in ms."""

    def remaining(self, job: Job, served_ms: int, saved_ms: int) -> tuple[int, int]:
        """Return how much longer a job lasts (p50, p90), each at least 1.

        It has had ``served_ms`` of service, of which ``saved_ms`` of work is saved; only the oracle may look at that.
        """
        ...

    def wait(self, job: Job) -> None:
        """Note that a job waits."""
        ...

    def leave(self, job: Job) -> None:
        """Note that a job waits no more."""
        ...

    def ended(self, job: Job, lasted_ms: int) -> tuple[int, ...]:
        """Learn from a job that has ended after so much service; return the waiting jobs of which it tells more."""
        ...


class TrueDurations:
    """The oracle: it knows what each job needs."""

    def remaining(self, job: Job, served_ms: int, saved_ms: int) -> tuple[int, int]:
        """Return what is left of the work."""
        rest_ms = max(job.run.duration_ms - saved_ms, 1)
        return rest_ms, rest_ms

    def wait(self, job: Job) -> None:
        """Nothing will change."""

    def leave(self, job: Job) -> None:
        """Nothing will change."""

    def ended(self, job: Job, lasted_ms: int) -> tuple[int, ...]:
        """There is nothing to learn."""
        return ()


class LearntDurations:
    """The predictor of the live yard: nothing is known of a run but what ended before it."""

    def __init__(self) -> None:
        self._predictor = Predictor()
        self._waiting = Expectations()

    def remaining(self, job: Job, served_ms: int, saved_ms: int) -> tuple[int, int]:
        """Return p50 and p90 of what is to come."""
        found = self._predictor.remaining(likeness(job), served_ms, job.run.limit_ms)
        return found.p50_ms, found.p90_ms

    def wait(self, job: Job) -> None:
        """Note it with its like."""
        like = likeness(job)
        self._waiting.wait(job.run.run_id, like, self._predictor.remaining(like).p50_ms)

    def leave(self, job: Job) -> None:
        """Forget it."""
        self._waiting.leave(job.run.run_id)

    def ended(self, job: Job, lasted_ms: int) -> tuple[int, ...]:
        """Learn a duration, of a run that was not cut short."""
        if job.run.outcome in TEACHES_NOT:
            return ()
        like = likeness(job)
        self._predictor.observe(like, lasted_ms)
        return self._waiting.outdated(like, self._predictor.remaining(like).p50_ms)


def likeness(job: Job) -> Likeness:
    """Return what makes a job like others."""
    run = job.run
    return Likeness(
        pool=job.pool or job.model or job.accelerator,
        project=run.project,
        shape=(run.devices_per_node, run.nodes),
        user=run.user,
        experiment=run.experiment,
    )


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
