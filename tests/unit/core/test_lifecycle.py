"""The lifecycle tables: every move they name is taken by some event, every other one is refused."""

from __future__ import annotations

from enum import Enum

import pytest

from airyard.core import events as e
from airyard.core.evolve import evolve
from airyard.core.health.states import HealthState
from airyard.core.lifecycle import TABLES, IllegalTransition, check_move
from airyard.core.run import (
    AttemptState,
    Cause,
    Exit,
    MemberPhase,
    Outcome,
    Run,
    RunState,
    StopReason,
    StopRequest,
)
from core_yard import Yard, node, workload

EXIT = Exit(code=0, signal=None, started=True, cause=None, message="", at_ms=1)
STOP = StopRequest(reason=StopReason.CANCELLED, by="ada", at_ms=1, grace_s=1)
PAIRS = [
    (name, before, after, after in allowed)
    for name, table in TABLES.items()
    for before, allowed in table.items()
    for after in table
]


@pytest.mark.parametrize(("name", "before", "after", "legal"), PAIRS)
def test_moves_are_legal_exactly_as_the_table_says(name: str, before: Enum, after: Enum, legal: bool) -> None:
    if legal:
        assert check_move(TABLES[name], before, after, "it") is after
    else:
        with pytest.raises(IllegalTransition) as caught:
            check_move(TABLES[name], before, after, "run 7")
        assert caught.value.message == f"run 7 cannot go from {before.value} to {after.value}"
        assert caught.value.details == {"object": "run 7", "from": before.value, "to": after.value}


def test_tables_name_every_state() -> None:
    kinds: list[type[Enum]] = [RunState, AttemptState, MemberPhase, HealthState]
    assert [set(table) for table in TABLES.values()] == [set(kind) for kind in kinds]


def test_every_state_can_be_reached_and_left_to_its_end() -> None:
    for first, last in (
        (RunState.QUEUED, RunState.ENDED),
        (AttemptState.PLACED, AttemptState.ENDED),
        (MemberPhase.STARTING, MemberPhase.EXITED),
        (MemberPhase.STARTING, MemberPhase.LOST),
    ):
        table = next(table for table in TABLES.values() if first in table)
        reached = {first}
        while more := {after for before in reached for after in table[before]} - reached:
            reached |= more
        assert reached == set(table)
        ends = {state for state, after in table.items() if last in after or state is last}
        assert ends | {s for s, after in table.items() if not after} == set(table)


def placed() -> Run:
    yard = Yard(node("a"), node("b"))
    run_id = yard.submit(workload(nodes=2))
    yard.place()
    return yard.run(run_id)


def apply(run: Run, *events: e.RunEvent) -> Run:
    for event in events:
        run = evolve(run, event, 5)
    return run


def preparing(member: int) -> e.MemberPreparing:
    return e.MemberPreparing(run_id=1, attempt=0, member=member)


def ready(member: int) -> e.MemberReady:
    return e.MemberReady(run_id=1, attempt=0, member=member, report=1, address="x", prepared=())


def started(member: int) -> e.MemberStarted:
    return e.MemberStarted(run_id=1, attempt=0, member=member, report=2)


def exited(member: int) -> e.MemberExited:
    return e.MemberExited(run_id=1, attempt=0, member=member, report=3, exit=EXIT)


def lost(member: int) -> e.MemberLost:
    return e.MemberLost(run_id=1, attempt=0, member=member, exit=EXIT)


GO = e.AttemptReleased(run_id=1, attempt=0, address="x", port=1)
STOPPED = e.StopOrdered(run_id=1, attempt=0, stop=STOP)
ENDED = e.AttemptEnded(run_id=1, attempt=0, outcome=Outcome.FAILED, cause=Cause.PLATFORM, failure=None)
OVER = e.RunEnded(run_id=1, outcome=Outcome.FAILED, cause=Cause.PLATFORM, failure=None)


@pytest.mark.parametrize(
    "events",
    [
        (GO,),  # before anybody is ready
        (started(0),),
        (preparing(0), preparing(0)),
        (ready(0), preparing(0)),
        (exited(0), ready(0)),
        (exited(0), lost(0)),
        (lost(0), exited(0)),
        (ENDED,),  # members hold devices
        (exited(0), ENDED),
        (OVER,),  # an attempt is live
        (STOPPED, ready(0), ready(1), GO),  # never GO after a stop
        (exited(0), exited(1), ENDED, ENDED),
        (exited(0), exited(1), ENDED, STOPPED),
        (preparing(7),),
        (e.MemberPreparing(run_id=1, attempt=4, member=0),),
    ],
)
def test_contradicting_facts_are_refused(events: tuple[e.RunEvent, ...]) -> None:
    run = apply(placed(), *events[:-1])
    with pytest.raises(IllegalTransition):
        evolve(run, events[-1], 5)


def test_an_attempt_goes_its_way() -> None:
    run = placed()
    assert run.state is RunState.ACTIVE
    states = []
    for event in (
        preparing(0),
        ready(0),
        ready(1),
        GO,
        started(0),
        started(1),
        STOPPED,
        exited(0),
        exited(1),
        ENDED,
    ):
        run = evolve(run, event, 5)
        assert run.attempt is not None
        states.append(run.attempt.state.value)
    assert states == ["PREPARING"] * 3 + ["RUNNING"] * 3 + ["STOPPING"] * 3 + ["ENDED"]
    assert [order.kind for order in run.attempts[0].orders] == ["GO", "STOP"]
    assert [order.number for order in run.attempts[0].orders] == [2, 3]
    assert apply(run, OVER).state is RunState.ENDED


def test_an_event_of_the_yard_is_none_of_a_run() -> None:
    with pytest.raises(IllegalTransition):
        evolve(placed(), e.KeysExpired(before_ms=1), 5)  # type: ignore[arg-type]  # the wrong type is the point


def test_attempts_are_numbered_without_gaps() -> None:
    run = placed()
    assert run.attempt is not None
    again = e.AttemptPlaced(run_id=1, attempt=run.attempt, simulated=False)
    with pytest.raises(IllegalTransition, match="number 0 cannot be next"):
        evolve(run, again, 5)
