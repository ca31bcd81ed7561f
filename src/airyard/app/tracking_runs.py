"""Finds the tracked run of an attempt whose user code calls it by its alias.

Owns: whether the run is there, is still to come, or never will be. Must not know: MLflow's API, who replaces names.
"""

from __future__ import annotations

from collections.abc import Callable

from airyard.app.run_lookup import run_from
from airyard.core.errors import NotFound
from airyard.core.ids import AttemptKey
from airyard.core.run import TrackingState
from airyard.core.tracking_alias import TrackedIds, alias_of
from airyard.ports.read_store import ReadStore


def real_ids_for(reads: ReadStore, yard: str, attempt_key: str) -> Callable[[bytes], bytes] | None:
    """Return what puts the real ids of an attempt's run into the place of its alias; None while it is not open.

    Raises: ``NotFound`` when there will be none: the tracker refused it, or the run was removed.
    """
    key = AttemptKey.parse(attempt_key)
    row = reads.run(key.run_id)
    run = run_from(row) if row is not None else None
    if run is None or key.attempt >= len(run.attempts):
        raise NotFound(f"attempt {attempt_key} is not known any more", code="TRACKING_NOT_OPEN")
    tracking = run.attempts[key.attempt].tracking
    if tracking.run_id:
        alias = alias_of(yard, attempt_key)
        real = TrackedIds(run_id=tracking.run_id, experiment_id=tracking.experiment_id)
        return lambda body: alias.replaced_in(body, real)
    if tracking.state in (TrackingState.OFF, TrackingState.CLOSED):
        raise NotFound(
            f"attempt {attempt_key} has no tracked run: {tracking.detail or 'tracking is off'}",
            code="TRACKING_NOT_OPEN",
        )
    return None
