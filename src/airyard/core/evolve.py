"""How one event changes one run: pure, total over the run events, checked against the lifecycle tables.

Owns: the meaning of every run event. Must not know: why an event happened, or any other run.
"""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch
from typing import Any

from airyard.core import events
from airyard.core.lifecycle import ATTEMPT_MOVES, MEMBER_MOVES, RUN_MOVES, IllegalTransition, check_move
from airyard.core.run import Attempt, AttemptState, Member, MemberPhase, Order, Run, RunState


def evolve(run: Run, event: events.RunEvent, at_ms: int) -> Run:
    """Return the run after the event. Raises: IllegalTransition when the event contradicts the run."""
    return _evolve(event, run, at_ms)


@singledispatch
def _evolve(event: Any, run: Run, at_ms: int) -> Run:
    raise IllegalTransition(f"run {run.run_id}: {type(event).__name__} is not an event of runs")


@_evolve.register
def _placed(event: events.AttemptPlaced, run: Run, at_ms: int) -> Run:
    if event.attempt.number != len(run.attempts):
        raise IllegalTransition(
            f"run {run.run_id} has {len(run.attempts)} attempts; number {event.attempt.number} cannot be next"
        )
    return replace(
        run,
        state=check_move(RUN_MOVES, run.state, RunState.ACTIVE, f"run {run.run_id}"),
        attempts=(*run.attempts, event.attempt),
        simulated=event.simulated,
        started_ms=run.started_ms if run.started_ms is not None else at_ms,
    )


@_evolve.register
def _queued_again(event: events.RunQueuedAgain, run: Run, at_ms: int) -> Run:
    return replace(
        run,
        state=check_move(RUN_MOVES, run.state, RunState.QUEUED, f"run {run.run_id}"),
        not_before_ms=event.not_before_ms,
        retries_spent=event.retries_spent,
        download_retries=event.download_retries,
        failures_in_row=event.failures_in_row,
        recent_faults_ms=event.recent_faults_ms,
        avoid_nodes=event.avoid_nodes,
        last_crash=event.last_crash,
        text_excuses=event.text_excuses,
    )


@_evolve.register
def _updated(event: events.RunUpdated, run: Run, at_ms: int) -> Run:
    if run.state is RunState.ENDED:
        raise IllegalTransition(f"run {run.run_id} has ended; nothing of it can be changed")
    workload = run.workload
    if event.priority is not None:
        workload = replace(workload, compute=replace(workload.compute, priority=event.priority))
    if event.attempt_timeout_s is not None:
        workload = replace(workload, attempt_timeout_s=event.attempt_timeout_s or None)
    if event.project is not None:
        workload = replace(workload, project=event.project)
    may_start = (run.held and event.held is False) or (run.begin_ms > 0 and event.begin_ms == 0)
    changed = replace(
        run,
        workload=workload,
        project=run.project if event.project is None else event.project,
        begin_ms=run.begin_ms if event.begin_ms is None else event.begin_ms,
        held=run.held if event.held is None else event.held,
        eligible_ms=at_ms if may_start else run.eligible_ms,
    )
    attempt = run.attempt
    if event.attempt_timeout_s is None or attempt is None or not attempt.live or attempt.stop is not None:
        return changed
    return _with(changed, _limited(attempt, event.attempt_timeout_s))


def _limited(attempt: Attempt, attempt_timeout_s: int) -> Attempt:
    """Tell the runners of another time limit. Only the newest one counts, so there is at most one such order."""
    order = Order(number=attempt.next_order, kind="LIMIT", data=(("attempt_timeout_s", attempt_timeout_s),))
    kept = tuple(other for other in attempt.orders if other.kind != "LIMIT")
    return replace(attempt, orders=(*kept, order))


