"""A run in words: one line, a row, the full page, the sentence at its end.

Owns: how a RunDoc (docs/internals.md) reads. Pure. Must not know: the network, where the text goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any

from airyard.cli import formats, verdict_text
from airyard.cli.formats import duration, moment, paint, paint_status, plural

Run = Mapping[str, Any]
SHOWN_PHASES = ("queued", "environment", "code")
"""The phases between submit and start that a status line always names."""
MAX_WHY = 400
"""How much of a failure's message fits the last line of a watch; ``get`` shows all of it."""
WORTH_SAYING_MS = 50
"""The other phases (barrier, tracking) are named when they took this long."""


def status_word(run: Run) -> str:
    """Return the status as people see it: a success on simulated nodes says so, and so does a hold."""
    status = str(run.get("status") or run.get("outcome") or run["state"])
    if run.get("held") and status == "QUEUED":
        return "QUEUED (held)"
    return f"{status} (simulated)" if run.get("simulated") and status == "SUCCEEDED" else status


def gang(run: Run) -> str:
    """``2 × GPU_1xA10``, ``GPU_8xH100``, ``CPU``."""
    nodes = run.get("nodes") or 1
    return str(run["accelerator"]) if nodes == 1 else f"{nodes} × {run['accelerator']}"


def label(run: Run) -> str:
    """Return how the run is called: its name, else its experiment."""
    return "(hidden)" if run.get("hidden") else str(run.get("name") or run.get("experiment") or "")


def row(run: Run, *, colour: bool, zone: tzinfo | None = None) -> list[str]:
    """Return one row for ``list``; LIST_HEAD names the columns."""
    return [
        str(run["run_id"]),
        label(run),
        paint_status(status_word(run), colour),
        gang(run),
        str(run.get("owner") or "-"),
        moment(run.get("submitted_at"), zone),
        duration(elapsed_ms(run)),
    ]


LIST_HEAD = ("ID", "NAME", "STATUS", "COMPUTE", "OWNER", "SUBMITTED", "DURATION")


def elapsed_ms(run: Run, now: datetime | None = None) -> float | None:
    """Return how long the run took, or has taken so far."""
    if run.get("duration_ms") is not None:
        return float(run["duration_ms"])
    started = run.get("started_at")
    if not started or run.get("ended_at"):
        return None
    return ((now or datetime.now(UTC)) - formats.parse_time(started)).total_seconds() * 1000


def phases_line(run: Run) -> str:
    """``queued 0.1 s · environment 2.3 s · code 0.1 s · started``: what is over, then what goes on."""
    parts = []
    for phase in run.get("phases") or ():
        name, took = phase["name"], phase.get("duration_ms")
        if name in ("running", "stopping"):
            continue
        if took is None:
            parts.append(f"{name} …")
        elif took >= WORTH_SAYING_MS or name in SHOWN_PHASES:
            parts.append(f"{name} {duration(took)}")
    if any(phase["name"] == "running" for phase in run.get("phases") or ()):
        parts.append("started")
    return " · ".join(parts)


def status_line(run: Run, *, zone: tzinfo | None = None) -> str:
    """Say in one line where a live run is; lines differ exactly when there is news."""
    status = run.get("status")
    if status == "QUEUED":
        return f"queued: {pending_text(run, zone) or 'waiting for the planner'}"
    if status == "PREPARING":
        return f"preparing {_where(run)}{_phases_so_far(run)}"
    if status == "RUNNING":
        again = f" (attempt {run['attempt']})" if run.get("attempt") else ""
        return f"{phases_line(run) or 'started'}{again}"
    if status == "STOPPING":
        stop = (latest_attempt(run) or {}).get("stop") or {}
        by = f" by {stop['by']}" if stop.get("by") else ""
        asked = f"{str(stop.get('reason') or 'asked to').replace('_', ' ').lower()}{by}"
        # An eviction says for whom, and by what right.
        return f"stopping: {stop['message'] if stop.get('for_run') and stop.get('message') else asked}"
    return status_word(run)


def pending_text(run: Run, zone: tzinfo | None = None) -> str:
    """Return why the run waits, with the expected start where the server gives one; empty when it does not."""
    eta = (run.get("pending") or {}).get("eta")
    text = reason_text(run, zone)
    return f"{text} (expected about {formats.about(eta['p50'], zone)})" if eta else text


def reason_text(run: Run, zone: tzinfo | None = None) -> str:
    """Return why the run waits; empty when it does not."""
    pending = run.get("pending")
    if not pending:
        return ""
    text = str(pending.get("message") or pending.get("reason") or "")
    if pending.get("not_before"):
        text += f" (not before {formats.clock_time(pending['not_before'], zone)})"
    return text


