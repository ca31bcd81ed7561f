"""The runner's state machine: what happens to one member, from its first order until it leaves.

Owns: phases, the numbering of reports, the stop and time-limit rules, when the exit record is written.
Must not know: processes, files, sockets, threads, the clock. The runner executes the instructions; so does
the simulator, which is why ``step`` is total (every event in every phase) and keeps nothing
outside its state.

The shell's duties: feed events in order; post ``state.outbox`` until it is empty (the ``Report`` instruction
is only the wake-up); feed ``TimerFired`` at or after each timer's time (late, early or twice does no harm);
after ``ReapTree`` kill whatever is left, read the pipes to their end, and answer ``TreeGone``. ``now_ms``
must not go backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from airyard.node.lease import is_stale
from airyard.node.machine_events import (
    AttemptOver,
    CheckpointSeen,
    CheckPort,
    CloseLogs,
    Event,
    Instruction,
    InterruptPreparation,
    KillTree,
    Launch,
    LaunchFailed,
    Leave,
    LogsShipped,
    OrderReceived,
    OutputClosed,
    PortChecked,
    Prepare,
    Prepared,
    PrepareFailed,
    ProcessExited,
    ProcessStarted,
    ProgressMade,
    ReapTree,
    Report,
    ReportAcknowledged,
    ServerAnswered,
    SetTimer,
    Signal,
    StepsSeen,
    Timer,
    TimerFired,
    TreeGone,
    WriteExitRecord,
    WriteStopFile,
)
from airyard.node.verdict import RUNNER, Ending, StopRequest, judge

DEFAULT_SIGNAL = "SIGTERM"
DEFAULT_GRACE_S = 30.0


class Phase(Enum):
    """Where the member is. A stop is no phase: it is ``RunnerState.stop``."""

    WAITING = "WAITING"
    PREPARING = "PREPARING"
    CHECKING = "CHECKING"
    """Member 0 checks the rendezvous port, or waits for another."""
    READY = "READY"
    LAUNCHING = "LAUNCHING"
    RUNNING = "RUNNING"
    REAPING = "REAPING"
    CLOSING = "CLOSING"
    """EXITED is reported; the log is being closed."""
    REPORTING = "REPORTING"
    """All is said; waiting for the server to have it."""
    LEFT = "LEFT"


# --- state ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerState:
    """Everything the runner knows of its member."""

    phase: Phase = Phase.WAITING
    last_order: int = 0
    member: int = 0
    port: int | None = None
    attempt_timeout_s: float | None = None
    stop_signal: str = DEFAULT_SIGNAL
    grace_s: float = DEFAULT_GRACE_S
    prepared: Prepared | None = None
    go: Mapping[str, Any] | None = None
    stop: StopRequest | None = None
    launched_ms: int | None = None
    started: bool = False
    exit: ProcessExited | None = None
    exited_ms: int | None = None
    failure: PrepareFailed | None = None
    """Why the preparation, or the launch, came to nothing."""
    over: str | None = None
    renewed_ms: int | None = None
    """When the last poll that was answered had been sent."""
    lease_s: float | None = None
    lease_until_ms: int | None = None
    epoch: int = 0
    """The newest leader's that has been heard; what an older one says counts no more."""
    next_number: int = 1
    outbox: tuple[Report, ...] = ()
    checkpoint: Mapping[str, Any] | None = None
    """The newest one seen; said once more before the end, since the server keeps few of those in between."""
    exited: Report | None = None
    logs: Report | None = None
    shipped: bool = False

    @property
    def ending(self) -> bool:
        """True when nothing may be started any more."""
        return self.stop is not None or self.over is not None or self.failure is not None


Step = tuple[RunnerState, list[Instruction]]


