"""Judges a gang whose members are all gone: outcome, cause, and the first failure.

Owns: how members' ends add up to the attempt's end, and the next step to name.
Must not know: whether it is tried again.
"""

from __future__ import annotations

from airyard.core.run import Attempt, Cause, Exit, Failure, Member, MemberPhase, Outcome, StopReason

Verdict = tuple[Outcome, Cause | None, Failure | None]

_BY_STOP: dict[StopReason, tuple[Outcome, Cause]] = {
    StopReason.CANCELLED: (Outcome.CANCELLED, Cause.CANCELLED),
    StopReason.PREEMPTED: (Outcome.PREEMPTED, Cause.PREEMPTED),
    StopReason.DRAIN: (Outcome.PREEMPTED, Cause.OPERATOR),
    StopReason.TIME_LIMIT: (Outcome.TIMED_OUT, Cause.USER_LIMIT),
    StopReason.NOT_READY: (Outcome.FAILED, Cause.PLATFORM),
    StopReason.MEMBER_FAILED: (Outcome.FAILED, Cause.PLATFORM),
    StopReason.DEVICE_FAULT: (Outcome.LOST, Cause.DEVICE),
    StopReason.NODE_FAULT: (Outcome.LOST, Cause.NODE),
    StopReason.STALLED: (Outcome.FAILED, Cause.USER_CODE),
}

# Whatever a command still did on a broken device or node is no failure of its own.
_DECIDES_ALONE = frozenset({StopReason.CANCELLED, StopReason.DEVICE_FAULT, StopReason.NODE_FAULT})

NEXT_STEP: dict[Cause, str] = {
    Cause.USER_CODE: "read the log of the node named above; `airyard rerun ID` starts it again as it was",
    Cause.DATA: "check that the data the command reads is there and readable",
    Cause.USER_LIMIT: "raise the limit it met (timeout_minutes, timeouts, compute.memory), or make the work smaller",
    Cause.ENVIRONMENT: "mend environment (its version, its dependencies); the installer's own words are in the log",
    Cause.PREEMPTED: "nothing to do: it keeps its place in the queue and goes on when there is room",
    Cause.OPERATOR: "nothing to do: it keeps its place in the queue and goes on elsewhere",
    Cause.NODE: "`airyard nodes` shows the node; the run avoids it on its next attempt",
    Cause.DEVICE: "`airyard nodes` shows the device; the run avoids the node on its next attempt",
    Cause.NETWORK: "`airyard resume ID` tries again once the network is mended",
    Cause.STORAGE: "free space or mend the store, then `airyard resume ID`",
    Cause.PLATFORM: "`airyard doctor` checks this yard; `airyard resume ID` tries again",
    Cause.CANCELLED: "`airyard resume ID` starts a new attempt of it",
}

STALLED_STEP = "`airyard get ID -o json` has the stacks of the ranks named above (attempts[].stall.evidence)"

_HINTS: tuple[tuple[str, str], ...] = (
    # MLflow's words for a `set_experiment` that disagrees with the run Airyard has opened (mlflow/tracking/fluent.py).
    (
        "does not match environment run ID",
        "drop `mlflow.set_experiment`, Airyard has opened a run in experiment_name already; or unset MLFLOW_RUN_ID "
        "before `start_run` to make a run of your own (docs/tracking.md)",
    ),
)
"""What a message says, and the step that fits it better than its cause's."""


def next_step(cause: Cause, message: str) -> str:
    """Return what to do about a failure: by its message where that is a known one, else by its cause."""
    return next((step for words, step in _HINTS if words in message), NEXT_STEP[cause])


def judge(attempt: Attempt) -> Verdict:
    """Return the verdict on an attempt whose members have all ended.

    It succeeds only if every member did by itself. The cause is that of the first failure; what members did because
    they were told to stop is no failure of theirs.
    """
    stop = attempt.stop
    if all(_succeeded(member.exit) for member in attempt.members):
        return Outcome.SUCCEEDED, None, None
    if stop is not None and stop.reason in _DECIDES_ALONE:
        return _stopped(attempt, stop.reason)
    first = first_failure(attempt)
    if first is not None:
        return _failed(first)
    if stop is not None:
        return _stopped(attempt, stop.reason)
    return _stopped(attempt, StopReason.MEMBER_FAILED)


def first_failure(attempt: Attempt) -> Member | None:
    """Return the member that failed first by itself, if any has."""
    told = attempt.stop is not None and attempt.stop.reason is not StopReason.MEMBER_FAILED
    failed = [
        member
        for member in attempt.members
        if member.exit is not None
        and member.exit.cause is not None
        and member.exit.stop_reason in ("", StopReason.TIME_LIMIT.value)
        # A runner that had to be killed because it did not stop is not the reason for the stop.
        and not (told and member.phase is MemberPhase.LOST)
    ]
    return min(failed, key=lambda m: (m.exit.at_ms if m.exit else 0, m.index), default=None)


def _succeeded(exit_: Exit | None) -> bool:
    return exit_ is not None and exit_.cause is None and exit_.stop_reason == ""


def _failed(member: Member) -> Verdict:
    assert member.exit is not None
    assert member.exit.cause is not None
    exit_ = member.exit
    cause = exit_.cause
    assert cause is not None
    outcome = Outcome.FAILED
    if exit_.stop_reason == StopReason.TIME_LIMIT.value:
        outcome = Outcome.TIMED_OUT
    elif member.phase is MemberPhase.LOST:
        outcome = Outcome.LOST
    failure = Failure(
        cause=cause,
        message=exit_.message,
        next_step=next_step(cause, exit_.message),
        member=member.index,
        node=member.node,
        exit_code=exit_.code,
        signal=exit_.signal,
        fingerprint=exit_.fingerprint,
    )
    return outcome, cause, failure


def _stopped(attempt: Attempt, reason: StopReason) -> Verdict:
    outcome, cause = _BY_STOP[reason]
    stop, stall = attempt.stop, attempt.stall
    suspect = stall.suspect_node if reason is StopReason.STALLED and stall is not None else ""
    if suspect:
        cause = Cause.NODE
    message = (stop.message if stop else "") or f"stopped: {reason.value.lower().replace('_', ' ')}"
    by = f" by {stop.by}" if stop and stop.by else ""
    if reason is StopReason.CANCELLED:
        message = f"cancelled{by}"
    codes = {member.exit.code for member in attempt.members if member.exit is not None}
    failure = Failure(
        cause=cause,
        message=message,
        next_step=NEXT_STEP[cause] if reason is not StopReason.STALLED or suspect else STALLED_STEP,
        node=suspect or (stop.node if stop is not None else "") or None,
        exit_code=codes.pop() if len(codes) == 1 else None,
    )
    return outcome, cause, failure
