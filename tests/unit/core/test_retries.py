"""The table of causes: who is tried again, when, and at whose expense."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airyard.core.decide.retries import (
    BACKOFF_S,
    DAY_MS,
    FAULTS,
    FAULTS_A_DAY,
    STEADY_MS,
    after_attempt,
    queue_failure,
)
from airyard.core.events import RunEnded, RunQueuedAgain
from airyard.core.run import Attempt, Cause, Failure, Outcome, Run
from airyard.core.workload import Timeouts
from core_yard import START_MS, Yard, ended, node, workload

OUTCOMES = {Cause.PREEMPTED: Outcome.PREEMPTED, Cause.OPERATOR: Outcome.PREEMPTED, Cause.NODE: Outcome.LOST,
            Cause.CANCELLED: Outcome.CANCELLED}  # fmt: skip


def after(cause: Cause | None, *, exit_: dict[str, Any] | None = None, outcome: Outcome | None = None,
          ran_s: float = 600, **run_fields: Any) -> RunQueuedAgain | RunEnded:  # fmt: skip
    """Let a run's attempt end for a cause; return what follows."""
    run, attempt = ended_attempt(cause, exit_ or {}, outcome, ran_s, run_fields)
    return after_attempt(run, attempt, START_MS + 1_000_000)


def ended_attempt(
    cause: Cause | None, exit_: dict[str, Any], outcome: Outcome | None, ran_s: float, fields: dict[str, Any]
) -> tuple[Run, Attempt]:
    yard = Yard(node("a"))
    limits = fields.pop("timeouts", Timeouts())
    run_id = yard.submit(workload(max_retries=fields.pop("max_retries", 3), timeouts=limits))
    yard.place()
    run = replace(yard.run(run_id), **fields)
    attempt = yard.attempt(run_id)
    running_ms = START_MS + 1_000
    end = ended(cause, at_ms=running_ms + int(ran_s * 1000), **exit_)
    failure = None
    if cause is not None:
        failure = Failure(
            cause=cause,
            message="it broke",
            next_step="mend it",
            member=0,
            node="a",
            fingerprint=end.fingerprint,
        )
    attempt = replace(
        attempt,
        members=(replace(attempt.members[0], exit=end),),
        running_ms=running_ms,
        outcome=outcome or (Outcome.SUCCEEDED if cause is None else OUTCOMES.get(cause, Outcome.FAILED)),
        cause=cause,
        failure=failure,
    )
    return run, attempt


@pytest.mark.parametrize("cause", [Cause.USER_CODE, Cause.DATA, Cause.USER_LIMIT])
def test_the_users_own_failures_spend_the_budget(cause: Cause) -> None:
    again = after(cause, retries_spent=1)
    assert isinstance(again, RunQueuedAgain)
    assert again.retries_spent == 2
    end = after(cause, retries_spent=3)
    assert isinstance(end, RunEnded)
    assert (end.outcome, end.cause) == (Outcome.FAILED, cause)


def test_no_retries_asked_none_made() -> None:
    assert isinstance(after(Cause.USER_CODE, max_retries=0), RunEnded)


@pytest.mark.parametrize("cause", [Cause.PREEMPTED, Cause.OPERATOR])
def test_who_yielded_goes_on_at_once_and_for_free(cause: Cause) -> None:
    again = after(cause, retries_spent=3, failures_in_row=4)
    assert isinstance(again, RunQueuedAgain)
    assert (again.retries_spent, again.failures_in_row) == (3, 0)
    assert again.not_before_ms == START_MS + 1_000_000


@pytest.mark.parametrize("cause", sorted(FAULTS, key=lambda cause: cause.value))
def test_faults_cost_nothing_and_avoid_the_node(cause: Cause) -> None:
    again = after(cause, retries_spent=3)
    assert isinstance(again, RunQueuedAgain)
    assert again.retries_spent == 3
    assert again.avoid_nodes == ("a",)
    assert again.recent_faults_ms == (START_MS + 1_000_000,)


def test_faults_are_bounded_a_day() -> None:
    now_ms = START_MS + 1_000_000
    many = tuple(range(now_ms - FAULTS_A_DAY, now_ms))
    end = after(Cause.NETWORK, recent_faults_ms=many)
    assert isinstance(end, RunEnded)
    assert end.failure is not None
    assert "10 attempts were lost to faults within a day" in end.failure.message
    old = tuple(at - DAY_MS for at in many)
    again = after(Cause.NETWORK, recent_faults_ms=old)
    assert isinstance(again, RunQueuedAgain)
    assert len(again.recent_faults_ms) == 1