def step(state: RunnerState, event: Event, now_ms: int) -> Step:
    """Return the next state and what to do, in order; an event that means nothing now changes nothing."""
    if state.phase is Phase.LEFT:
        return state, []
    out: list[Instruction] = []
    if _lease_is_over(state, now_ms) and not isinstance(event, ServerAnswered):
        # The timer may come late, as after a sleep of the machine: nothing may be begun meanwhile.
        state, out = _on_lease_end(state, now_ms)
    state, more = _HANDLERS[type(event)](state, event, now_ms)
    return state, [*out, *more]


def _report(
    state: RunnerState, kind: str, body: Mapping[str, Any], now_ms: int
) -> tuple[RunnerState, Report]:
    """Number a report into the outbox; a newer PROGRESS or CHECKPOINT replaces one still waiting."""
    report = Report(number=state.next_number, kind=kind, at_ns=now_ms * 1_000_000, body=body)
    waiting = state.outbox
    if kind in ("PROGRESS", "CHECKPOINT"):
        waiting = tuple(other for other in waiting if other.kind != kind)
    return replace(state, next_number=state.next_number + 1, outbox=(*waiting, report)), report


# --- orders -----------------------------------------------------------------------------------------------


def _on_order(state: RunnerState, order: OrderReceived, now_ms: int) -> Step:
    if is_stale(order.epoch, state.epoch):
        return state, []
    if order.kind == "LEASE":
        return _on_lease(state, order.body, now_ms)
    if order.number <= state.last_order:
        return state, []
    state = replace(state, last_order=order.number)
    handler = _ORDERS.get(order.kind)
    # An unknown kind is of a newer server that knows we may not understand it.
    return handler(state, order.body, now_ms) if handler else (state, [])


def _on_prepare(state: RunnerState, body: Mapping[str, Any], now_ms: int) -> Step:
    if state.phase is not Phase.WAITING or state.ending:
        return state, []
    stop = body.get("stop") or {}
    member = int(body.get("member") or 0)
    state = replace(
        state,
        phase=Phase.PREPARING,
        member=member,
        port=body.get("rendezvous_port"),
        attempt_timeout_s=body.get("attempt_timeout_s"),
        stop_signal=str(stop.get("signal") or DEFAULT_SIGNAL),
        grace_s=float(stop["grace_s"]) if stop.get("grace_s") is not None else DEFAULT_GRACE_S,
    )
    return state, [Prepare(order=body)]


def _on_port(state: RunnerState, body: Mapping[str, Any], now_ms: int) -> Step:
    port = int(body["port"])
    state = replace(state, port=port)
    return state, [CheckPort(port=port)] if state.phase is Phase.CHECKING else []


def _on_go(state: RunnerState, body: Mapping[str, Any], now_ms: int) -> Step:
    if state.go is not None or state.ending or state.phase.value in _AFTER_READY:
        return state, []
    state = replace(state, go=body)
    return _launch(state, now_ms) if state.phase is Phase.READY else (state, [])


def _launch(state: RunnerState, now_ms: int) -> Step:
    assert state.go is not None
    out: list[Instruction] = [Launch(go=state.go)]
    state = replace(state, phase=Phase.LAUNCHING, launched_ms=now_ms)
    if state.attempt_timeout_s is not None:
        out.append(SetTimer(timer=Timer.TIME_LIMIT, at_ms=_time_limit_ms(state)))
    return state, out


def _time_limit_ms(state: RunnerState) -> int:
    assert state.launched_ms is not None
    assert state.attempt_timeout_s is not None
    return state.launched_ms + int(state.attempt_timeout_s * 1000)


def _on_stop(state: RunnerState, body: Mapping[str, Any], now_ms: int) -> Step:
    grace = body.get("grace_s")
    return _stop(
        state,
        reason=str(body.get("reason") or "CANCELLED"),
        by=str(body.get("by") or ""),
        signal=str(body.get("signal") or state.stop_signal),
        grace_s=max(0.0, float(grace if grace is not None else state.grace_s)),
        now_ms=now_ms,
    )


