"""A plan is checked again at its commit: what no longer holds is left out, the rest is booked."""

from __future__ import annotations

from dataclasses import replace

from airyard.core import commands as c
from airyard.core.actions import StartMember
from airyard.core.run import StopReason, TrackingState
from airyard.core.workload import Priority
from core_yard import Yard, acts, kinds, node, workload


def test_a_gang_is_placed_whole_with_ports_cookies_and_starts() -> None:
    yard = Yard(node("a"), node("b"))
    yard.submit(workload(nodes=2, tracked=True))
    decision = yard.place()
    assert kinds(decision) == ["AttemptPlaced"]
    assert acts(decision) == ["OpenTracking", "StartMember", "StartMember"]
    attempt = yard.attempt(1)
    assert [member.node for member in attempt.members] == ["a", "b"]
    assert attempt.tracking.state is TrackingState.PENDING
    assert yard.run(1).simulated
    starts = [action for action in decision.actions if isinstance(action, StartMember)]
    assert {(s.machine, s.epoch, s.cookie) for s in starts} == {
        ("a", 1, f"0.{attempt.cookie}"),
        ("b", 1, f"1.{attempt.cookie}"),
    }


def test_a_stale_plan_places_nothing_twice() -> None:
    yard = Yard(node("a"))
    yard.submit(workload())
    plan = yard.plan()
    yard.do(c.CommitPlan(plan=plan))
    assert kinds(yard.do(c.CommitPlan(plan=plan))) == []
    yard.submit(workload())
    assert kinds(yard.do(c.CommitPlan(plan=plan))) == []


def test_what_changed_meanwhile_is_left_out() -> None:
    for change in (
        c.CancelRun(run_id=1, by="ada"),
        c.CordonNodes(nodes=("a",), by="op"),
        c.MachineAway(machine="a"),
    ):
        yard = Yard(node("a"))
        yard.submit(workload())
        plan = yard.plan()
        yard.do(change)
        assert kinds(yard.do(c.CommitPlan(plan=plan))) == []


def test_a_node_that_shrank_is_left_out() -> None:
    yard = Yard(node("a"))
    yard.submit(workload())
    plan = yard.plan()
    yard.hello("a", [node("a", count=4)])
    assert kinds(yard.do(c.CommitPlan(plan=plan))) == []


def test_the_good_part_of_a_plan_is_kept() -> None:
    yard = Yard(node("a"), node("b"))
    yard.submit(workload())
    yard.submit(workload())
    plan = yard.plan()
    yard.do(c.CancelRun(run_id=1, by="ada"))
    assert kinds(yard.do(c.CommitPlan(plan=plan))) == ["AttemptPlaced"]
    assert yard.attempt(2).members[0].node == "b"


def test_live_attempts_of_a_machine_have_different_ports() -> None:
    yard = Yard(*(node(f"a{i}", "A10", 1, machine="m") for i in range(8)))
    for _ in range(8):
        yard.submit(workload("GPU_1xA10"))
    yard.place()
    ports = [yard.attempt(run_id).port for run_id in range(1, 9)]
    assert len(set(ports)) == 8
    assert all(20_000 <= port < 30_000 for port in ports)


def evicting() -> Yard:
    yard = Yard(node("a"))
    yard.submit(workload(priority=Priority.BEST_EFFORT))
    yard.place()
    yard.start("1.0.0")
    yard.now_ms += 60_000
    yard.submit(workload(priority=Priority.CRITICAL))
    return yard


def test_an_eviction_asks_the_victim_to_leave_with_its_grace() -> None:
    yard = evicting()
    assert kinds(yard.place()) == ["StopOrdered"]
    stop = yard.attempt(1).stop
    assert stop is not None
    assert (stop.reason, stop.by, stop.grace_s) == (StopReason.PREEMPTED, "scheduler", 30)
    assert stop.message == "preempted for run 2 (CRITICAL)"


def test_nobody_is_evicted_for_a_run_that_has_gone() -> None:
    yard = evicting()
    plan = yard.plan()
    yard.do(c.CancelRun(run_id=2, by="ada"))
    assert kinds(yard.do(c.CommitPlan(plan=plan))) == []


def test_nobody_is_evicted_twice() -> None:
    yard = evicting()
    plan = yard.plan()
    yard.do(c.CommitPlan(plan=plan))
    assert kinds(yard.do(c.CommitPlan(plan=plan))) == []


def test_a_device_of_a_stranger_is_not_booked() -> None:
    taken = node("a", "A10", 2)
    taken = replace(taken, devices=(replace(taken.devices[0], owner="pid 7"), taken.devices[1]))
    yard = Yard(taken)
    yard.submit(workload("GPU_1xA10"))
    yard.submit(workload("GPU_1xA10"))
    assert kinds(yard.place()) == ["AttemptPlaced"]
    assert yard.attempt(1).members[0].devices == (1,)
