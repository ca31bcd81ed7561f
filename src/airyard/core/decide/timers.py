"""Decides what time alone brings: queue and total limits, late members, deaf runners, tracking that does not come.

Owns: every deadline of the control plane. Must not know: how often it is asked.
"""

from __future__ import annotations

from airyard.core.actions import Action, CloseTracking, KillMember
from airyard.core.commands import Tick
from airyard.core.decide.clearing import expired, leaving
from airyard.core.decide.decision import Decision, Draft
from airyard.core.decide.gang import advance, owes_tracking
from airyard.core.decide.grace import grace_of
from airyard.core.decide.retries import queue_failure
from airyard.core.events import Event, KeysExpired, MemberLogsGivenUp, RunEnded, StopOrdered, TrackingChanged
from airyard.core.run import (
    Attempt,
    AttemptState,
    Cause,
    MemberPhase,
    Outcome,
    Run,
    RunState,
    StopReason,
    StopRequest,
    Tracking,
    TrackingState,
)
from airyard.core.state import ClusterState

READY_DEADLINE_S = 1800
TRACKING_WAIT_MS = 5_000
KILL_AFTER_MS = 15_000
LOGS_WAIT_LOST_MS = 30_000
LOGS_WAIT_MS = 600_000
KEYS_KEPT_MS = 7 * 86_400_000
KEYS_SWEEP_MS = 86_400_000


def tick(state: ClusterState, command: Tick, now_ms: int) -> Decision:
    """Look at every deadline once. Cost: runs in memory."""
    events: list[Event] = []
    actions: list[Action] = []
    for run in state.runs.values():
        over = _overdue(run, now_ms) if run.state is RunState.QUEUED else None
        if over is None and _quiet(state, run):
            continue
        draft = Draft(state=state, now_ms=now_ms, run=run)
        if over is not None:
            _time_out(draft, over)
        elif run.attempt is not None and run.attempt.live:
            _live(draft, run.attempt)
        _logs(draft)
        events.extend(draft.events)
        actions.extend(draft.actions)
    # Keys are in the order in which they were noted.
    oldest = next((noted.at_ms for noted in state.keys.values()), now_ms)
    if oldest < now_ms - KEYS_KEPT_MS - KEYS_SWEEP_MS:
        events.append(KeysExpired(before_ms=now_ms - KEYS_KEPT_MS))
    events.extend(expired(state, now_ms))
    return Decision(events=tuple(events), actions=tuple(actions))


def _quiet(state: ClusterState, run: Run) -> bool:
    """True for a run that no deadline but ``_overdue`` may concern: most of a long queue, and most running ones."""
    if not run.attempts:
        return True
    attempt = run.attempts[0]
    return (
        len(run.attempts) == 1
        and attempt.state is AttemptState.RUNNING
        and attempt.stop is None
        and attempt.tracking.state is not TrackingState.PENDING
        and run.workload.timeouts.total_s is None
        and not state.reservations
    )


def _overdue(run: Run, now_ms: int) -> str | None:
    """Return which limit a queued run has waited beyond, in words."""
    limits = run.workload.timeouts
    if limits.queue_s is not None:
        since_ms = _waiting_since_ms(run)
        if since_ms is not None and now_ms - since_ms >= limits.queue_s * 1000:
            return f"it waited longer than its queue limit of {limits.queue_s} s"
    if _total_passed(run, now_ms):
        return f"its total time limit of {limits.total_s} s passed while it waited"
    return None


def _time_out(draft: Draft, over: str) -> None:
    failure = queue_failure(over, "raise timeouts.queue or timeouts.total, or `airyard explain ID` before")
    draft.emit(
        RunEnded(run_id=draft.run.run_id, outcome=Outcome.TIMED_OUT, cause=Cause.USER_LIMIT, failure=failure)
    )
    advance(draft)


