"""What follows from a run's own state: GO, stopping the others, the end of an attempt, the end of the run.

Owns: the consequences that no outside command asks for; ``advance`` is called after every fact about a run.
Must not know: commands.
"""

from __future__ import annotations

from airyard.core.actions import CloseTracking, ForgetMember
from airyard.core.decide import verdicts
from airyard.core.decide.decision import Draft
from airyard.core.decide.judge import first_failure, judge
from airyard.core.decide.retries import after_attempt
from airyard.core.events import AttemptEnded, AttemptReleased, NodeHealthChanged, RunArchived, StopOrdered
from airyard.core.health.machine import ran_well
from airyard.core.health.states import HealthState
from airyard.core.run import (
    Attempt,
    AttemptState,
    MemberPhase,
    Outcome,
    RunState,
    StopReason,
    StopRequest,
    TrackingState,
    gang_addresses,
)

SIBLING_GRACE_S = 10


def advance(draft: Draft) -> None:
    """Emit everything that follows from the run as it now stands, until nothing more does."""
    attempt = draft.run.attempt
    if attempt is not None and attempt.live:
        _release_when_ready(draft, attempt)
        _stop_the_others(draft)
        _end_when_gone(draft)
    _settle_ended(draft)


def _release_when_ready(draft: Draft, attempt: Attempt) -> None:
    if attempt.state is not AttemptState.PREPARING or attempt.tracking.state is TrackingState.PENDING:
        return
    if all(member.phase is MemberPhase.READY for member in attempt.members):
        draft.emit(
            AttemptReleased(
                run_id=attempt.run_id,
                attempt=attempt.number,
                address=gang_addresses(attempt.members)[0],
                port=attempt.port,
            )
        )


def _stop_the_others(draft: Draft) -> None:
    attempt = draft.run.attempt
    assert attempt is not None
    if attempt.stop is not None or all(member.released for member in attempt.members):
        return
    first = first_failure(attempt)
    if first is None or first.exit is None:
        return
    stop = StopRequest(
        reason=StopReason.MEMBER_FAILED,
        by="airyard",
        at_ms=draft.now_ms,
        grace_s=SIBLING_GRACE_S,
        message=f"node {first.index} failed: {first.exit.message}",
    )
    draft.emit(StopOrdered(run_id=attempt.run_id, attempt=attempt.number, stop=stop))


def _end_when_gone(draft: Draft) -> None:
    attempt = draft.run.attempt
    assert attempt is not None
    if not attempt.gone or verdicts.holds(draft, attempt, judge(attempt)):
        return
    outcome, cause, failure = verdicts.settled_verdict(draft.run, attempt)
    draft.emit(
        AttemptEnded(
            run_id=attempt.run_id, attempt=attempt.number, outcome=outcome, cause=cause, failure=failure
        )
    )
    ended = draft.run.attempt
    assert ended is not None
    verdicts.await_late(draft, ended)
    ended = draft.run.attempts[ended.number]
    draft.emit(after_attempt(draft.run, ended, draft.now_ms))
    if outcome is Outcome.SUCCEEDED:
        _count_clean_run(draft, ended)


def _count_clean_run(draft: Draft, attempt: Attempt) -> None:
    """Let a run that ended well speak for its nodes that are on probation."""
    for member in attempt.members:
        health = draft.state.health.get(member.node)
        if health is None or health.state is not HealthState.PROBATION:
            continue
        after = ran_well(health, draft.now_ms)
        if after is health:
            continue
        why = f"run {attempt.run_id} ended well on it ({health.clean + 1} in all)"
        draft.events.append(NodeHealthChanged(node=member.node, health=after, why=why, by="airyard"))


def _settle_ended(draft: Draft) -> None:
    """Close what attempts still owe: a verdict, tracking once the logs are whole; then the run leaves memory."""
    run = draft.run
    for attempt in run.attempts:
        verdicts.ask(draft, attempt)
        if not attempt.live and attempt.logs_closed and owes_tracking(attempt):
            draft.act(CloseTracking(run_id=run.run_id, attempt=attempt.number))
    archived = any(isinstance(event, RunArchived) for event in draft.events)
    over = run.state is RunState.ENDED and all(settled(attempt, draft.now_ms) for attempt in run.attempts)
    if over and not archived:
        for attempt in run.attempts:
            for member in attempt.members:
                draft.act(ForgetMember(key=attempt.member_key(member.index), machine=member.machine))
        draft.events.append(RunArchived(run_id=run.run_id))


def owes_tracking(attempt: Attempt) -> bool:
    """True while the attempt's MLflow run is not closed."""
    return attempt.tracking.state not in (TrackingState.OFF, TrackingState.CLOSED)


def settled(attempt: Attempt, now_ms: int) -> bool:
    """True when an attempt has ended, its logs are whole or given up, its tracking is closed, and it was judged."""
    judged = not verdicts.owed(attempt) or verdicts.given_up(attempt, now_ms)
    return not attempt.live and attempt.logs_closed and not owes_tracking(attempt) and judged
