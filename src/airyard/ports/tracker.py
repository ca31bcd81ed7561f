"""The experiment tracker as the server sees it: one tracked run per attempt.

Owns: the ``Tracker`` Protocol and its plain records. Must not know: MLflow, HTTP, queues, who calls.
Every method is synchronous and may block on a network; the control loop never calls one itself, it gives
jobs to a worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

Pairs = tuple[tuple[str, str], ...]


class TrackerKind(StrEnum):
    """What can be expected of the tracker right now."""

    UP = "up"
    STARTING = "starting"
    DOWN = "down"
    OFF = "off"


class TrackedStatus(StrEnum):
    """The end of a tracked run, in MLflow's words."""

    FINISHED = "FINISHED"
    FAILED = "FAILED"
    KILLED = "KILLED"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerState:
    """A tracker's condition for people: ``detail`` says why and since when, ``uri`` where it is."""

    kind: TrackerKind
    detail: str = ""
    uri: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """Ask for the tracked run of one attempt.

    ``key`` makes the request idempotent and must be unique among everything that writes to the same store: on
    a shared store the caller puts its yard's id in front (``yard-7f3a/12.0``). ``artifact_location`` counts
    only when the experiment is created by this call.
    """

    key: str
    experiment: str
    run_name: str
    start_ms: int
    user: str
    artifact_location: str | None = None
    params: Pairs = ()
    tags: Pairs = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """Where an attempt is tracked."""

    experiment_id: str
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One measured value; NaN and infinities are values too."""

    key: str
    value: float
    time_ms: int
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactStored:
    """Whether a file went into the run's artifact store; ``reason`` says why not."""

    stored: bool
    reason: str = ""


class Tracker(Protocol):
    """What a tracking store must do for Airyard.

    Raises (every method but ``state``): ``Unavailable`` when the store is away or overloaded (retryable),
    ``NotFound`` for an unknown run, ``Denied`` for refused credentials, ``UserError`` for a refused request.
    """

    def state(self) -> TrackerState:
        """Say how the tracker is, from memory or one short request; never raises."""
        ...

    def open_run(self, request: OpenRun) -> TrackedRun:
        """Return the run of ``request.key``, made now unless an earlier call made it. Idempotent."""
        ...

    def log_metrics(self, run_id: str, metrics: tuple[Metric, ...]) -> None:
        """Store metric points; the same point twice counts once."""
        ...

    def set_tags(self, run_id: str, tags: Pairs) -> None:
        """Set tags, replacing values of the same name."""
        ...

    def put_artifact(self, run_id: str, artifact_path: str, source: Path) -> ArtifactStored:
        """Upload one file as ``artifact_path`` (with its file name, ``/`` between folders) of the run."""
        ...

    def finish_run(self, run_id: str, status: TrackedStatus, end_ms: int) -> None:
        """End the run. Idempotent."""
        ...

    def metrics(self, run_id: str) -> Mapping[str, Metric]:
        """Return the latest point of every metric of the run."""
        ...

    def metric_history(self, run_id: str, key: str) -> tuple[Metric, ...]:
        """Return all points of one metric, oldest first."""
        ...

    def delete_run(self, run_id: str) -> None:
        """Mark the run deleted; a run that is not there (any more) is fine."""
        ...