def verdict(run: Run, *, logs_shown: bool = False) -> str:
    """Say how the run ended: status, and for a failure the first failing node and its cause.

    Of a message of several lines (an installer's words) the first is enough where the log has shown the others.
    """
    took = elapsed_ms(run)
    parts = [f"run {run['run_id']} {status_word(run)}"]
    parts += [duration(took)] if took is not None else []
    parts += [f"attempt {run['attempt']}"] if run.get("attempt") else []
    failure = run.get("failure")
    if run.get("outcome") == "SUCCEEDED" or not failure:
        return " · ".join(parts)
    why = " ".join(failure_text(failure, brief=logs_shown).split())
    return f"{' · '.join(parts)}: {why if len(why) <= MAX_WHY else why[: MAX_WHY - 1] + '…'}"


def reason(failure: Mapping[str, Any], *, brief: bool = False) -> str:
    """Return the message of a failure without its full stop; ``brief``: only its first line."""
    message = str(failure.get("message") or "")
    return (message.partition("\n")[0].rstrip(" :") if brief else message).rstrip(".")


def failure_text(failure: Mapping[str, Any], *, brief: bool = False) -> str:
    """``USER_CODE on node 1 (host-b): exit code 7``."""
    text = str(failure.get("cause") or "failed")
    if failure.get("member") is not None:
        text += f" on node {failure['member']}"
        if failure.get("node"):
            text += f" ({failure['node']})"
    message = reason(failure, brief=brief)
    if not message and failure.get("signal") is not None:
        message = f"ended by signal {failure['signal']}"
    if not message and failure.get("exit_code") is not None:
        message = f"exit code {failure['exit_code']}"
    return f"{text}: {message}" if message else text


def next_step(run: Run, *, logs_shown: bool = True) -> str | None:
    """Return what to do about a failed run; None when nothing is to do.

    The command that shows the failing node's log is added where its lines are not on the screen already.
    """
    failure = run.get("failure")
    if not failure or run.get("outcome") == "SUCCEEDED":
        return None
    step = str(failure.get("next_step") or "")
    if step and (logs_shown or failure.get("member") is None or "airyard logs" in step):
        return step
    node = f" --node {failure['member']}" if failure.get("member") is not None else ""
    command = f"airyard logs {run['run_id']}{node} --tail 50"
    return f"{step}\n         {command}" if step else command


def latest_attempt(run: Run) -> Mapping[str, Any] | None:
    """Return the newest attempt; None before the first."""
    attempts = run.get("attempts") or []
    return attempts[-1] if attempts else None


def page(run: Run, *, colour: bool, zone: tzinfo | None = None) -> str:
    """Return everything ``get`` shows."""
    parts = [_heading(run, colour), _facts(run, zone)]
    attempts: Sequence[Mapping[str, Any]] = run.get("attempts") or ()
    if attempts:
        parts.append(_attempts(attempts, colour, zone))
        members = attempts[-1].get("members") or ()
        if members:
            parts.append(_members(members))
    if run.get("failure") and run.get("outcome") != "SUCCEEDED":
        failed = paint("failure", "red", colour)
        parts.append(f"{failed}  {failure_text(run['failure'])}\nnext     {next_step(run, logs_shown=False)}")
    judgement = next((one["judgement"] for one in reversed(attempts) if one.get("judgement")), None)
    if judgement is not None and run.get("outcome") != "SUCCEEDED":
        parts.append(f"attempt {judgement['attempt']}\n{formats.fields(verdict_text.short(judgement))}")
    return "\n\n".join(parts)


def _heading(run: Run, colour: bool) -> str:
    name = label(run)
    bold = paint(f"Run {run['run_id']}", "bold", colour)
    return f"{bold}  {name}  {paint_status(status_word(run), colour)}"


