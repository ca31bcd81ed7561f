"""Phases of a run: names, order and limits, of waiting, preparing, running and failed attempts."""

from __future__ import annotations

from dataclasses import replace

from airyard.app.phases import attempt_end_ms, phases_of, run_end_ms
from airyard.app.views import run_document
from airyard.core.ids import MemberKey
from airyard.core.run import (
    Attempt,
    AttemptState,
    Cause,
    Exit,
    Member,
    MemberPhase,
    Run,
    RunState,
    Tracking,
    TrackingState,
)
from airyard.core.workload import Compute, Workload

QUEUED = Run(
    run_id=1,
    name="a",
    owner="ada",
    project="default",
    workload=Workload(experiment="e", command="true", compute=Compute.of("CPU", nodes=2)),
    spec_hash="",
    idempotency_key="k",
    task_key="main",
    state=RunState.QUEUED,
    submitted_ms=1000,
    queued_ms=1000,
)


def attempt(number: int = 0, *, prepared: tuple[int, int] = (0, 0), **changes: object) -> Attempt:
    members = tuple(
        Member(
            index=index,
            node=f"n{index}",
            machine="m",
            devices=(0,),
            phase=MemberPhase.PREPARING,
            prepared=(("code_ms", prepared[0] * (index + 1)), ("environment_ms", prepared[1])),
        )
        for index in range(2)
    )
    whole = Attempt(
        run_id=1,
        number=number,
        epoch=1,
        cookie="c",
        state=AttemptState.PREPARING,
        members=members,
        port=20000,
        orders=(),
        tracking=Tracking(state=TrackingState.OFF),
        placed_ms=1500,
        preparing_ms=1600,
    )
    return replace(whole, **changes)  # type: ignore[arg-type]  # the fields a test names


def active(*attempts: Attempt) -> Run:
    return replace(QUEUED, state=RunState.ACTIVE, attempts=attempts)


def told(
    run: Run, progress: dict[MemberKey, tuple[str, str]] | None = None
) -> list[tuple[str, int, int | None]]:
    return [(phase.name, phase.started_ms, phase.duration_ms) for phase in phases_of(run, progress or {})]


def test_a_waiting_run_is_only_queued() -> None:
    assert told(QUEUED) == [("queued", 1000, None)]


def test_a_run_that_ended_in_the_queue_has_waited_so_long() -> None:
    assert told(replace(QUEUED, state=RunState.ENDED, ended_ms=1700)) == [("queued", 1000, 700)]


def test_the_earliest_work_of_any_member_is_what_is_going_on() -> None:
    one, other = MemberKey(1, 0, 0), MemberKey(1, 0, 1)
    run = active(attempt())
    assert told(run)[1:] == []
    assert told(run, {one: ("environment", "")})[1:] == [("environment", 1600, None)]
    assert told(run, {one: ("environment", ""), other: ("code", "")})[1:] == [("code", 1600, None)]


def test_a_running_attempt_has_all_phases_and_the_slowest_member_counts() -> None:
    run = active(attempt(prepared=(10, 200), ready_ms=2000, running_ms=2050, state=AttemptState.RUNNING))
    assert told(run) == [
        ("queued", 1000, 500),
        ("code", 1600, 20),
        ("environment", 1620, 200),
        ("barrier", 1820, 180),
        ("tracking", 2000, 50),
        ("running", 2050, None),
    ]


def test_an_attempt_that_waits_for_tracking_says_so() -> None:
    assert told(active(attempt(ready_ms=2000)))[-1] == ("tracking", 2000, None)


def test_stopping_is_a_phase_of_its_own() -> None:
    run = active(attempt(ready_ms=2000, running_ms=2000, stopping_ms=3000, ended_ms=3200))
    assert told(run)[-2:] == [("running", 2000, 1000), ("stopping", 3000, 200)]


def test_an_attempt_that_failed_while_preparing_shows_where() -> None:
    run = active(attempt(ended_ms=1900, cause=Cause.ENVIRONMENT, state=AttemptState.ENDED))
    assert told(run)[-1] == ("environment", 1600, 300)


def test_a_retry_counts_its_own_wait() -> None:
    first = attempt(ended_ms=5000, state=AttemptState.ENDED)
    run = active(first, attempt(1, placed_ms=5400, preparing_ms=5500))
    assert told(run)[0] == ("queued", 5000, 400)


def exited(whole: Attempt, *at_ms: int) -> Attempt:
    """Return the attempt with the members' own times of their ends."""
    members = tuple(
        replace(
            member,
            phase=MemberPhase.EXITED,
            exit=Exit(code=0, signal=None, started=True, cause=None, message="", at_ms=time_ms),
        )
        for member, time_ms in zip(whole.members, at_ms, strict=True)
    )
    return replace(whole, members=members)


def test_an_end_that_the_server_heard_of_late_is_when_the_last_member_ended() -> None:
    late = attempt(ready_ms=2000, running_ms=2000, ended_ms=60_000, state=AttemptState.ENDED)
    whole = exited(late, 2500, 2700)
    run = replace(active(whole), state=RunState.ENDED, ended_ms=60_000)
    assert (attempt_end_ms(whole), run_end_ms(run)) == (2700, 2700)
    assert told(run)[-1] == ("running", 2000, 700)
    document = run_document(replace(run, started_ms=1500))
    assert document["duration_ms"] == 1200
    assert document["ended_at"] == document["attempts"][0]["ended_at"] == "1970-01-01T00:00:02.700Z"


def test_a_stop_ordered_after_the_unheard_end_has_no_length() -> None:
    late = attempt(
        ready_ms=2000, running_ms=2000, stopping_ms=59_000, ended_ms=60_000, state=AttemptState.ENDED
    )
    run = active(exited(late, 2500, 2700))
    assert told(run)[-2:] == [("running", 2000, 700), ("stopping", 2700, 0)]


def test_an_end_is_neither_before_the_begin_nor_after_it_was_journalled() -> None:
    whole = attempt(ready_ms=2000, running_ms=2000, ended_ms=3000, state=AttemptState.ENDED)
    assert attempt_end_ms(exited(whole, 1, 1900)) == 2000
    assert attempt_end_ms(exited(whole, 2100, 9000)) == 3000


def test_a_run_that_ended_in_the_queue_after_an_attempt_ended_then() -> None:
    first = exited(attempt(ended_ms=5000, state=AttemptState.ENDED), 4000, 4100)
    run = replace(QUEUED, state=RunState.ENDED, attempts=(first,), ended_ms=9000)
    assert run_end_ms(run) == 9000
