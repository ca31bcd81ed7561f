"""What follows a judged attempt: another one, and when; or the end of the run. The table of causes as code.

Owns: retry budgets, back-off, crash loops. Must not know: how an attempt is judged or placed.
"""

from __future__ import annotations

from dataclasses import replace

from airyard.core.decide.verdicts import excused_by_text
from airyard.core.events import RunEnded, RunQueuedAgain
from airyard.core.run import Attempt, Cause, Failure, Outcome, Run, StopReason

BACKOFF_S = (0, 10, 30, 60, 300)
DAY_MS = 86_400_000
FAULTS_A_DAY = 10
DOWNLOAD_RETRIES = 3
CRASH_LOOP_MS = 60_000
STEADY_MS = 3_600_000
"""An attempt that ran so long is no failure in a row with those before it."""

BUDGETED = frozenset({Cause.USER_CODE, Cause.DATA, Cause.USER_LIMIT})
YIELDED = frozenset({Cause.PREEMPTED, Cause.OPERATOR})
FAULTS = frozenset({Cause.NODE, Cause.DEVICE, Cause.NETWORK, Cause.STORAGE, Cause.PLATFORM})
BLAMES_NODE = frozenset({Cause.NODE, Cause.DEVICE})


def after_attempt(run: Run, attempt: Attempt, now_ms: int) -> RunQueuedAgain | RunEnded:
    """Return what follows an ended attempt. The run's counters are those from before it."""
    cause = attempt.cause
    if attempt.outcome is Outcome.SUCCEEDED or cause is None or cause is Cause.CANCELLED:
        return _end(run, attempt)
    total_s = run.workload.timeouts.total_s
    if total_s is not None and now_ms - run.submitted_ms >= total_s * 1000:
        return _end(
            run, attempt, outcome=Outcome.TIMED_OUT, note=f"the total time limit of {total_s} s has passed"
        )
    if cause in YIELDED:
        return _again(run, attempt, now_ms, wait=False)
    if cause in BUDGETED:
        return _after_user_failure(run, attempt, now_ms)
    if cause is Cause.ENVIRONMENT:
        return _after_environment(run, attempt, now_ms)
    return _after_fault(run, attempt, now_ms)


def _after_user_failure(run: Run, attempt: Attempt, now_ms: int) -> RunQueuedAgain | RunEnded:
    permanent = any(m.exit is not None and m.exit.permanent for m in attempt.members)
    if permanent:
        return _end(run, attempt)
    crash = _quick_crash(attempt)
    if crash and run.last_crash is not None and run.last_crash[0] == crash:
        return _end(
            run, attempt, note="it failed twice in the same way within 60 s of its start: a crash loop"
        )
    if run.retries_spent >= run.workload.max_retries:
        return _end(run, attempt)
    again = _again(run, attempt, now_ms)
    return replace(again, retries_spent=run.retries_spent + 1, last_crash=(crash, now_ms) if crash else None)


def _quick_crash(attempt: Attempt) -> str:
    """Return the fingerprint of a failure within 60 s of the start, else nothing."""
    failure = attempt.failure
    if failure is None or failure.member is None or attempt.running_ms is None:
        return ""
    ended = attempt.members[failure.member].exit
    if ended is None or ended.at_ms - attempt.running_ms > CRASH_LOOP_MS:
        return ""
    return failure.fingerprint


def _after_environment(run: Run, attempt: Attempt, now_ms: int) -> RunQueuedAgain | RunEnded:
    permanent = any(m.exit is not None and m.exit.permanent for m in attempt.members)
    if permanent or run.download_retries >= DOWNLOAD_RETRIES:
        return _end(run, attempt)
    return replace(_again(run, attempt, now_ms), download_retries=run.download_retries + 1)


def _after_fault(run: Run, attempt: Attempt, now_ms: int) -> RunQueuedAgain | RunEnded:
    recent = tuple(at for at in run.recent_faults_ms if at > now_ms - DAY_MS)
    if len(recent) >= FAULTS_A_DAY:
        return _end(run, attempt, note=f"{len(recent)} attempts were lost to faults within a day")
    avoid = run.avoid_nodes
    node = attempt.failure.node if attempt.failure else None
    if node is not None and node not in avoid and attempt.cause in FAULTS:
        avoid = (*avoid, node)
    return replace(
        _again(run, attempt, now_ms),
        recent_faults_ms=(*recent, now_ms),
        avoid_nodes=avoid,
        text_excuses=run.text_excuses + excused_by_text(attempt),
    )


def _again(run: Run, attempt: Attempt, now_ms: int, *, wait: bool = True) -> RunQueuedAgain:
    steady = attempt.running_ms is not None and now_ms - attempt.running_ms >= STEADY_MS
    in_row = 0 if steady else run.failures_in_row
    step = min(in_row, len(BACKOFF_S) - 1)
    return RunQueuedAgain(
        run_id=run.run_id,
        not_before_ms=now_ms + BACKOFF_S[step] * 1000 if wait else now_ms,
        retries_spent=run.retries_spent,
        download_retries=run.download_retries,
        failures_in_row=in_row + 1 if wait else 0,
        recent_faults_ms=run.recent_faults_ms,
        avoid_nodes=_avoided(run, attempt),
        last_crash=run.last_crash,
        text_excuses=run.text_excuses,
    )


def _avoided(run: Run, attempt: Attempt) -> tuple[str, ...]:
    """Return where the run would rather not go: also the nodes of ranks that held a hanging gang up, blameless."""
    stop, stall = attempt.stop, attempt.stall
    if stop is None or stop.reason is not StopReason.STALLED or stall is None:
        return run.avoid_nodes
    return tuple(dict.fromkeys((*run.avoid_nodes, *stall.nodes)))


def _end(run: Run, attempt: Attempt, *, outcome: Outcome | None = None, note: str = "") -> RunEnded:
    failure = attempt.failure
    if note and failure is not None:
        failure = replace(failure, message=f"{failure.message} ({note})")
    return RunEnded(
        run_id=run.run_id,
        outcome=outcome or _run_outcome(attempt.outcome),
        cause=attempt.cause,
        failure=failure,
    )


def _run_outcome(outcome: Outcome | None) -> Outcome:
    """A run is never PREEMPTED or LOST: it has failed when nothing more is tried."""
    if outcome in (Outcome.SUCCEEDED, Outcome.TIMED_OUT, Outcome.CANCELLED):
        assert outcome is not None
        return outcome
    return Outcome.FAILED


def queue_failure(message: str, next_step: str) -> Failure:
    """Describe the end of a run that never got its devices."""
    return Failure(cause=Cause.USER_LIMIT, message=message, next_step=next_step)
