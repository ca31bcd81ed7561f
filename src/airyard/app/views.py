"""The documents of the native API, built from records: RunDoc, AttemptDoc.

Owns: what people and programs see of a run, attempt and node (``docs/internals.md``, "Native API").
Pure; must not know: HTTP, stores, clocks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from airyard.app.phases import attempt_end_ms, phases_of, run_end_ms
from airyard.app.projection import status_of
from airyard.core.exit_codes import exit_code_of
from airyard.core.ids import MemberKey
from airyard.core.run import (
    Attempt,
    Checkpoint,
    Failure,
    Member,
    Outcome,
    Run,
    RunState,
    StallNote,
    StopReason,
    StopRequest,
    Tracking,
    TrackingState,
)
from airyard.core.scheduling.eta import Eta
from airyard.core.scheduling.plan import Refusal

Document = dict[str, Any]
_PLACEHOLDER = re.compile(r"\bID\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lights:
    """What is known of runs beside their records: all of it may be missing."""

    refusals: Mapping[int, Refusal] = field(default_factory=dict)
    """By run id: why the newest plan did not place it."""
    positions: Mapping[int, int | None] = field(default_factory=dict)
    """By run id: its place in the queue from 1."""
    etas: Mapping[int, Eta] = field(default_factory=dict)
    """By run id: its expected start, where that is known."""
    progress: Mapping[MemberKey, tuple[str, str]] = field(default_factory=dict)
    """What a preparing member is at (phase, detail)."""
    tracking_url: Callable[[Tracking], str | None] = lambda tracking: None


NO_LIGHTS = Lights()


def rfc3339(at_ms: int | None) -> str | None:
    """Return a time as the API writes it: UTC with milliseconds."""
    if at_ms is None:
        return None
    moment = datetime.fromtimestamp(at_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"


def run_document(run: Run, lights: Lights = NO_LIGHTS) -> Document:
    """Return the RunDoc."""
    workload, compute, attempt = run.workload, run.workload.compute, run.attempt
    return {
        "run_id": run.run_id,
        "name": run.name,
        "experiment": workload.experiment,
        "owner": run.owner,
        "unix_user": run.unix_user or None,
        "project": run.project,
        "tags": dict(workload.tags),
        "state": run.state.value,
        "status": status_of(run),
        "outcome": run.outcome.value if run.outcome else None,
        "cause": run.cause.value if run.cause else None,
        "simulated": run.simulated,
        "accelerator": compute.accelerator,
        "nodes": compute.nodes,
        "devices_per_node": compute.devices_per_node,
        "priority": compute.priority.value,
        "pool": compute.pool,
        "timeout_s": workload.attempt_timeout_s,
        "held": run.held,
        "begin_at": rfc3339(run.begin_ms or None),
        "submitted_at": rfc3339(run.submitted_ms),
        "started_at": rfc3339(run.started_ms),
        "ended_at": rfc3339(run_end_ms(run)),
        "duration_ms": _duration_ms(run),
        "version": run.version,
        "phases": [
            {"name": phase.name, "started_at": rfc3339(phase.started_ms), "duration_ms": phase.duration_ms}
            for phase in phases_of(run, lights.progress)
        ],
        "attempt": attempt.number if attempt else None,
        "attempts": [_attempt_document(run, each, lights) for each in run.attempts],
        "max_retries": workload.max_retries,
        "retries_spent": run.retries_spent,
        "pending": _pending(run, lights),
        "failure": _failure(run.run_id, run.failure, _failed_attempt(run)),
        "tracking": _tracking(attempt.tracking, lights) if attempt else None,
        "code": workload.code.to_json() if workload.code else None,
        "logs_complete": logs_complete(run),
        "exit_code": exit_code(run),
        "parameters": workload.parameters or {},
    }


def exit_code(run: Run) -> int | None:
    """Return the command line's exit code for an ended run; None while it is live."""
    if run.state is not RunState.ENDED or run.outcome is None:
        return None
    total_s = run.workload.timeouts.total_s
    ended_ms = run.ended_ms if run.ended_ms is not None else run.submitted_ms
    over = total_s is not None and ended_ms - run.submitted_ms >= total_s * 1000
    waiting = run.attempt is None or run.attempt.outcome is not Outcome.TIMED_OUT
    return exit_code_of(run.outcome, run.cause, deadline=over or waiting)


def logs_complete(run: Run) -> bool:
    """Return whether the log of every member of every attempt has been closed by its runner."""
    return all(member.logs is not None for attempt in run.attempts for member in attempt.members)


