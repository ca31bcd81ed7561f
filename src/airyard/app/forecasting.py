"""The forecast of the live yard: what the predictor has learnt, asked for runs.

Owns: what of a run makes it like others, and which ends teach something. Must not know: the planner, threads.
"""

from __future__ import annotations

from dataclasses import replace

from airyard.core.forecast.expectations import Expectations
from airyard.core.forecast.predictor import Likeness, Prediction, Predictor
from airyard.core.run import Outcome, Run
from airyard.core.scheduling.counterfactual import Lasting
from airyard.core.scheduling.plan import Waiting
from airyard.core.scheduling.snapshot import served, waiting_of
from airyard.core.workload import Compute

TEACHES = frozenset({Outcome.SUCCEEDED, Outcome.FAILED, Outcome.TIMED_OUT})
"""How a run ends that tells how long such runs last; one that was cancelled would have gone on."""

LOOKED_AT = 64
"""So many likenesses of waiting runs are looked at at a time for what an end tells of them: it is a millisecond."""


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
        self.waiting.stir(like.pool)
        return self.waiting.outdated(like, self._expected(like))

    def moved(self) -> tuple[int, ...]:
        """Return waiting runs of which another duration is expected because of ends of runs that are less like them.

        Of many likenesses some at a time: the rest follows with the next calls.
        """
        looked_at = self.waiting.to_look_at(LOOKED_AT)
        return tuple(
            run_id for like in looked_at for run_id in self.waiting.outdated(like, self._expected(like))
        )

    def wait(self, run: Run) -> None:
        """Note that a run waits: it wants to know when others like it tell of another duration."""
        like = likeness(run)
        self.waiting.wait(run.run_id, like, self._expected(like))

    def _expected(self, like: Likeness) -> int:
        """Return what is expected of a new run that is like this; 0 as long as no earlier run says anything."""
        found = self.predictor.remaining(like)
        return found.p50_ms if found.samples else 0

    def lasting(self, run: Run) -> Lasting:
        """Return what predicts a waiting run in another shape or pool, as it is predicted in its own."""

        def predicted(changed: Waiting) -> tuple[int, int]:
            compute = replace(
                Compute.of(changed.accelerator, nodes=changed.nodes),
                pool=changed.pool,
                priority=run.workload.compute.priority,
            )
            other = replace(run, workload=replace(run.workload, compute=compute))
            found = waiting_of(other, self)
            return found.expected_ms, found.likely_ms

        return predicted


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