def _stop(state: RunnerState, *, reason: str, by: str, signal: str, grace_s: float, now_ms: int) -> Step:
    """Begin to stop, or shorten the stop under way; the first reason stays."""
    deadline_ms = now_ms + int(grace_s * 1000)
    if state.phase.value in _TREE_ENDED:
        return state, []
    if state.stop is not None:
        if deadline_ms >= state.stop.deadline_ms or state.stop.killed:
            return state, []
        again = signal if signal != state.stop.signal else None
        shorter = replace(state.stop, signal=signal, grace_s=grace_s, deadline_ms=deadline_ms)
        return _deliver_stop(replace(state, stop=shorter), again=again)
    stop = StopRequest(reason=reason, by=by, signal=signal, grace_s=grace_s, deadline_ms=deadline_ms)
    state = replace(state, stop=stop)
    if state.phase in (Phase.RUNNING, Phase.LAUNCHING):
        return _deliver_stop(state, again=signal)
    return _end_before_launch(state, now_ms)


def _deliver_stop(state: RunnerState, *, again: str | None) -> Step:
    """Write the stop file, signal, wait for the deadline; while launching only the deadline runs."""
    assert state.stop is not None
    stop = state.stop
    out: list[Instruction] = []
    if state.phase is Phase.RUNNING:
        out.append(WriteStopFile(reason=stop.reason, deadline_ms=stop.deadline_ms, grace_s=stop.grace_s))
        if again is not None:
            out.append(Signal(signal=again))
    out.append(SetTimer(timer=Timer.GRACE, at_ms=stop.deadline_ms))
    return state, out


def _end_before_launch(state: RunnerState, now_ms: int) -> Step:
    """End a member whose command never started."""
    if state.phase is Phase.PREPARING:
        return state, [InterruptPreparation()]
    return replace(state, phase=Phase.REAPING, exited_ms=now_ms), [ReapTree()]


def _on_limit(state: RunnerState, body: Mapping[str, Any], now_ms: int) -> Step:
    """Take another time limit, or none, counted from the launch; one that has passed already ends the member now.

    It comes too late for a member that is stopping: that was decided by the limit of the time.
    """
    if state.stop is not None or state.phase.value in _TREE_ENDED:
        return state, []
    limit_s = body.get("attempt_timeout_s")
    state = replace(state, attempt_timeout_s=None if limit_s is None else float(limit_s))
    if state.attempt_timeout_s is None or state.launched_ms is None:
        return state, []
    return state, [SetTimer(timer=Timer.TIME_LIMIT, at_ms=_time_limit_ms(state))]


def _on_lease(state: RunnerState, body: Mapping[str, Any], now_ms: int) -> Step:
    if state.over is not None:
        return state, []
    seconds = float(body["seconds"])
    begun_ms = state.renewed_ms if state.renewed_ms is not None else now_ms
    return _lease_until(replace(state, lease_s=seconds), begun_ms + int(seconds * 1000))


def _lease_until(state: RunnerState, until_ms: int) -> Step:
    state = replace(state, lease_until_ms=until_ms)
    # Once nothing of the member is left, there is nothing to end: its runner only has to deliver what it knows.
    return state, [SetTimer(timer=Timer.LEASE, at_ms=until_ms)] if state.exited is None else []


# --- preparation and launch -------------------------------------------------------------------------------


def _on_progress(state: RunnerState, event: ProgressMade, now_ms: int) -> Step:
    if state.phase is not Phase.PREPARING or state.ending:
        return state, []
    state, report = _report(state, "PROGRESS", {"phase": event.phase, "detail": event.detail}, now_ms)
    return state, [report]


def _on_steps(state: RunnerState, event: StepsSeen, now_ms: int) -> Step:
    if state.phase is not Phase.RUNNING:
        return state, []
    newest = max((int(rank["step"]) for rank in event.ranks), default=0)
    # A server of the release before takes phase and detail, and leaves the rest.
    body = {"phase": "running", "detail": f"step {newest}", "ranks": [dict(rank) for rank in event.ranks]}
    state, report = _report(state, "PROGRESS", body, now_ms)
    return state, [report]