def explanation(run: Run, lights: Lights = NO_LIGHTS, away: Collection[str] = ()) -> Document:
    """Return why a run is where it is; ``away`` are machines that cannot be reached now."""
    pending = _pending(run, lights)
    out: Document = {
        "run_id": run.run_id,
        "state": run.state.value,
        "reason": None,
        "message": "",
        "evidence": {},
        "position": None,
        "evicted": _evicted(run),
        "judgement": _last_judgement(run),
        "fix": None,
    }
    if pending is not None:
        return out | {
            "reason": pending["reason"],
            "message": pending["message"],
            "evidence": pending["evidence"],
            "position": pending["position"],
            "fix": {"text": "`airyard queue` shows what is ahead of it", "command": "airyard queue"},
        }
    if run.state is RunState.ENDED:
        failure = run.failure
        return out | {
            "reason": (run.cause.value if run.cause else run.outcome.value if run.outcome else None),
            "message": failure.message if failure else "it succeeded",
            "evidence": _failure(run.run_id, failure, _failed_attempt(run)) or {},
            "fix": {"text": with_number(failure.next_step, run.run_id)} if failure else None,
        }
    attempt = run.attempt
    assert attempt is not None
    where = ", ".join(member.node for member in attempt.members)
    stop = f"; asked to stop ({attempt.stop.reason.value}) by {attempt.stop.by}" if attempt.stop else ""
    if attempt.stop is not None and attempt.stop.message:
        stop += f": {attempt.stop.message}"
    if attempt.gone:
        stop = "; its end waits some seconds for the verdict on its logs"
    lost = sorted({m.machine for m in attempt.members if m.machine in away and not m.released})
    return out | {
        "reason": status_of(run),
        "message": f"attempt {attempt.number} is {status_of(run).lower()} on {where}{stop}{_unreached(lost)}",
        "evidence": {
            "nodes": [member.node for member in attempt.members],
            **({"machines_away": lost} if lost else {}),
        },
        "fix": _confirm(lost),
    }


def _unreached(lost: Sequence[str]) -> str:
    if not lost:
        return ""
    return (
        f"; {', '.join(lost)} cannot be reached now: the attempt may be alive there, so the run is placed again only "
        "once that is ruled out"
    )


def _confirm(lost: Sequence[str]) -> Document | None:
    if not lost:
        return None
    return {
        "text": f"wait until its lease is over; if you know that it is dead, `airyard confirm-dead {lost[0]}`",
        "command": f"airyard confirm-dead {lost[0]}",
    }


def judgement_document(attempt: Attempt) -> Document | None:
    """Return what triage made of an attempt, if it failed and was judged."""
    judgement, judged_ms = attempt.judgement, attempt.judged_ms
    if judgement is None or judged_ms is None:
        return None
    return {
        "attempt": attempt.number,
        "at": rfc3339(judged_ms),
        "in_time": attempt.ended_ms is None or judged_ms <= attempt.ended_ms,
        "logs": judgement.logs,
        "members": judgement.members,
        "missing": judgement.missing,
        "verdict": judgement.verdict.as_json() if judgement.verdict is not None else None,
    }


def _last_judgement(run: Run) -> Document | None:
    """Return the judgement on the attempt after which the run ended or waits; of a live one that on the one before."""
    ended = [attempt for attempt in run.attempts if not attempt.live]
    return judgement_document(ended[-1]) if ended else None


def _evicted(run: Run) -> Document | None:
    """Return for whom a live run had to leave last and by what right; of one that is leaving, for whom it leaves."""
    if run.state is RunState.ENDED:
        return None
    for attempt in reversed(run.attempts):
        stop = attempt.stop
        if stop is not None and stop.reason is StopReason.PREEMPTED:
            return {
                "attempt": attempt.number,
                "at": rfc3339(stop.at_ms),
                "for_run": stop.for_run,
                "rule": stop.rule or None,
                "text": stop.message,
            }
    return None


def _duration_ms(run: Run) -> int | None:
    end_ms = run_end_ms(run)
    if run.started_ms is None or end_ms is None:
        return None
    return max(0, end_ms - run.started_ms)


def _pending(run: Run, lights: Lights) -> Document | None:
    if run.state is not RunState.QUEUED:
        return None
    refusal, eta = lights.refusals.get(run.run_id), lights.etas.get(run.run_id)
    held = rfc3339(run.not_before_ms) if run.not_before_ms else None
    place: Document = {
        "eta": eta_document(eta),
        "position": lights.positions.get(run.run_id),
    }
    if refusal is None:
        return {
            "reason": "BACKOFF" if held else "NOT_YET",
            "message": "the next attempt waits a while after the last one failed"
            if held
            else "the planner has not come to it yet",
            "evidence": {},
            "not_before": held,
            **place,
        }
    return {
        "reason": refusal.reason.value,
        "message": refusal.message,
        "evidence": dict(refusal.evidence),
        "not_before": held if refusal.reason.value == "BACKOFF" else None,
        **place,
    }


