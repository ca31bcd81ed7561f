"""What the production rules of retries say after each attempt of the run: how long it waits, which nodes it avoids.

Owns: a run and an attempt as records, just enough for the rules. Must not know: why an attempt ended.
"""

from __future__ import annotations

from dataclasses import replace

from airyard.core.decide.retries import after_attempt
from airyard.core.events import RunEnded
from airyard.core.run import (
    Attempt,
    AttemptState,
    Cause,
    Failure,
    Outcome,
    Run,
    RunState,
    Tracking,
    TrackingState,
)
from airyard.core.workload import Compute, Workload

RETRIES = 100
"""That the workload allows for errors of its own; those of nodes are free."""


class Retrying:
    """One run's counters over all its attempts."""

    def __init__(self) -> None:
        workload = Workload(
            experiment="sim",
            command="train",
            compute=Compute.of("GPU_8xH100", nodes=2),
            max_retries=RETRIES,
        )
        self._run = Run(
            run_id=1,
            name="training",
            owner="sim",
            project="sim",
            workload=workload,
            spec_hash="",
            idempotency_key="",
            task_key="",
            state=RunState.ACTIVE,
            submitted_ms=0,
            queued_ms=0,
        )

    @property
    def avoid(self) -> tuple[str, ...]:
        """The nodes that the run avoids while it can."""
        return self._run.avoid_nodes

    def after(self, cause: Cause, node: str, now_s: float, worked_s: float) -> float | None:
        """Return the seconds to wait; None when the rules give the run up. ``worked_s``: since the attempt's begin."""
        now_ms = int(now_s * 1000)
        failure = Failure(cause=cause, message="", next_step="", node=node or None)
        attempt = Attempt(
            run_id=1,
            number=0,
            epoch=1,
            cookie="",
            state=AttemptState.ENDED,
            members=(),
            port=0,
            orders=(),
            tracking=Tracking(state=TrackingState.OFF),
            placed_ms=now_ms - int(worked_s * 1000),
            running_ms=now_ms - int(worked_s * 1000),
            outcome=Outcome.FAILED,
            cause=cause,
            failure=failure,
        )
        said = after_attempt(self._run, attempt, now_ms)
        if isinstance(said, RunEnded):
            return None
        self._run = replace(
            self._run,
            retries_spent=said.retries_spent,
            failures_in_row=said.failures_in_row,
            recent_faults_ms=said.recent_faults_ms,
            avoid_nodes=said.avoid_nodes,
        )
        return max(said.not_before_ms - now_ms, 0) / 1000

    def resume(self) -> None:
        """Somebody resumes the run: it has all its retries again."""
        self._run = replace(self._run, retries_spent=0, failures_in_row=0, recent_faults_ms=())
