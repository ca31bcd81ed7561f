"""What time alone brings: limits of queue and total, late members, deaf runners, logs that never end."""

from __future__ import annotations

from airyard.core import commands as c
from airyard.core.run import Cause, Outcome, RunState, StopReason
from airyard.core.workload import PreemptionRules, Timeouts
from core_yard import Yard, acts, kinds, node, workload


def test_the_queue_limit_ends_a_waiting_run() -> None:
    yard = Yard(node("a"))
    yard.submit(workload(timeouts=Timeouts(queue_s=60)))
    assert kinds(yard.tick(59)) == []
    decision = yard.tick(1)
    assert kinds(decision) == ["RunEnded", "RunArchived"]


def test_the_queue_limit_counts_each_wait_not_the_run_before_it() -> None:
    yard = Yard(node("a"))
    run_id = yard.submit(workload(timeouts=Timeouts(queue_s=60)))
    yard.place()
    yard.start("1.0.0")
    yard.later(3_600)
    yard.gone("1.0.0")
    assert yard.run(run_id).state is RunState.QUEUED
    assert "RunEnded" not in kinds(yard.tick(1))
    assert "RunEnded" in kinds(yard.tick(60))


def test_the_total_limit_ends_a_waiting_run_and_stops_a_live_one() -> None:
    yard = Yard(node("a"))
    yard.submit(workload(timeouts=Timeouts(total_s=100)))
    yard.submit(workload(timeouts=Timeouts(total_s=100)))
    yard.place()
    yard.start("1.0.0")
    decision = yard.tick(100)
    assert kinds(decision) == ["StopOrdered", "RunEnded", "RunArchived"]
    stop = yard.attempt(1).stop
    assert stop is not None
    assert stop.reason is StopReason.TIME_LIMIT
    yard.exit("1.0.0", Cause.USER_LIMIT, stop_reason="TIME_LIMIT")
    assert yard.run(1).outcome is Outcome.TIMED_OUT


def test_members_that_are_never_ready_are_stopped() -> None:
    yard = Yard(node("a"), node("b"))
    yard.submit(workload(nodes=2))
    yard.place()
    yard.ready("1.0.0")
    assert kinds(yard.tick(1_799)) == []
    assert kinds(yard.tick(1)) == ["StopOrdered"]
    stop = yard.attempt(1).stop
    assert stop is not None
    assert stop.reason is StopReason.NOT_READY
    assert stop.message == "not all members were ready within 1800 s"


def test_the_environment_limit_is_the_deadline_for_ready() -> None:
    yard = Yard(node("a"))
    yard.submit(workload(timeouts=Timeouts(environment_s=30)))
    yard.place()
    assert kinds(yard.tick(30)) == ["StopOrdered"]


def test_a_runner_that_does_not_obey_is_killed_after_its_grace() -> None:
    yard = Yard(node("a"))
    yard.submit(workload(preemption=PreemptionRules(grace_s=5)))
    yard.place()
    yard.start("1.0.0")
    yard.do(c.CancelRun(run_id=1, by="ada"))
    assert acts(yard.tick(19)) == []
    assert acts(yard.tick(1)) == ["KillMember"]
    yard.do(c.MachineAway(machine="a"))
    assert acts(yard.tick(1)) == []


def test_ends_of_logs_are_given_up() -> None:
    yard = Yard(node("a"), node("b"))
    yard.submit(workload(nodes=2, max_retries=0))
    yard.place()
    yard.start("1.0.0", "1.0.1")
    yard.exit("1.0.1", Cause.USER_CODE)
    yard.later(1)
    yard.gone("1.0.0")
    assert yard.run(1).state is RunState.ENDED
    assert kinds(yard.tick(29)) == []
    assert kinds(yard.tick(1)) == ["MemberLogsGivenUp"]
    assert kinds(yard.tick(569)) == []
    assert kinds(yard.tick(1)) == ["MemberLogsGivenUp", "RunArchived"]


def test_a_tick_without_news_is_no_event() -> None:
    yard = Yard(node("a"))
    yard.submit(workload())
    yard.place()
    yard.start("1.0.0")
    assert yard.tick(1).events == ()