@_evolve.register
def _ended(event: events.RunEnded, run: Run, at_ms: int) -> Run:
    if run.attempt is not None and run.attempt.live:
        raise IllegalTransition(f"run {run.run_id} cannot end: attempt {run.attempt.number} is live")
    return replace(
        run,
        state=check_move(RUN_MOVES, run.state, RunState.ENDED, f"run {run.run_id}"),
        ended_ms=at_ms,
        outcome=event.outcome,
        cause=event.cause,
        failure=event.failure,
    )


@_evolve.register
def _preparing(event: events.MemberPreparing, run: Run, at_ms: int) -> Run:
    attempt = _attempt(run, event.attempt)
    member = _moved(attempt, event.member, MemberPhase.PREPARING)
    if attempt.state is AttemptState.PLACED:
        attempt = replace(attempt, state=AttemptState.PREPARING, preparing_ms=at_ms)
    return _with(run, _seated(attempt, member))


@_evolve.register
def _ready(event: events.MemberReady, run: Run, at_ms: int) -> Run:
    attempt = _attempt(run, event.attempt)
    member = replace(
        _moved(attempt, event.member, MemberPhase.READY),
        address=event.address,
        prepared=event.prepared,
        meeting=event.meeting,
        last_report=event.report,
    )
    attempt = _seated(attempt, member)
    if attempt.state is AttemptState.PLACED:
        attempt = replace(attempt, state=AttemptState.PREPARING, preparing_ms=at_ms)
    if all(other.phase is MemberPhase.READY for other in attempt.members):
        attempt = replace(attempt, ready_ms=at_ms)
    return _with(run, attempt)


@_evolve.register
def _port(event: events.PortReassigned, run: Run, at_ms: int) -> Run:
    attempt = _attempt(run, event.attempt)
    attempt = _seated(attempt, replace(attempt.members[0], last_report=event.report))
    order = Order(number=attempt.next_order, kind="PORT", data=(("port", event.port),))
    return _with(run, replace(attempt, port=event.port, orders=(*attempt.orders, order)))


@_evolve.register
def _released(event: events.AttemptReleased, run: Run, at_ms: int) -> Run:
    attempt = _attempt(run, event.attempt)
    order = Order(
        number=attempt.next_order,
        kind="GO",
        data=(("master_addr", event.address), ("master_port", event.port)),
    )
    state = check_move(ATTEMPT_MOVES, attempt.state, AttemptState.RUNNING, f"attempt {attempt.key}")
    return _with(run, replace(attempt, state=state, running_ms=at_ms, orders=(*attempt.orders, order)))


@_evolve.register
def _started(event: events.MemberStarted, run: Run, at_ms: int) -> Run:
    attempt = _attempt(run, event.attempt)
    member = replace(_moved(attempt, event.member, MemberPhase.RUNNING), last_report=event.report)
    return _with(run, _seated(attempt, member))


@_evolve.register
def _checkpoint(event: events.CheckpointAcknowledged, run: Run, at_ms: int) -> Run:
    attempt = _attempt(run, event.attempt)
    attempt = _seated(attempt, replace(attempt.members[0], last_report=event.report))
    return _with(run, replace(attempt, checkpoint=event.checkpoint, checkpoint_journalled_ms=at_ms))


@_evolve.register
def _exited(event: events.MemberExited, run: Run, at_ms: int) -> Run:
    attempt = _attempt(run, event.attempt)
    member = _moved(attempt, event.member, MemberPhase.EXITED)
    return _with(run, _seated(attempt, replace(member, exit=event.exit, last_report=event.report)))


@_evolve.register
def _lost(event: events.MemberLost, run: Run, at_ms: int) -> Run:
    attempt = _attempt(run, event.attempt)
    member = _moved(attempt, event.member, MemberPhase.LOST)
    return _with(run, _seated(attempt, replace(member, exit=event.exit)))


@_evolve.register
def _logs_closed(event: events.MemberLogsClosed, run: Run, at_ms: int) -> Run:
    attempt = _attempt(run, event.attempt)
    member = replace(attempt.members[event.member], logs=event.logs, last_report=event.report)
    return _with(run, _seated(attempt, member))