def eta_document(eta: Eta | None) -> Document | None:
    """Return an expected start."""
    return {"p50": rfc3339(eta.p50_ms), "p90": rfc3339(eta.p90_ms)} if eta is not None else None


def _failed_attempt(run: Run) -> int | None:
    return run.attempt.number if run.attempt else None


def _failure(run_id: int, failure: Failure | None, attempt: int | None) -> Document | None:
    if failure is None:
        return None
    return {
        "cause": failure.cause.value,
        "attempt": attempt,
        "member": failure.member,
        "node": failure.node,
        "exit_code": failure.exit_code,
        "signal": failure.signal,
        "message": failure.message,
        "next_step": with_number(failure.next_step, run_id),
    }


def with_number(text: str, run_id: int) -> str:
    """Put the run's number where the core wrote ID."""
    return _PLACEHOLDER.sub(str(run_id), text)


def _tracking(tracking: Tracking, lights: Lights) -> Document | None:
    if tracking.state is TrackingState.OFF:
        return None
    return {
        "state": tracking.state.value,
        "experiment_id": tracking.experiment_id or None,
        "run_id": tracking.run_id or None,
        "url": lights.tracking_url(tracking) if tracking.run_id else None,
    }


def _attempt_document(run: Run, attempt: Attempt, lights: Lights) -> Document:
    return {
        "attempt": attempt.number,
        "state": attempt.state.value,
        "outcome": attempt.outcome.value if attempt.outcome else None,
        "cause": attempt.cause.value if attempt.cause else None,
        "placed_at": rfc3339(attempt.placed_ms),
        "ready_at": rfc3339(attempt.ready_ms),
        "started_at": rfc3339(attempt.running_ms),
        "ended_at": rfc3339(attempt_end_ms(attempt)),
        "stop": _stop(attempt.stop),
        "checkpoint": _checkpoint(attempt.checkpoint),
        "stall": _stall(attempt.stall),
        "members": [_member(each) for each in attempt.members],
        "tracking": _tracking(attempt.tracking, lights),
        "failure": _failure(run.run_id, attempt.failure, attempt.number),
        "judgement": judgement_document(attempt),
    }


def _stop(stop: StopRequest | None) -> Document | None:
    if stop is None:
        return None
    return {
        "reason": stop.reason.value,
        "by": stop.by,
        "at": rfc3339(stop.at_ms),
        "message": stop.message,
        "for_run": stop.for_run,
        "rule": stop.rule or None,
    }


def _stall(stall: StallNote | None) -> Document | None:
    if stall is None:
        return None
    return {
        "source": stall.source,
        "case": stall.case,
        "ranks": list(stall.ranks),
        "nodes": list(stall.nodes),
        "step": stall.step,
        "at": rfc3339(stall.at_ms),
        "over_at": rfc3339(stall.over_ms or None),
        "message": stall.message,
        "confidence": stall.confidence,
        "suspect_node": stall.suspect_node or None,
        "evidence": list(stall.evidence),
    }


def _checkpoint(checkpoint: Checkpoint | None) -> Document | None:
    if checkpoint is None:
        return None
    return {"step": checkpoint.step, "path": checkpoint.path, "at": rfc3339(checkpoint.at_ms)}


def _member(member: Member) -> Document:
    exit_, logs = member.exit, member.logs
    prepared = dict(member.prepared)
    return {
        "member": member.index,
        "node": member.node,
        "machine": member.machine,
        "devices": list(member.devices),
        "phase": member.phase.value,
        "network": (member.meeting.network or None) if member.meeting else None,
        "exit_code": exit_.code if exit_ else None,
        "signal": exit_.signal if exit_ else None,
        "message": exit_.message if exit_ else None,
        "prepared": {
            "environment_ms": prepared.get("environment_ms", 0),
            "code_ms": prepared.get("code_ms", 0),
            "environment_hit": bool(prepared.get("environment_hit", 0)),
        }
        if prepared
        else None,
        "logs": {"last_seq": logs.last_seq, "sha256": logs.sha256, "complete": True}
        if logs
        else {"last_seq": None, "sha256": "", "complete": False}
        if member.logs_given_up
        else None,
    }
