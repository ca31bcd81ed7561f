"""The forecast of the live yard: what the predictor has learnt, asked for runs.

Owns: what of a run makes it like others, and which ends teach something. Must not know: the planner, threads.
"""

from __future__ import annotations

from airyard.core.forecast.expectations import Expectations
from airyard.core.forecast.predictor import Likeness, Prediction, Predictor
from airyard.core.run import Outcome, Run
from airyard.core.scheduling.snapshot import served

TEACHES = frozenset({Outcome.SUCCEEDED, Outcome.FAILED, Outcome.TIMED_OUT})
"""How a run ends that tells how long such runs last; one that was cancelled would have gone on."""


class LearntForecast:
    """A predictor of runs. Deterministic: it depends on the ends it was told of, in their order."""

    def __init__(self) -> None:
        self.predictor = Predictor()
        self.waiting = Expectations()
        self._named: dict[int, tuple[int, int]] = {}

    def remaining(self, run: Run, elapsed_ms: int) -> tuple[int, int]:
        """Return how much longer a run lasts (p50, p90 in ms) that has had ``elapsed_ms`` of service."""
        found = self.predict(run, elapsed_ms)
        return found.p50_ms, found.p90_ms

    def predict(self, run: Run, elapsed_ms: int) -> Prediction:
        """Return the same with what it rests on."""
        limit_s = run.workload.attempt_timeout_s
        return self.predictor.remaining(
            likeness(run), elapsed_ms, limit_s * 1000 if limit_s is not None else None
        )

    def named(self, run: Run) -> None:
        """Remember what is predicted of a run at its first start, to compare it with its end."""
        if run.run_id not in self._named:
            found = self.predict(run, 0)
            self._named[run.run_id] = found.p50_ms, found.p90_ms

    def observe(self, run: Run) -> tuple[int, ...]:
        """Learn from a run that has ended; return the waiting runs of which another duration is expected now."""
        named = self._named.pop(run.run_id, None)
        lasted_ms = served(run)
        if run.outcome not in TEACHES or lasted_ms <= 0:
            return ()
        like = likeness(run)
        self.predictor.observe(like, lasted_ms, named)
        return self.waiting.outdated(like, self.predictor.remaining(like).p50_ms)

    def wait(self, run: Run) -> None:
        """Note that a run waits: it wants to know when others like it tell of another duration."""
        like = likeness(run)
        self.waiting.wait(run.run_id, like, self.predictor.remaining(like).p50_ms)


def likeness(run: Run) -> Likeness:
    """Return what makes a run like others."""
    compute = run.workload.compute
    return Likeness(
        pool=compute.pool or compute.model or compute.accelerator,
        project=run.project,
        shape=(compute.local_world_size, compute.nodes),
        user=run.owner,
        experiment=run.workload.experiment,
    )