def test_a_node_is_avoided_once() -> None:
    again = after(Cause.NODE, avoid_nodes=("z", "a"))
    assert isinstance(again, RunQueuedAgain)
    assert again.avoid_nodes == ("z", "a")


def test_environment_downloads_are_tried_three_times_more() -> None:
    again = after(Cause.ENVIRONMENT, download_retries=2, retries_spent=3)
    assert isinstance(again, RunQueuedAgain)
    assert (again.download_retries, again.retries_spent) == (3, 3)
    assert isinstance(after(Cause.ENVIRONMENT, download_retries=3), RunEnded)


@pytest.mark.parametrize("cause", [Cause.USER_CODE, Cause.ENVIRONMENT])
def test_what_can_never_do_better_is_not_tried_again(cause: Cause) -> None:
    assert isinstance(after(cause, exit_={"permanent": True}), RunEnded)


def test_a_crash_loop_ends_early() -> None:
    quick = {"exit_": {"fingerprint": "f1"}, "ran_s": 30}
    first = after(Cause.USER_CODE, **quick)
    assert isinstance(first, RunQueuedAgain)
    assert first.last_crash is not None
    assert first.last_crash[0] == "f1"
    end = after(Cause.USER_CODE, **quick, last_crash=("f1", START_MS))
    assert isinstance(end, RunEnded)
    assert end.failure is not None
    assert "crash loop" in end.failure.message
    assert isinstance(after(Cause.USER_CODE, **quick, last_crash=("f2", START_MS)), RunQueuedAgain)


def test_a_slow_crash_is_no_loop() -> None:
    slow = after(Cause.USER_CODE, exit_={"fingerprint": "f1"}, ran_s=61, last_crash=("f1", START_MS))
    assert isinstance(slow, RunQueuedAgain)
    assert slow.last_crash is None


def test_back_off_grows_and_stays_at_five_minutes() -> None:
    waits = []
    for row in range(7):
        again = after(Cause.USER_CODE, failures_in_row=row)
        assert isinstance(again, RunQueuedAgain)
        assert again.failures_in_row == row + 1
        waits.append((again.not_before_ms - START_MS - 1_000_000) // 1000)
    assert waits == [0, 10, 30, 60, 300, 300, 300]
    assert tuple(waits[:5]) == BACKOFF_S


def test_an_attempt_that_ran_for_an_hour_is_no_failure_in_a_row() -> None:
    run, attempt = ended_attempt(Cause.DEVICE, {}, None, 600, {"failures_in_row": 9})
    assert attempt.running_ms is not None
    soon = after_attempt(run, attempt, attempt.running_ms + STEADY_MS - 1)
    late = after_attempt(run, attempt, attempt.running_ms + STEADY_MS)
    assert isinstance(soon, RunQueuedAgain)
    assert isinstance(late, RunQueuedAgain)
    assert soon.failures_in_row == 10
    assert late.failures_in_row == 1
    assert late.not_before_ms == attempt.running_ms + STEADY_MS


def test_success_and_cancel_end_the_run() -> None:
    good = after(None)
    assert isinstance(good, RunEnded)
    assert (good.outcome, good.cause, good.failure) == (Outcome.SUCCEEDED, None, None)
    cancelled = after(Cause.CANCELLED)
    assert isinstance(cancelled, RunEnded)
    assert cancelled.outcome is Outcome.CANCELLED


def test_a_run_is_never_called_lost_or_preempted() -> None:
    end = after(Cause.NODE, recent_faults_ms=tuple(range(START_MS, START_MS + 10)))
    assert isinstance(end, RunEnded)
    assert end.outcome is Outcome.FAILED


def test_nothing_is_tried_after_the_total_limit() -> None:
    end = after(Cause.PREEMPTED, timeouts=Timeouts(total_s=1000))
    assert isinstance(end, RunEnded)
    assert end.outcome is Outcome.TIMED_OUT
    assert end.failure is not None
    assert "total time limit of 1000 s" in end.failure.message


def test_a_run_that_never_started_says_why() -> None:
    assert queue_failure("it waited", "wait longer").cause is Cause.USER_LIMIT