def _on_prepared(state: RunnerState, event: Prepared, now_ms: int) -> Step:
    if state.phase is not Phase.PREPARING:
        return state, []
    state = replace(state, prepared=event)
    if state.ending:
        return replace(state, phase=Phase.REAPING, exited_ms=now_ms), [ReapTree()]
    if state.member == 0 and state.port is not None:
        return replace(state, phase=Phase.CHECKING), [CheckPort(port=state.port)]
    return _ready(state, now_ms)


def _ready(state: RunnerState, now_ms: int) -> Step:
    assert state.prepared is not None
    body = state.prepared.as_report()
    state, report = _report(replace(state, phase=Phase.READY), "READY", body, now_ms)
    if state.go is None:
        return state, [report]
    state, out = _launch(state, now_ms)
    return state, [report, *out]


def _on_prepare_failed(state: RunnerState, event: PrepareFailed, now_ms: int) -> Step:
    if state.phase is not Phase.PREPARING:
        return state, []
    if not state.ending:
        state = replace(state, failure=event)
    return replace(state, phase=Phase.REAPING, exited_ms=now_ms), [ReapTree()]


def _on_port_checked(state: RunnerState, event: PortChecked, now_ms: int) -> Step:
    if state.phase is not Phase.CHECKING or event.port != state.port:
        return state, []
    if event.ok:
        return _ready(state, now_ms)
    state, report = _report(state, "PORT_TAKEN", {"port": event.port}, now_ms)
    return state, [report]


def _on_started(state: RunnerState, event: ProcessStarted, now_ms: int) -> Step:
    if state.phase is not Phase.LAUNCHING:
        return state, []
    state, report = _report(
        replace(state, phase=Phase.RUNNING, started=True), "STARTED", {"pid": event.pid}, now_ms
    )
    out: list[Instruction] = [report]
    if state.over is not None or (state.stop is not None and state.stop.killed):
        out.append(KillTree())
    elif state.stop is not None:
        state, more = _deliver_stop(state, again=state.stop.signal)
        out.extend(more)
    return state, out


def _on_launch_failed(state: RunnerState, event: LaunchFailed, now_ms: int) -> Step:
    if state.phase is not Phase.LAUNCHING:
        return state, []
    if not state.ending:
        failure = PrepareFailed(cause=event.cause, message=event.message, fault=event.fault)
        state = replace(state, failure=failure)
    return replace(state, phase=Phase.REAPING, exited_ms=now_ms), [ReapTree()]


def _on_checkpoint(state: RunnerState, event: CheckpointSeen, now_ms: int) -> Step:
    if state.phase not in (Phase.RUNNING, Phase.REAPING):
        return state, []
    body = {"step": event.step, "path": event.path, "time": event.time}
    state, report = _report(replace(state, checkpoint=body), "CHECKPOINT", body, now_ms)
    return state, [report]


# --- the end ----------------------------------------------------------------------------------------------


def _on_exited(state: RunnerState, event: ProcessExited, now_ms: int) -> Step:
    if state.phase not in (Phase.LAUNCHING, Phase.RUNNING):
        return state, []
    state = replace(state, phase=Phase.REAPING, exit=event, exited_ms=now_ms, started=True)
    return state, [ReapTree()]


