"""Where a run's time went: the phases of its newest attempt, from the wait for it to its end.

Owns: names, order and limits of the phases. Pure; must not know: how they are shown.

An end is when the last member ended by its own word, not when the server heard of it: a server may have been away.

The phases of one attempt follow each other: queued, code, environment, barrier (the others were not ready yet),
tracking (MLflow was not ready yet), running, stopping. Of a gang the slowest member counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airyard.core.ids import MemberKey
from airyard.core.run import Attempt, Cause, MemberPhase, Run, RunState

_PREPARING = ("code", "environment")
_WAITING = (MemberPhase.STARTING, MemberPhase.PREPARING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One phase; ``duration_ms`` is None while it goes on."""

    name: str
    started_ms: int
    duration_ms: int | None


def attempt_end_ms(attempt: Attempt) -> int | None:
    """Return when the attempt's last member ended, never before it ran; None while the attempt is live."""
    if attempt.ended_ms is None:
        return None
    exits_ms = [member.exit.at_ms for member in attempt.members if member.exit is not None]
    if not exits_ms or len(exits_ms) < len(attempt.members) or not all(exits_ms):
        return attempt.ended_ms
    begun_ms = max(
        attempt.placed_ms, attempt.preparing_ms or 0, attempt.ready_ms or 0, attempt.running_ms or 0
    )
    return min(max(begun_ms, *exits_ms), attempt.ended_ms)


def run_end_ms(run: Run) -> int | None:
    """Return when the run ended: with its last attempt, or later, where it ended in the queue."""
    attempt = run.attempt
    if run.ended_ms is None or attempt is None or attempt.ended_ms != run.ended_ms:
        return run.ended_ms
    return attempt_end_ms(attempt)


def phases_of(run: Run, progress: Mapping[MemberKey, tuple[str, str]]) -> list[Phase]:
    """Return the phases in order. ``progress`` says what preparing members are at."""
    attempt = run.attempt
    if attempt is None or run.state is RunState.QUEUED:
        return [_span("queued", _queued_since(run, attempt), run.ended_ms)]
    before = run.attempts[-2] if len(run.attempts) > 1 else None
    phases = [_span("queued", _queued_since(run, before), attempt.placed_ms)]
    phases += _preparing(attempt, progress)
    if attempt.running_ms is not None:
        phases.append(_span("running", attempt.running_ms, _stop_ms(attempt) or attempt_end_ms(attempt)))
    if (stop_ms := _stop_ms(attempt)) is not None:
        phases.append(_span("stopping", stop_ms, attempt_end_ms(attempt)))
    return phases


def _stop_ms(attempt: Attempt) -> int | None:
    """When it was told to stop; one that had ended unheard was told at its end."""
    end_ms = attempt_end_ms(attempt)
    if attempt.stopping_ms is None or end_ms is None:
        return attempt.stopping_ms
    return min(attempt.stopping_ms, end_ms)


def _queued_since(run: Run, before: Attempt | None) -> int:
    """Return since when the run waits for the attempt after ``before``."""
    if before is None:
        return run.submitted_ms
    # A resumed run waits since it was resumed, a retried one since its last attempt ended.
    return max(run.queued_ms, attempt_end_ms(before) or 0)


def _span(name: str, start_ms: int, end_ms: int | None) -> Phase:
    return Phase(
        name=name, started_ms=start_ms, duration_ms=None if end_ms is None else max(0, end_ms - start_ms)
    )


def _preparing(attempt: Attempt, progress: Mapping[MemberKey, tuple[str, str]]) -> list[Phase]:
    if attempt.ready_ms is None:
        return _unready(attempt, progress)
    start_ms = attempt.preparing_ms if attempt.preparing_ms is not None else attempt.placed_ms
    phases = []
    for name in _PREPARING:
        took_ms = _slowest(attempt, f"{name}_ms")
        phases.append(Phase(name=name, started_ms=start_ms, duration_ms=took_ms))
        start_ms += took_ms
    phases.append(_span("barrier", min(start_ms, attempt.ready_ms), attempt.ready_ms))
    over_ms = attempt.running_ms or _stop_ms(attempt) or attempt_end_ms(attempt)
    if over_ms is None or over_ms > attempt.ready_ms:
        phases.append(_span("tracking", attempt.ready_ms, over_ms))
    return phases


def _unready(attempt: Attempt, progress: Mapping[MemberKey, tuple[str, str]]) -> list[Phase]:
    """What is known before all members are ready: what the first of those that are still at it does."""
    start_ms = attempt.preparing_ms
    if start_ms is None:
        return []
    end_ms = _stop_ms(attempt) or attempt_end_ms(attempt)
    if end_ms is not None:
        name = "environment" if attempt.cause is Cause.ENVIRONMENT else "code"
        return [_span(name, start_ms, end_ms)]
    # Asked once each: the map belongs to another thread, and what was in it a moment ago may be gone.
    at = [
        progress.get(attempt.member_key(member.index), ("", ""))[0]
        for member in attempt.members
        if member.phase in _WAITING
    ]
    known = [name for name in _PREPARING if name in at]
    if known:
        return [_span(known[0], start_ms, None)]
    waits = any(member.phase is MemberPhase.READY for member in attempt.members)
    return [_span("barrier", start_ms, None)] if waits else []


def _slowest(attempt: Attempt, key: str) -> int:
    return max((dict(member.prepared).get(key, 0) for member in attempt.members), default=0)
