"""Decides what time alone brings: queue and total limits, late members, deaf runners, tracking that does not come.

Owns: every deadline of the control plane. Must not know: how often it is asked.
"""

from __future__ import annotations

from airyard.core.actions import Action, CloseTracking, KillMember
from airyard.core.commands import Tick
from airyard.core.deadlines import total_end_ms, wait_end
from airyard.core.decide import ailing, supplying, verdicts
from airyard.core.decide.clearing import expired, leaving
from airyard.core.decide.decision import Decision, Draft
from airyard.core.decide.draining import ask_to_leave, draining
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
    """Look at every deadline that may have passed. Cost: runs that have begun; the queue when a limit has passed."""
    events: list[Event] = []
    actions: list[Action] = []
    over = _overdue(state, now_ms)
    clearing = bool(state.reservations) or draining(state)
    for run_id in sorted(state.begun.union(over)):
        run = state.runs[run_id]
        if run_id not in over and not clearing and _quiet(run, now_ms):
            continue
        draft = Draft(state=state, now_ms=now_ms, run=run)
        if run_id in over:
            _time_out(draft, over[run_id])
        elif run.attempt is not None and run.attempt.live:
            _live(draft, run.attempt)
        _logs(draft)
        _verdicts(draft)
        events.extend(draft.events)
        actions.extend(draft.actions)
    # Keys are in the order in which they were noted.
    oldest = next((noted.at_ms for noted in state.keys.values()), now_ms)
    if oldest < now_ms - KEYS_KEPT_MS - KEYS_SWEEP_MS:
        events.append(KeysExpired(before_ms=now_ms - KEYS_KEPT_MS))
    events.extend(expired(state, now_ms))
    # Runs that end in this tick leave their nodes; what follows for the nodes is for the next one.
    health = ailing.tick(state, now_ms, command.jumped_ms)
    events.extend(health.events)
    actions.extend(health.actions)
    events.extend(supplying.tick(state, now_ms).events)
    return Decision(events=tuple(events), actions=tuple(actions))


def _overdue(state: ClusterState, now_ms: int) -> dict[int, str]:
    """Return the queued runs that have waited beyond a limit of theirs, with the limit in words."""
    if state.wait_ends_ms is None or now_ms < state.wait_ends_ms:
        return {}
    ends = [
        (end, run.run_id)
        for run in state.runs.values()
        if run.state is RunState.QUEUED and (end := wait_end(run)) is not None
    ]
    # One that is over stays the first to end until the state has taken its end in.
    state.wait_ends_ms = min((at_ms for (at_ms, _), _ in ends), default=None)
    return {run_id: words for (at_ms, words), run_id in ends if at_ms <= now_ms}


def _quiet(run: Run, now_ms: int) -> bool:
    """True for a run with attempts that no deadline concerns now: most of those that run."""
    attempt = run.attempts[0]
    return (
        len(run.attempts) == 1
        and attempt.state is AttemptState.RUNNING
        and attempt.stop is None
        and attempt.tracking.state is not TrackingState.PENDING
        and attempt.verdict_until_ms is None
        and not _total_passed(run, now_ms)
    )


def _time_out(draft: Draft, over: str) -> None:
    failure = queue_failure(over, "raise timeouts.queue or timeouts.total, or `airyard explain ID` before")
    draft.emit(
        RunEnded(run_id=draft.run.run_id, outcome=Outcome.TIMED_OUT, cause=Cause.USER_LIMIT, failure=failure)
    )
    advance(draft)


def _total_passed(run: Run, now_ms: int) -> bool:
    end_ms = total_end_ms(run)
    return end_ms is not None and now_ms >= end_ms


def _live(draft: Draft, attempt: Attempt) -> None:
    now_ms = draft.now_ms
    if attempt.gone:
        advance(draft)  # only its verdict is waited for, and not for long
        return
    if attempt.tracking.state is TrackingState.PENDING and now_ms - attempt.placed_ms >= TRACKING_WAIT_MS:
        deferred = Tracking(state=TrackingState.DEFERRED, detail="the tracking server did not answer in time")
        draft.emit(TrackingChanged(run_id=attempt.run_id, attempt=attempt.number, tracking=deferred))
        advance(draft)
    present = draft.run.attempts[attempt.number]
    if not present.live:
        return
    ask_to_leave(draft, present)
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
    epilog = draft.state.policy.pool(attempt.pool).epilog
    # The runner that runs an epilog is not deaf: its command is gone.
    patience_ms = KILL_AFTER_MS + (epilog.timeout_ms if epilog is not None else 0)
    if draft.now_ms < stop.at_ms + stop.grace_s * 1000 + patience_ms:
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


def _verdicts(draft: Draft) -> None:
    """Ask again for verdicts that are due, and let a run go whose verdict never came."""
    for attempt in draft.run.attempts:
        if not verdicts.owed(attempt):
            continue
        if not attempt.live and verdicts.given_up(attempt, draft.now_ms):
            advance(draft)
        else:
            verdicts.ask(draft, attempt)