def _facts(run: Run, zone: tzinfo | None) -> str:
    tags = "  ".join(f"{key}={value}" for key, value in (run.get("tags") or {}).items())
    pool = f", pool {run['pool']}" if run.get("pool") else ""
    retries = f"{run.get('retries_spent') or 0} of {run['max_retries']}" if "max_retries" in run else None
    code = run.get("code") or {}
    git = code.get("git") or {}
    commit = (
        f" · {git['base_commit'][:12]}{' (dirty)' if git.get('dirty') else ''}"
        if git.get("base_commit")
        else ""
    )
    started = [
        phase
        for phase in run.get("phases") or ()
        if phase["name"] in (*SHOWN_PHASES, "running") or (phase.get("duration_ms") or 0) >= WORTH_SAYING_MS
    ]
    return formats.fields(
        [
            ("experiment", run.get("experiment")),
            ("owner", run.get("owner")),
            ("compute", f"{gang(run)}{pool}, {run.get('priority') or 'NORMAL'}"),
            ("tags", tags),
            ("submitted", moment(run.get("submitted_at"), zone)),
            ("started", moment(run.get("started_at"), zone) if run.get("started_at") else None),
            ("ended", moment(run.get("ended_at"), zone) if run.get("ended_at") else None),
            ("duration", duration(elapsed_ms(run)) if elapsed_ms(run) is not None else None),
            ("phases", _phase_times(started, zone)),
            ("waiting", pending_text(run, zone)),
            ("evicted", _evicted(run.get("attempts") or (), zone)),
            ("retries", retries),
            ("time limit", duration(run["timeout_s"] * 1000) if run.get("timeout_s") else None),
            ("code", f"{code['tree_hash'][:12]} · {code.get('directory_name')}{commit}" if code else None),
            ("tracking", _tracking(run.get("tracking"))),
            ("logs", None if run.get("state") != "ENDED" else _complete(run.get("logs_complete"))),
        ]
    )


def _evicted(attempts: Sequence[Mapping[str, Any]], zone: tzinfo | None) -> str | None:
    """Say of the newest attempt that was evicted when, for whom and by what right."""
    for attempt in reversed(attempts):
        stop = attempt.get("stop") or {}
        if stop.get("for_run"):
            at = formats.clock_time(stop["at"], zone)
            return f"attempt {attempt['attempt']} at {at}: {stop['message']}"
    return None


def _phase_times(phases: Sequence[Mapping[str, Any]], zone: tzinfo | None) -> str:
    return " · ".join(
        f"{phase['name']} {formats.clock_time(phase['started_at'], zone)}"
        + (f" ({duration(phase['duration_ms'])})" if phase.get("duration_ms") is not None else " …")
        for phase in phases
    )


def _tracking(tracking: Mapping[str, Any] | None) -> str | None:
    if not tracking:
        return None
    state = str(tracking.get("state") or "").lower()
    return str(tracking.get("url") or ("" if state in ("off", "closed") else state))


def _complete(complete: object) -> str:
    return "complete" if complete else "incomplete (`airyard logs --download-to DIR` names the gaps)"


def _attempts(attempts: Sequence[Mapping[str, Any]], colour: bool, zone: tzinfo | None) -> str:
    rows = [
        [
            attempt["attempt"],
            paint_status(str(attempt.get("outcome") or attempt.get("state")), colour),
            attempt.get("cause") or "-",
            moment(attempt.get("started_at") or attempt.get("placed_at"), zone),
            duration(_span_ms(attempt.get("started_at"), attempt.get("ended_at"))),
            _checkpoint(attempt.get("checkpoint")),
        ]
        for attempt in attempts
    ]
    return formats.table(("ATTEMPT", "STATUS", "CAUSE", "STARTED", "DURATION", "CHECKPOINT"), rows)


def _members(members: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for member in members:
        logs = member.get("logs")
        rows.append(
            [
                member["member"],
                member.get("node") or "-",
                ",".join(map(str, member.get("devices") or ())) or "-",
                member.get("phase") or "-",
                _ending(member),
                "-" if logs is None else "complete" if logs.get("complete") else "incomplete",
            ]
        )
    return formats.table(("NODE", "NAME", "DEVICES", "PHASE", "EXIT", "LOG"), rows)


def _ending(member: Mapping[str, Any]) -> str:
    if member.get("signal") is not None:
        return f"signal {member['signal']}"
    return "-" if member.get("exit_code") is None else str(member["exit_code"])


def _checkpoint(checkpoint: Mapping[str, Any] | None) -> str:
    return "-" if not checkpoint else f"step {checkpoint.get('step')}"


def _span_ms(start: str | None, end: str | None) -> float | None:
    if not start:
        return None
    until = formats.parse_time(end) if end else datetime.now(UTC)
    return (until - formats.parse_time(start)).total_seconds() * 1000


def _where(run: Run) -> str:
    members = (latest_attempt(run) or {}).get("members") or []
    names = [str(member["node"]) for member in members if member.get("node")]
    if not names:
        return f"on {plural(run.get('nodes') or 1, 'node')}"
    return f"on {', '.join(names[:4])}" + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def preparing_line(run: Run) -> str:
    """Return what goes on in preparing; empty between two phases."""
    line = phases_line(run)
    return line if "…" in line else ""


def _phases_so_far(run: Run) -> str:
    line = preparing_line(run)
    return f" ({line})" if line else ""
