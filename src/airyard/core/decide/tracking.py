"""Decides what the tracker's answers mean for an attempt.

Owns: which answers are news. Must not know: MLflow.
"""

from __future__ import annotations

from airyard.core.commands import TrackingAnswered
from airyard.core.decide.decision import Decision, Draft
from airyard.core.decide.gang import advance
from airyard.core.events import TrackingChanged
from airyard.core.run import TrackingState
from airyard.core.state import ClusterState

_NEWS: dict[TrackingState, frozenset[TrackingState]] = {
    TrackingState.PENDING: frozenset({TrackingState.OPEN, TrackingState.DEFERRED, TrackingState.CLOSED}),
    TrackingState.DEFERRED: frozenset({TrackingState.OPEN, TrackingState.CLOSED}),
    TrackingState.OPEN: frozenset({TrackingState.CLOSED}),
    TrackingState.CLOSED: frozenset(),
    TrackingState.OFF: frozenset(),
}


def answered(state: ClusterState, command: TrackingAnswered, now_ms: int) -> Decision:
    """Note an answer that moves the attempt's tracking forward; late and repeated ones are ignored."""
    run = state.runs.get(command.run_id)
    if run is None or command.attempt >= len(run.attempts):
        return Decision()
    attempt = run.attempts[command.attempt]
    if command.tracking.state not in _NEWS[attempt.tracking.state]:
        return Decision()
    draft = Draft(state=state, now_ms=now_ms, run=run)
    draft.emit(TrackingChanged(run_id=run.run_id, attempt=attempt.number, tracking=command.tracking))
    advance(draft)
    return draft.decision()