def _on_tree_gone(state: RunnerState, event: TreeGone, now_ms: int) -> Step:
    if state.phase is not Phase.REAPING:
        return state, []
    ending = _ending(state)
    verdict = judge(ending, event.evidence)
    body = {
        "code": ending.code,
        "signal": ending.signal,
        "started": ending.started,
        "cause": verdict.cause,
        "message": verdict.message,
        "out_of_memory": verdict.out_of_memory,
        "address_in_use": verdict.address_in_use,
        "permanent": verdict.permanent,
        "stop_reason": state.stop.reason if state.stop is not None else "",
        "fingerprint": verdict.fingerprint,
        "duration_ms": ending.duration_ms,
        **event.fault_after(state.failure),
    }
    said: list[Instruction] = []
    if state.checkpoint is not None:
        state, last = _report(state, "CHECKPOINT", {**state.checkpoint, "last": True}, now_ms)
        said.append(last)
    state, report = _report(state, "EXITED", body, now_ms)
    state = replace(state, phase=Phase.CLOSING, exited=report)
    # The record comes first: a report that arrives without it would be unprovable after a crash.
    record = WriteExitRecord(exited=report.as_json(), logs=None, delivered=False)
    return state, [record, *said, report, CloseLogs()]


def _ending(state: RunnerState) -> Ending:
    started = state.started and state.exit is not None
    begun_ms = state.launched_ms if state.launched_ms is not None else state.exited_ms
    duration_ms = (state.exited_ms or 0) - (begun_ms or 0)
    return Ending(
        code=state.exit.code if state.exit else None,
        signal=state.exit.signal if state.exit else None,
        started=started,
        duration_ms=max(0, duration_ms),
        stop=state.stop,
        attempt_over=state.over,
        failure=(state.failure.cause, state.failure.message) if state.failure else None,
        failure_is_permanent=state.failure is not None and state.failure.permanent,
        rendezvous_port=state.port,
        attempt_timeout_s=state.attempt_timeout_s,
    )


def _on_output_closed(state: RunnerState, event: OutputClosed, now_ms: int) -> Step:
    if state.phase is not Phase.CLOSING:
        return state, []
    assert state.exited is not None
    body = {"last_seq": event.last_seq, "sha256": event.sha256}
    state, report = _report(state, "LOGS_CLOSED", body, now_ms)
    state = replace(state, phase=Phase.REPORTING, logs=report)
    if state.over is not None:
        state, out = _leave(state, delivered=False)
        return state, [report, *out]
    return state, [_record(state, delivered=False), report]


def _on_shipped(state: RunnerState, event: LogsShipped, now_ms: int) -> Step:
    return _leave_when_done(replace(state, shipped=True))


def _on_acknowledged(state: RunnerState, event: ReportAcknowledged, now_ms: int) -> Step:
    waiting = tuple(report for report in state.outbox if report.number > event.number)
    return _leave_when_done(replace(state, outbox=waiting))


def _leave_when_done(state: RunnerState) -> Step:
    if state.phase is Phase.REPORTING and state.shipped and not state.outbox:
        return _leave(state, delivered=True)
    return state, []


def _leave(state: RunnerState, *, delivered: bool) -> Step:
    return replace(state, phase=Phase.LEFT), [_record(state, delivered=delivered), Leave()]


def _record(state: RunnerState, *, delivered: bool) -> WriteExitRecord:
    assert state.exited is not None
    logs = state.logs.as_json() if state.logs else None
    return WriteExitRecord(exited=state.exited.as_json(), logs=logs, delivered=delivered)


def _on_over(state: RunnerState, event: AttemptOver, now_ms: int) -> Step:
    return _give_up(state, "the server does not know this attempt any more", now_ms)


def _give_up(state: RunnerState, why: str, now_ms: int) -> Step:
    """End without grace and without anybody to report to."""
    if state.over is not None:
        return state, []
    interrupted = state.ending
    state = replace(state, over=why)
    if state.phase is Phase.REPORTING:
        return _leave(state, delivered=False)
    if state.phase is Phase.RUNNING:
        return state, [KillTree()]
    if state.phase is Phase.PREPARING:
        return state, [] if interrupted else [InterruptPreparation()]
    if state.phase in (Phase.WAITING, Phase.CHECKING, Phase.READY):
        return _end_before_launch(state, now_ms)
    return state, []


# --- timers -----------------------------------------------------------------------------------------------


