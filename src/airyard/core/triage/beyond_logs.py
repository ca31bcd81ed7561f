"""What a run itself knows of a failed attempt where its logs do not say it: that it stood still, what its runner told.

Owns: when that decides, and when it only adds who was first. Must not know: how logs are judged (``judging.py``), how a
stall is found (``core/health/hangs``).
"""

from __future__ import annotations

from dataclasses import replace

from airyard.core.decide.judge import STALLED_STEP, first_failure, next_step
from airyard.core.run import Attempt, Cause, StallNote, StopReason
from airyard.core.triage.causes import Action, EvidenceLine, FailureCause, FailureClass

_TOLD: dict[Cause, tuple[FailureClass, Action]] = {
    Cause.USER_LIMIT: (FailureClass.USER, Action.FIX_CODE),
    Cause.DATA: (FailureClass.USER, Action.FIX_CODE),
    Cause.ENVIRONMENT: (FailureClass.CONFIG, Action.FIX_CONFIG),
    Cause.STORAGE: (FailureClass.CONFIG, Action.FIX_CONFIG),
}
"""Causes that a runner found out by itself; those of an exit status say nothing more, those of machines are judged
by what monitors see."""
_SURE = 0.8
_LONGEST_TEXT = 300
_EVIDENCE = 6


def with_run(verdict: FailureCause, attempt: Attempt) -> FailureCause:
    """Return a verdict on logs with what the run's own record adds to it. One that names a class is kept as it is."""
    if verdict.failure_class is not FailureClass.UNKNOWN:
        return verdict
    stall = attempt.stall
    if stall is not None and not stall.over_ms:
        stopped = attempt.stop is not None and attempt.stop.reason is StopReason.STALLED
        return _of_stall(verdict, stall) if stopped else _beside_stall(verdict, stall)
    return _of_failure(verdict, attempt)


def _of_stall(verdict: FailureCause, stall: StallNote) -> FailureCause:
    """It was ended because it stood still: that is the failure. Programs deadlock far more often than machines."""
    lost = stall.case == "GPU_LOST"
    return replace(
        _beside_stall(verdict, stall),
        failure_class=FailureClass.HARDWARE if lost else FailureClass.USER,
        cause=Cause.DEVICE if lost else Cause.USER_CODE,
        action=Action.RETRY_ELSEWHERE if lost else Action.FIX_CODE,
        rule=f"hang.{stall.case.lower()}",
        message=stall.message,
        next_step=STALLED_STEP,
        confidence=stall.confidence,
        blamed_node=stall.suspect_node if lost else "",
        cascade=tuple(rule for rule in (verdict.rule, *verdict.cascade) if rule != "nothing.found"),
    )


def _beside_stall(verdict: FailureCause, stall: StallNote) -> FailureCause:
    """It ended while it stood still, as by a collective's time-out: who held it up is known."""
    lines = tuple(
        EvidenceLine(file="stall", number=0, text=text[:_LONGEST_TEXT], rank=rank)
        for rank, text in zip([*stall.ranks, *[None] * len(stall.evidence)], stall.evidence, strict=False)
    )
    return replace(
        verdict,
        first_rank=stall.ranks[0] if stall.ranks else verdict.first_rank,
        evidence=(*lines, *verdict.evidence)[:_EVIDENCE],
    )


def _of_failure(verdict: FailureCause, attempt: Attempt) -> FailureCause:
    member = first_failure(attempt)
    if member is None or member.exit is None or member.exit.cause not in _TOLD:
        return verdict
    cause, message = member.exit.cause, member.exit.message
    failure_class, action = _TOLD[cause]
    said = EvidenceLine(file=f"node {member.index}", number=0, text=message[:_LONGEST_TEXT])
    return replace(
        verdict,
        failure_class=failure_class,
        cause=cause,
        action=action,
        rule=f"run.{cause.value.lower()}",
        message=message.partition("\n")[0].rstrip(" :")[:_LONGEST_TEXT] or cause.value,
        next_step=next_step(cause, message),
        confidence=_SURE,
        evidence=(said, *verdict.evidence)[:_EVIDENCE],
        cascade=tuple(rule for rule in (verdict.rule, *verdict.cascade) if rule != "nothing.found"),
    )
