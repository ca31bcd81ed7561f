"""Decides what may be changed of a run after its submit: class, project, time limit, begin, hold.

Owns: which change is possible in which state. Must not know: the wire.
"""

from __future__ import annotations

from airyard.core.commands import UpdateRun
from airyard.core.decide.decision import Decision
from airyard.core.errors import NotFound
from airyard.core.events import RunUpdated
from airyard.core.run import RunState
from airyard.core.state import ClusterState


def update(state: ClusterState, command: UpdateRun, now_ms: int) -> Decision:
    """Change a live run. Raises: NotFound when it is not queued or active."""
    run = state.runs.get(command.run_id)
    if run is None or run.state is RunState.ENDED:
        raise NotFound(f"run {command.run_id} is not queued or active", code="RUN_NOT_LIVE")
    changed = RunUpdated(
        run_id=run.run_id,
        by=command.by,
        priority=command.priority,
        project=command.project,
        attempt_timeout_s=command.attempt_timeout_s,
        begin_ms=command.begin_ms,
        held=command.held,
    )
    return Decision(events=(changed,))
