"""Decides what follows from a verdict on a gang's progress: it is noted, and the attempt ended if the run asks for it.

Owns: which verdicts are news. Must not know: how one is reached (``core.health.hangs``).
"""

from __future__ import annotations

from airyard.core.commands import GangJudged
from airyard.core.decide.decision import Decision, Draft
from airyard.core.decide.gang import advance
from airyard.core.events import AttemptMovedOn, AttemptStalled, StopOrdered
from airyard.core.run import AttemptState, StallNote, StopReason, StopRequest
from airyard.core.state import ClusterState
from airyard.core.workload import HangAction

STALLED_GRACE_S = 10
"""A gang that hangs does not save any more; its ranks that do not are let go soon."""


def judged(state: ClusterState, command: GangJudged, now_ms: int) -> Decision:
    """Note a verdict that is another one than before. One on an attempt that is not running any more is passed over."""
    run = state.runs.get(command.run_id)
    attempt = run.attempt if run is not None else None
    if run is None or attempt is None or attempt.number != command.attempt:
        return Decision()
    if attempt.state is not AttemptState.RUNNING or run.workload.hang.action is HangAction.OFF:
        return Decision()
    draft, stall = Draft(state=state, now_ms=now_ms, run=run), command.stall
    if stall is None:
        if attempt.stall is not None and not attempt.stall.over_ms:
            draft.emit(AttemptMovedOn(run_id=run.run_id, attempt=attempt.number))
        return draft.decision()
    if not says_same(attempt.stall, stall):
        draft.emit(AttemptStalled(run_id=run.run_id, attempt=attempt.number, stall=stall))
    if run.workload.hang.action is HangAction.RESTART:
        stop = StopRequest(
            reason=StopReason.STALLED,
            by="airyard",
            at_ms=now_ms,
            grace_s=STALLED_GRACE_S,
            message=stall.message,
        )
        draft.emit(StopOrdered(run_id=run.run_id, attempt=attempt.number, stop=stop))
        advance(draft)
    return draft.decision()


def says_same(known: StallNote | None, stall: StallNote) -> bool:
    """True when a stall is known, is not over, rests on the same signs and names the same ranks or nodes."""
    return known is not None and not known.over_ms and _said(known) == _said(stall)


def _said(stall: StallNote) -> tuple[object, ...]:
    return stall.source, stall.case, stall.ranks, stall.nodes