def _waiting_since_ms(run: Run) -> int | None:
    """Return since when the run waits for devices; None while it is held: then it waits for a person.

    ``queued_ms`` keeps the run's place in the queue over all its attempts. Before its begin a run waits for the clock.
    """
    if run.held:
        return None
    last_ms = (run.attempt.ended_ms or 0) if run.attempt is not None else 0
    return max(run.queued_ms, last_ms, run.eligible_ms, run.begin_ms)


def _total_passed(run: Run, now_ms: int) -> bool:
    """True when the limit of the whole run has passed; it counts from the submit, held or not."""
    total_s = run.workload.timeouts.total_s
    return total_s is not None and now_ms - run.submitted_ms >= total_s * 1000


def _live(draft: Draft, attempt: Attempt) -> None:
    now_ms = draft.now_ms
    if attempt.tracking.state is TrackingState.PENDING and now_ms - attempt.placed_ms >= TRACKING_WAIT_MS:
        deferred = Tracking(state=TrackingState.DEFERRED, detail="the tracking server did not answer in time")
        draft.emit(TrackingChanged(run_id=attempt.run_id, attempt=attempt.number, tracking=deferred))
        advance(draft)
    present = draft.run.attempts[attempt.number]
    if not present.live:
        return
    if present.stop is not None:
        _kill_the_deaf(draft, present)
        return
    stop = _due_stop(draft, present)
    if stop is not None:
        draft.emit(StopOrdered(run_id=attempt.run_id, attempt=attempt.number, stop=stop))
        advance(draft)


def _due_stop(draft: Draft, attempt: Attempt) -> StopRequest | None:
    """Return why an attempt has to end now, if it has to."""
    run, now_ms = draft.run, draft.now_ms
    if _total_passed(run, now_ms):
        return _stop(draft, StopReason.TIME_LIMIT, f"the total limit of {run.workload.timeouts.total_s} s")
    limit_s = run.workload.timeouts.environment_s or READY_DEADLINE_S
    unready = attempt.state in (AttemptState.PLACED, AttemptState.PREPARING)
    if unready and now_ms - attempt.placed_ms >= limit_s * 1000:
        return _stop(draft, StopReason.NOT_READY, f"not all members were ready within {limit_s} s")
    return leaving(draft.state, run, attempt, now_ms)


def _stop(draft: Draft, reason: StopReason, message: str) -> StopRequest:
    return StopRequest(
        reason=reason, by="airyard", at_ms=draft.now_ms, grace_s=grace_of(draft.run), message=message
    )


def _kill_the_deaf(draft: Draft, attempt: Attempt) -> None:
    """Have the agent kill members that did not go by themselves within their grace."""
    stop = attempt.stop
    assert stop is not None
    if draft.now_ms < stop.at_ms + stop.grace_s * 1000 + KILL_AFTER_MS:
        return
    for member in attempt.members:
        machine = draft.state.machines.get(member.machine)
        if not member.released and machine is not None and machine.alive:
            draft.act(
                KillMember(
                    key=attempt.member_key(member.index),
                    machine=member.machine,
                    reason=f"it did not stop within {stop.grace_s} s",
                )
            )


def _logs(draft: Draft) -> None:
    """Give up on ends of logs that can no longer come, and ask again for tracking that is still owed."""
    for attempt in draft.run.attempts:
        if attempt.live or attempt.ended_ms is None:
            continue
        for member in attempt.members:
            if member.logs is not None or member.logs_given_up:
                continue
            wait_ms = LOGS_WAIT_LOST_MS if member.phase is MemberPhase.LOST else LOGS_WAIT_MS
            if draft.now_ms - attempt.ended_ms >= wait_ms:
                draft.emit(
                    MemberLogsGivenUp(
                        run_id=attempt.run_id,
                        attempt=attempt.number,
                        member=member.index,
                        reason=f"no end of the log came within {wait_ms // 1000} s",
                    )
                )
        present = draft.run.attempts[attempt.number]
        if present != attempt:
            advance(draft)
        elif present.logs_closed and owes_tracking(present):
            draft.act(CloseTracking(run_id=attempt.run_id, attempt=attempt.number))
