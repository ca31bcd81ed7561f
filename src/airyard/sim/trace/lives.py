"""What becomes of one job in a replay: its stints, what it saved and lost, how long it waited.

Owns: the arithmetic of work, service and waiting. Must not know: the planner, other jobs.
Times are ms; device-milliseconds where it says so.
"""

from __future__ import annotations

from airyard.core.scheduling.plan import Running, Shape
from airyard.sim.trace.demand import Job


class Life:
    """One job from its arrival to its end. ``version`` grows with every change of place: it tells old events."""

    __slots__ = (
        "attempt",
        "checkpointed",
        "ended_ms",
        "evicted_ms",
        "evictions",
        "failures",
        "first_ms",
        "job",
        "lost",
        "paid",
        "predicted",
        "queued_ms",
        "running",
        "saved_ms",
        "served_ms",
        "shape",
        "started_ms",
        "version",
        "waited_ms",
    )

    def __init__(self, job: Job) -> None:
        self.job = job
        self.shape: Shape = job.shape
        self.attempt = -1
        self.version = 0
        self.running: Running | None = None
        self.checkpointed = False
        """It has written a checkpoint, ever."""
        self.saved_ms = 0
        """Work that a checkpoint holds."""
        self.served_ms = 0
        """Time on devices before the present stint."""
        self.waited_ms = 0
        self.queued_ms = job.arrives_ms
        """Since when it waits, when it does."""
        self.started_ms = 0
        """When the present stint began."""
        self.first_ms: int | None = None
        self.ended_ms: int | None = None
        self.evicted_ms: int | None = None
        self.evictions = 0
        self.failures = 0
        self.lost = 0
        """Device-milliseconds of work that is done twice."""
        self.paid = 0
        """Device-milliseconds held while leaving."""
        self.predicted = (1, 1)

    def begin(self, now_ms: int) -> None:
        """Start a stint."""
        self.waited_ms += now_ms - self.queued_ms
        self.attempt += 1
        self.version += 1
        self.started_ms = now_ms
        if self.first_ms is None:
            self.first_ms = now_ms

    def save(self, now_ms: int, checkpoint_ms: int | None, *, all_of_it: bool) -> None:
        """Stop working: keep all of the stint's work, or what its last checkpoint holds; the rest is lost."""
        worked_ms = now_ms - self.started_ms
        kept_ms = 0
        if checkpoint_ms is not None:
            kept_ms = worked_ms if all_of_it else worked_ms // checkpoint_ms * checkpoint_ms
            self.checkpointed |= kept_ms > 0
        self.saved_ms += kept_ms
        self.lost += (worked_ms - kept_ms) * self.job.run.devices

    def leave(self, now_ms: int) -> None:
        """End a stint: it waits again."""
        self.served_ms += now_ms - self.started_ms
        self.version += 1
        self.queued_ms = now_ms
        self.running = None

    def end(self, now_ms: int) -> None:
        """End for good."""
        self.served_ms += now_ms - self.started_ms
        self.version += 1
        self.ended_ms = now_ms
        self.running = None

    @property
    def rest_ms(self) -> int:
        """The work that is left."""
        return max(self.job.run.duration_ms - self.saved_ms, 1)