def _on_timer(state: RunnerState, event: TimerFired, now_ms: int) -> Step:
    return _TIMERS[event.timer](state, now_ms)


def _on_grace(state: RunnerState, now_ms: int) -> Step:
    if state.stop is None or state.stop.killed or state.phase.value in _TREE_ENDED:
        return state, []
    if now_ms < state.stop.deadline_ms:
        return state, [SetTimer(timer=Timer.GRACE, at_ms=state.stop.deadline_ms)]
    if state.phase not in (Phase.RUNNING, Phase.LAUNCHING):
        return state, []
    state = replace(state, stop=replace(state.stop, killed=True))
    return state, [KillTree()] if state.phase is Phase.RUNNING else []


def _on_time_limit(state: RunnerState, now_ms: int) -> Step:
    if state.phase not in (Phase.RUNNING, Phase.LAUNCHING) or state.attempt_timeout_s is None:
        return state, []
    if now_ms < _time_limit_ms(state):
        return state, [SetTimer(timer=Timer.TIME_LIMIT, at_ms=_time_limit_ms(state))]
    if state.ending:
        return state, []
    return _stop(
        state,
        reason="TIME_LIMIT",
        by=RUNNER,
        signal=state.stop_signal,
        grace_s=state.grace_s,
        now_ms=now_ms,
    )


def _lease_is_over(state: RunnerState, now_ms: int) -> bool:
    return state.lease_until_ms is not None and now_ms >= state.lease_until_ms


def _on_lease_end(state: RunnerState, now_ms: int) -> Step:
    if state.lease_until_ms is None or state.phase.value in _TREE_ENDED:
        return state, []
    if now_ms < state.lease_until_ms:
        return state, [SetTimer(timer=Timer.LEASE, at_ms=state.lease_until_ms)]
    return _give_up(state, f"the server was silent for the lease of {state.lease_s:g} s", now_ms)


def _on_answered(state: RunnerState, event: ServerAnswered, now_ms: int) -> Step:
    if is_stale(event.epoch, state.epoch):
        return state, []
    state = replace(state, epoch=max(state.epoch, event.epoch))
    if state.renewed_ms is not None and event.sent_ms <= state.renewed_ms:
        return state, []
    state = replace(state, renewed_ms=event.sent_ms)
    if state.lease_s is None or state.over is not None:
        return state, []
    return _lease_until(state, event.sent_ms + int(state.lease_s * 1000))


_AFTER_READY = frozenset({"LAUNCHING", "RUNNING", "REAPING", "CLOSING", "REPORTING", "LEFT"})
_TREE_ENDED = frozenset({"REAPING", "CLOSING", "REPORTING", "LEFT"})

_ORDERS: dict[str, Callable[[RunnerState, Mapping[str, Any], int], Step]] = {
    "PREPARE": _on_prepare,
    "PORT": _on_port,
    "GO": _on_go,
    "STOP": _on_stop,
    "LIMIT": _on_limit,
}
_TIMERS: dict[Timer, Callable[[RunnerState, int], Step]] = {
    Timer.GRACE: _on_grace,
    Timer.TIME_LIMIT: _on_time_limit,
    Timer.LEASE: _on_lease_end,
}
_HANDLERS: dict[type, Callable[[RunnerState, Any, int], Step]] = {
    OrderReceived: _on_order,
    ProgressMade: _on_progress,
    Prepared: _on_prepared,
    PrepareFailed: _on_prepare_failed,
    PortChecked: _on_port_checked,
    ProcessStarted: _on_started,
    LaunchFailed: _on_launch_failed,
    ProcessExited: _on_exited,
    TreeGone: _on_tree_gone,
    OutputClosed: _on_output_closed,
    LogsShipped: _on_shipped,
    ReportAcknowledged: _on_acknowledged,
    CheckpointSeen: _on_checkpoint,
    StepsSeen: _on_steps,
    TimerFired: _on_timer,
    ServerAnswered: _on_answered,
    AttemptOver: _on_over,
}
