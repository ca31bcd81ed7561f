"""What follows from a verdict on a gang's steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airyard.core import commands as c
from airyard.core.decide import Decision
from airyard.core.run import Cause, Outcome, StallNote, StopReason
from airyard.core.workload import HangAction, HangRules
from core_yard import START_MS, Yard, kinds, node, workload

STALL = StallNote(case="COMPUTING", ranks=(3,), nodes=("b",), step=90, at_ms=START_MS, message="rank 3 hangs")


def running(action: HangAction = HangAction.REPORT) -> Yard:
    yard = Yard(node("a"), node("b"), node("c"), node("d"))
    yard.submit(workload(nodes=2, hang=HangRules(action=action)))
    yard.place()
    yard.start("1.0.0", "1.0.1")
    return yard


def say(yard: Yard, stall: StallNote | None, attempt: int = 0, run_id: int = 1) -> Decision:
    return yard.do(c.GangJudged(run_id=run_id, attempt=attempt, stall=stall))


def test_a_verdict_is_noted_once_and_so_is_its_end() -> None:
    yard = running()
    assert kinds(say(yard, None)) == []
    assert kinds(say(yard, STALL)) == ["AttemptStalled"]
    assert kinds(say(yard, replace(STALL, step=91, message="still"))) == []
    assert kinds(say(yard, replace(STALL, ranks=(2,)))) == ["AttemptStalled"]
    assert yard.attempt(1).stop is None
    yard.later(5)
    assert kinds(say(yard, None)) == ["AttemptMovedOn"]
    stall = yard.attempt(1).stall
    assert stall is not None
    assert (stall.ranks, stall.over_ms) == ((2,), yard.now_ms)
    assert kinds(say(yard, None)) == []
    assert kinds(say(yard, STALL)) == ["AttemptStalled"]


@pytest.mark.parametrize(
    ("suspect", "cause", "spent"), [("", Cause.USER_CODE, 1), ("b", Cause.NODE, 0)], ids=["program", "node"]
)
def test_where_the_run_asks_for_it_the_attempt_ends_and_the_next_is_elsewhere(
    suspect: str, cause: Cause, spent: int
) -> None:
    yard = running(HangAction.RESTART)
    used = {member.node for member in yard.attempt(1).members}
    stall = replace(STALL, nodes=(min(used),), suspect_node=suspect and min(used))
    assert kinds(say(yard, stall)) == ["AttemptStalled", "StopOrdered"]
    stop = yard.attempt(1).stop
    assert stop is not None
    assert (stop.reason, stop.message) == (StopReason.STALLED, "rank 3 hangs")
    assert kinds(say(yard, stall)) == []
    for key in ("1.0.0", "1.0.1"):
        yard.exit(key, Cause.PLATFORM, stop_reason="STALLED")
    run = yard.run(1)
    assert (run.attempts[0].outcome, run.attempts[0].cause) == (Outcome.FAILED, cause)
    assert run.retries_spent == spent
    assert run.avoid_nodes == stall.nodes
    yard.later(60).place()
    assert min(used) not in {member.node for member in yard.attempt(1).members}
    assert yard.attempt(1).number == 1


def test_what_does_not_concern_the_attempt_that_runs_is_passed_over() -> None:
    assert kinds(say(running(HangAction.OFF), STALL)) == []
    yard = running()
    assert kinds(say(yard, STALL, run_id=2)) == []
    assert kinds(say(yard, STALL, attempt=1)) == []
    yard.do(c.CancelRun(run_id=1, by="ada"))
    assert kinds(say(yard, STALL)) == []
