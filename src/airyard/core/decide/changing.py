"""Decides what may be changed of a run after its submit: class, project, time limit, begin, hold.

Owns: which change is possible in which state, and by whom. Must not know: the wire.
"""

from __future__ import annotations

from dataclasses import fields, replace

from airyard.core.commands import UpdateRun
from airyard.core.decide import admission
from airyard.core.decide.decision import Decision, Updated
from airyard.core.errors import Conflict, Fix, NotFound, UserError
from airyard.core.events import RunUpdated
from airyard.core.policy import DAY_MS
from airyard.core.run import Run, RunState
from airyard.core.state import ClusterState
from airyard.core.wording import moment, span

MAX_TIMEOUT_S = 10 * 366 * 86_400
MAX_AHEAD_MS = 366 * DAY_MS


def update(state: ClusterState, command: UpdateRun, now_ms: int) -> Decision:
    """Change a live run: all of it or, on a refusal, nothing. What is so already is no news and is not journalled.

    Raises: NotFound when it is not queued or active; Conflict for what its state forbids; UserError for a time limit
    or a begin that cannot be; what ``admission`` refuses.
    """
    run = state.runs.get(command.run_id)
    if run is None or run.state is RunState.ENDED:
        raise NotFound(f"run {command.run_id} is not queued or active", code="RUN_NOT_LIVE")
    changed = _news(run, command, now_ms)
    names = tuple(f.name for f in fields(changed)[2:] if getattr(changed, f.name) is not None)
    if changed.project is not None:
        _only_queued(run, "its project be changed", f"its devices are booked to project {run.project}")
    if changed.held:
        _only_queued(run, "it be held", "a hold keeps a run from starting, and this one has started")
    if changed.begin_ms is not None:
        check_begin(changed.begin_ms, now_ms)
        _only_queued(run, "it be given a begin", "this one has begun")
    _check_rights(state, run, changed, now_ms)
    warnings = _check_timeout(run, changed.attempt_timeout_s, now_ms)
    reply = Updated(run_id=run.run_id, changed=names, warnings=tuple(warnings))
    return Decision(events=(changed,) if names else (), reply=reply)


def _news(run: Run, command: UpdateRun, now_ms: int) -> RunUpdated:
    """Return what of the command is not so already."""
    compute, timeout_s = run.workload.compute, run.workload.attempt_timeout_s or 0
    begun = command.begin_ms == 0 and run.begin_ms <= now_ms
    return RunUpdated(
        run_id=run.run_id,
        by=command.by,
        priority=None if command.priority is compute.priority else command.priority,
        project=None if command.project == run.project else command.project,
        attempt_timeout_s=None if command.attempt_timeout_s == timeout_s else command.attempt_timeout_s,
        begin_ms=None if begun or command.begin_ms == run.begin_ms else command.begin_ms,
        held=None if command.held == run.held else command.held,
    )


def _check_rights(state: ClusterState, run: Run, changed: RunUpdated, now_ms: int) -> None:
    """Refuse a project or class that the one who asks may not use; a new project is like a submit to it."""
    priority = changed.priority or run.workload.compute.priority
    if changed.project is not None:
        compute = replace(run.workload.compute, priority=priority)
        workload = replace(run.workload, compute=compute)
        admission.check(state, changed.by, changed.project, workload, now_ms)
    elif changed.priority is not None:
        admission.check_class(state.policy, changed.by, run.project, priority)


def check_begin(begin_ms: int, now_ms: int) -> None:
    """Refuse a begin that has passed or is over a year away; 0 is no begin at all."""
    if begin_ms == 0:
        return
    if begin_ms <= now_ms:
        raise UserError(
            f"the begin {moment(begin_ms)} has passed, {_ago(now_ms - begin_ms)}",
            code="BEGIN_HAS_PASSED",
            fix="give a time to come, or none: then it starts as soon as there is room",
        )
    if begin_ms > now_ms + MAX_AHEAD_MS:
        raise UserError(
            f"the begin {moment(begin_ms)} is over {MAX_AHEAD_MS // DAY_MS} days away",
            code="BEGIN_TOO_FAR",
            fix="hold the run instead, and release it when its time has come",
        )


def _ago(passed_ms: int) -> str:
    return f"{span(passed_ms)} ago" if passed_ms >= 1000 else "less than a second ago"


def _check_timeout(run: Run, timeout_s: int | None, now_ms: int) -> list[str]:
    """Refuse a limit that cannot be, or that the attempt has used up already; return what else to know."""
    if timeout_s is None:
        return []
    if not 0 <= timeout_s <= MAX_TIMEOUT_S:
        raise UserError(
            f"a time limit of {timeout_s} s cannot be: it is at least 1 s and at most {span(MAX_TIMEOUT_S * 1000)}",
            code="BAD_TIME_LIMIT",
            fix="give such a limit, or take the limit away",
        )
    attempt = run.attempt
    if run.state is not RunState.ACTIVE or attempt is None:
        return []
    if attempt.stop is not None:
        return [f"attempt {attempt.number} is being stopped; the limit counts from the next attempt on"]
    used_ms = 0 if attempt.running_ms is None else now_ms - attempt.running_ms
    if timeout_s and used_ms >= timeout_s * 1000:
        raise Conflict(
            f"attempt {attempt.number} of run {run.run_id} has been running for {span(used_ms)}: a limit of "
            f"{span(timeout_s * 1000)} would have passed already",
            code="TIME_LIMIT_PASSED",
            fix=Fix(
                text=f"give more than {span(used_ms)}, or stop it now", command=f"airyard cancel {run.run_id}"
            ),
            details={"used_ms": used_ms, "timeout_s": timeout_s},
        )
    return []


def _only_queued(run: Run, what: str, why: str) -> None:
    """Refuse a change that a run with a live attempt cannot have."""
    if run.state is RunState.QUEUED:
        return
    attempt = run.attempt
    doing = (run.state if attempt is None else attempt.state).value
    raise Conflict(
        f"run {run.run_id} is {doing.lower()}; only while it is queued can {what}: {why}",
        code="RUN_NOT_QUEUED",
        fix=Fix(
            text=f"stop it, and go on later with `airyard resume {run.run_id}`",
            command=f"airyard cancel {run.run_id}",
        ),
        details={"run_id": run.run_id, "doing": doing},
    )
