"""The tracker for ``tracking: off``.

Owns: honest nothing. Must not know: MLflow. The control loop sees ``off`` in ``state`` and asks for no run; a
call that comes all the same is told so rather than answered with an invented id.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from airyard.core.errors import NotFound
from airyard.ports.tracker import (
    ArtifactStored,
    Metric,
    OpenRun,
    Pairs,
    TrackedRun,
    TrackedStatus,
    TrackerKind,
    TrackerState,
)

_WHY = "tracking is off in the server's configuration"


class NullTracker:
    """Keeps nothing and says so."""

    def state(self) -> TrackerState:
        """Return ``off``."""
        return TrackerState(kind=TrackerKind.OFF, detail=_WHY)

    def open_run(self, request: OpenRun) -> TrackedRun:
        """Refuse: there is no run to return."""
        raise NotFound(
            f"attempt {request.key} has no tracked run: {_WHY}",
            code="TRACKING_OFF",
            fix="set `tracking` to `embedded` or to a tracking URI, then restart the server",
        )

    def log_metrics(self, run_id: str, metrics: tuple[Metric, ...]) -> None:
        """Drop the points."""

    def set_tags(self, run_id: str, tags: Pairs) -> None:
        """Drop the tags."""

    def put_artifact(self, run_id: str, artifact_path: str, source: Path) -> ArtifactStored:
        """Store nothing, with the reason."""
        return ArtifactStored(stored=False, reason=_WHY)

    def finish_run(self, run_id: str, status: TrackedStatus, end_ms: int) -> None:
        """Do nothing."""

    def metrics(self, run_id: str) -> Mapping[str, Metric]:
        """Return no metrics."""
        return {}

    def metric_history(self, run_id: str, key: str) -> tuple[Metric, ...]:
        """Return no points."""
        return ()

    def delete_run(self, run_id: str) -> None:
        """Do nothing."""