@_evolve.register
def _logs_given_up(event: events.MemberLogsGivenUp, run: Run, at_ms: int) -> Run:
    attempt = _attempt(run, event.attempt)
    return _with(run, _seated(attempt, replace(attempt.members[event.member], logs_given_up=True)))


@_evolve.register
def _stop(event: events.StopOrdered, run: Run, at_ms: int) -> Run:
    attempt = _attempt(run, event.attempt)
    what = f"attempt {attempt.key}"
    if attempt.state is not AttemptState.STOPPING:
        state = check_move(ATTEMPT_MOVES, attempt.state, AttemptState.STOPPING, what)
        attempt = replace(attempt, state=state, stopping_ms=at_ms)
    stop = event.stop
    order = Order(
        number=attempt.next_order,
        kind="STOP",
        data=(
            ("reason", stop.reason.value),
            ("by", stop.by),
            ("grace_s", stop.grace_s),
            ("at_ms", stop.at_ms),
            ("message", stop.message),
        ),
    )
    return _with(run, replace(attempt, stop=stop, orders=(*attempt.orders, order)))


@_evolve.register
def _stalled(event: events.AttemptStalled, run: Run, at_ms: int) -> Run:
    return _with(run, replace(_attempt(run, event.attempt), stall=event.stall))


@_evolve.register
def _moved_on(event: events.AttemptMovedOn, run: Run, at_ms: int) -> Run:
    attempt = _attempt(run, event.attempt)
    stall = replace(attempt.stall, over_ms=at_ms) if attempt.stall is not None else None
    return _with(run, replace(attempt, stall=stall))


@_evolve.register
def _awaited(event: events.VerdictAwaited, run: Run, at_ms: int) -> Run:
    return _with(run, replace(_attempt(run, event.attempt), verdict_until_ms=event.until_ms))


@_evolve.register
def _judged(event: events.AttemptJudged, run: Run, at_ms: int) -> Run:
    attempt = _attempt(run, event.attempt)
    if attempt.judgement is not None:
        raise IllegalTransition(f"attempt {attempt.key} cannot be judged: it was already")
    return _with(run, replace(attempt, judged_ms=at_ms, judgement=event.judgement))


@_evolve.register
def _attempt_ended(event: events.AttemptEnded, run: Run, at_ms: int) -> Run:
    attempt = _attempt(run, event.attempt)
    held = [member.index for member in attempt.members if not member.released]
    if held:
        raise IllegalTransition(f"attempt {attempt.key} cannot end: members {held} still hold devices")
    return _with(
        run,
        replace(
            attempt,
            state=check_move(ATTEMPT_MOVES, attempt.state, AttemptState.ENDED, f"attempt {attempt.key}"),
            ended_ms=at_ms,
            outcome=event.outcome,
            cause=event.cause,
            failure=event.failure,
        ),
    )


@_evolve.register
def _tracking(event: events.TrackingChanged, run: Run, at_ms: int) -> Run:
    return _with(run, replace(_attempt(run, event.attempt), tracking=event.tracking))


def _attempt(run: Run, number: int) -> Attempt:
    if not 0 <= number < len(run.attempts):
        raise IllegalTransition(f"run {run.run_id} has no attempt {number}")
    return run.attempts[number]


def _moved(attempt: Attempt, index: int, phase: MemberPhase) -> Member:
    if not 0 <= index < len(attempt.members):
        raise IllegalTransition(f"attempt {attempt.key} has no member {index}")
    member = attempt.members[index]
    what = f"member {attempt.key}.{index}"
    return replace(member, phase=check_move(MEMBER_MOVES, member.phase, phase, what))


def _seated(attempt: Attempt, member: Member) -> Attempt:
    members = tuple(member if other.index == member.index else other for other in attempt.members)
    return replace(attempt, members=members)


def _with(run: Run, attempt: Attempt) -> Run:
    attempts = tuple(attempt if other.number == attempt.number else other for other in run.attempts)
    return replace(run, attempts=attempts)
