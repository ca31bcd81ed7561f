"""What operators do with nodes: cordon, uncordon, drain with and without a deadline, the word that one is dead."""

from __future__ import annotations

import pytest

from airyard.core import commands as c
from airyard.core.cluster import Cordon, Drain
from airyard.core.decide import Operated
from airyard.core.decide.decision import Decision
from airyard.core.errors import Conflict, NotFound, UserError
from airyard.core.run import AttemptState, Cause, Outcome, RunState, StopReason
from airyard.core.scheduling.plan import Reason
from airyard.core.state import ClusterState
from core_yard import Yard, acts, kinds, node, workload


def told(decision: Decision) -> Operated:
    """The answer that an operator gets."""
    assert isinstance(decision.reply, Operated)
    return decision.reply


def cordon(*nodes: str, reason: str = "fan") -> c.CordonNodes:
    """Close nodes."""
    return c.CordonNodes(nodes=nodes, by="op", reason=reason)


def drain(*nodes: str, deadline_ms: int | None = None) -> c.DrainNodes:
    """Empty nodes."""
    return c.DrainNodes(nodes=nodes, by="op", reason="new fans", deadline_ms=deadline_ms)


def busy(yard: Yard, nodes: int = 1, **wanted: object) -> int:
    """Submit, place and start a run of whole nodes; return its id."""
    run_id = yard.submit(workload("GPU_8xH100", nodes, **wanted))
    yard.place()
    for index in range(nodes):
        yard.start(f"{run_id}.0.{index}")
    return run_id


def test_a_cordon_says_who_when_and_why_and_keeps_its_first_reason() -> None:
    yard = Yard(node("a"), node("b"))
    assert [(n.node, n.changed) for n in told(yard.do(cordon("a"))).notes] == [("a", True)]
    assert yard.state.cordons == {"a": Cordon(by="op", at_ms=yard.now_ms, reason="fan")}
    again = yard.later(60).do(cordon("a", "b", "b", reason="other"))
    assert kinds(again) == ["NodeCordoned"]
    assert [(n.node, n.changed) for n in told(again).notes] == [("a", False), ("b", True)]
    assert "cordoned already, by op since" in told(again).notes[0].message
    assert "(fan)" in told(again).notes[0].message


def test_one_unknown_name_refuses_all_and_names_the_nearest() -> None:
    yard = Yard(node("host-1"), node("host-2"))
    with pytest.raises(NotFound, match="no node 'hots-1'; did you mean 'host-1'"):
        yard.do(cordon("host-2", "hots-1"))
    assert yard.state.cordons == {}
    with pytest.raises(UserError, match="names no node"):
        yard.do(c.UncordonNodes(nodes=(), by="op"))


def test_a_machines_name_stands_for_all_its_nodes_unless_a_node_has_it() -> None:
    yard = Yard(node("m-0", machine="m"), node("m-cpu", None, machine="m"), node("k", machine="k"))
    yard.hello("k", [node("k", machine="k"), node("k-cpu", None, machine="k")])
    assert [n.node for n in told(yard.do(drain("m", "m-0"))).notes] == ["m-0", "m-cpu"]
    assert [n.node for n in told(yard.do(cordon("k"))).notes] == ["k"]
    yard.do(c.UncordonNodes(nodes=("m",), by="op"))
    assert set(yard.state.cordons) == {"k"}


def test_a_cordon_outlives_the_absence_of_its_node_and_a_snapshot() -> None:
    yard = Yard(node("a"), node("b"))
    yard.do(cordon("a"))
    yard.hello("a", [], boot="b2")
    assert "a" not in yard.state.nodes
    assert ClusterState.from_json(yard.state.to_json()) == yard.state
    yard.hello("a", [node("a")], boot="b3")
    assert yard.state.nodes["a"].cordoned
    yard.hello("a", [], boot="b4")
    assert kinds(yard.do(c.UncordonNodes(nodes=("a",), by="op"))) == ["NodeUncordoned"]
    yard.hello("a", [node("a")], boot="b5")
    assert not yard.state.nodes["a"].cordoned


def test_a_snapshot_from_before_reasons_were_kept_is_still_a_cordon() -> None:
    yard = Yard(node("a"))
    yard.do(cordon("a"))
    old = yard.state.to_json()
    del old["cordons"]
    assert ClusterState.from_json(old).cordons == {"a": Cordon(by="", at_ms=0)}


def test_who_waits_for_a_closed_node_is_told_who_closed_it_and_why() -> None:
    yard = Yard(node("a"), node("b"))
    yard.do(cordon("a"))
    yard.do(drain("b"))
    refusal = yard.refusal(yard.submit(workload("GPU_8xH100")))
    assert refusal is not None
    assert refusal.reason is Reason.NODES_UNHEALTHY
    assert "out: a (cordoned by op: fan), b (drained by op: new fans)" in refusal.message
    assert [one["by"] for one in refusal.evidence["cordons"]] == ["op", "op"]


def test_a_drain_asks_everybody_there_to_leave_now_and_they_go_on_elsewhere() -> None:
    yard = Yard(node("a"), node("b"))
    run_id = busy(yard)
    spare = yard.attempt(run_id).members[0].node
    ordered = yard.do(drain(spare))
    assert kinds(ordered) == ["NodeCordoned", "NodeDrainOrdered", "StopOrdered"]
    (leaving,) = told(ordered).leaving
    assert (leaving.run_id, leaving.nodes, leaving.asked_ms) == (run_id, (spare,), yard.now_ms)
    assert leaving.gone_ms == yard.now_ms + 120_000
    stop = yard.attempt(run_id).stop
    assert stop is not None
    assert (stop.reason, stop.by, stop.grace_s) == (StopReason.DRAIN, "op", 120)
    assert stop.message == f"node {spare} is drained by op: new fans"
    yard.exit(f"{run_id}.0.0", signal=15, stop_reason="DRAIN", cause=Cause.OPERATOR)
    run = yard.run(run_id)
    assert (run.attempts[0].outcome, run.attempts[0].cause) == (Outcome.PREEMPTED, Cause.OPERATOR)
    assert (run.state, run.retries_spent, run.queued_ms) == (RunState.QUEUED, 0, run.submitted_ms)
    yard.place()
    assert yard.attempt(run_id).members[0].node != spare


def test_of_a_gang_one_drained_node_moves_all_and_nothing_is_lost_without_room() -> None:
    yard = Yard(node("a"), node("b"))
    run_id = busy(yard, 2)
    yard.do(drain("b"))
    assert yard.attempt(run_id).state is AttemptState.STOPPING
    for index in range(2):
        yard.exit(f"{run_id}.0.{index}", signal=15, stop_reason="DRAIN", cause=Cause.OPERATOR)
    yard.place()
    assert yard.run(run_id).state is RunState.QUEUED
    refusal = yard.refusal(run_id)
    assert refusal is not None
    assert refusal.reason is Reason.NODES_UNHEALTHY
    yard.do(c.UncordonNodes(nodes=("b",), by="op"))
    yard.place()
    assert yard.run(run_id).state is RunState.ACTIVE


def test_until_a_grace_before_the_deadline_runs_are_left_alone() -> None:
    yard = Yard(node("a"), node("b"))
    first, second = busy(yard), busy(yard)
    deadline_ms = yard.now_ms + 600_000
    ordered = yard.do(drain("a", "b", deadline_ms=deadline_ms))
    assert "StopOrdered" not in kinds(ordered)
    assert {one.asked_ms for one in told(ordered).leaving} == {deadline_ms - 120_000}
    assert {one.gone_ms for one in told(ordered).leaving} == {deadline_ms}
    assert kinds(yard.tick(479)) == []
    yard.exit(f"{first}.0.0")
    assert yard.run(first).outcome is Outcome.SUCCEEDED
    assert kinds(yard.tick(1)) == ["StopOrdered"]
    stop = yard.attempt(second).stop
    assert stop is not None
    assert (stop.reason, stop.grace_s) == (StopReason.DRAIN, 120)
    assert kinds(yard.tick(119)) == []


def test_nobody_has_more_grace_than_the_deadline_leaves() -> None:
    yard = Yard(node("a"))
    run_id = busy(yard)
    yard.do(drain("a", deadline_ms=yard.now_ms + 30_500))
    stop = yard.attempt(run_id).stop
    assert stop is not None
    assert stop.grace_s == 30
    assert acts(yard.tick(44)) == []
    assert acts(yard.tick(1)) == ["KillMember"]


def test_a_later_deadline_shortens_the_grace_of_who_is_leaving_already() -> None:
    yard = Yard(node("a"))
    run_id = busy(yard)
    yard.do(drain("a"))
    again = yard.later(10).do(drain("a", deadline_ms=yard.now_ms + 20_000))
    assert kinds(again) == ["NodeDrainOrdered", "StopOrdered"]
    stop = yard.attempt(run_id).stop
    assert stop is not None
    assert (stop.reason, stop.grace_s, stop.at_ms) == (StopReason.DRAIN, 20, yard.now_ms)
    assert kinds(yard.tick(5)) == []


def test_the_deadline_also_ends_a_stop_for_another_reason_and_the_reason_stays() -> None:
    yard = Yard(node("a"))
    run_id = busy(yard)
    yard.do(c.CancelRun(run_id=run_id, by="ada"))
    yard.do(drain("a", deadline_ms=yard.now_ms + 5_000))
    stop = yard.attempt(run_id).stop
    assert stop is not None
    assert (stop.reason, stop.by, stop.grace_s) == (StopReason.CANCELLED, "ada", 5)


def test_the_same_drain_again_changes_nothing_and_says_so() -> None:
    yard = Yard(node("a"))
    busy(yard)
    yard.do(drain("a"))
    again = yard.do(drain("a"))
    assert kinds(again) == []
    assert told(again).notes[0].changed is False
    assert "is drained already, by op" in told(again).notes[0].message
    assert len(told(again).leaving) == 1
    assert yard.state.cordons["a"].drain == Drain(by="op", at_ms=yard.now_ms, reason="new fans")


@pytest.mark.parametrize("after_ms", [-1, 400 * 86_400_000])
def test_a_deadline_is_a_time_to_come_within_a_year(after_ms: int) -> None:
    yard = Yard(node("a"))
    with pytest.raises(UserError, match="cannot be drained by"):
        yard.do(drain("a", deadline_ms=yard.now_ms + after_ms))


def test_an_uncordon_calls_a_drain_off_but_not_the_stops_it_ordered() -> None:
    yard = Yard(node("a"), node("b"))
    first, second = busy(yard), busy(yard)
    yard.do(drain("a"))
    yard.do(drain("b", deadline_ms=yard.now_ms + 3_600_000))
    yard.do(c.UncordonNodes(nodes=("a", "b"), by="op"))
    yard.tick(3_600)
    stopped = {run_id for run_id in (first, second) if yard.attempt(run_id).stop is not None}
    assert {yard.attempt(run_id).members[0].node for run_id in stopped} == {"a"}


def test_a_machine_that_is_away_is_dead_on_the_operators_word() -> None:
    yard = Yard(node("a"), node("b"))
    run_id = busy(yard, 2)
    with pytest.raises(Conflict, match="machine a is connected"):
        yard.do(c.ConfirmDead(name="a", by="op"))
    yard.do(c.MachineAway(machine="a"))
    with pytest.raises(Conflict, match="has been back since you looked"):
        yard.do(c.ConfirmDead(name="a", by="op", boot_id="older"))
    word = yard.do(c.ConfirmDead(name="a", by="op", reason="burnt", boot_id="b1"))
    assert kinds(word) == ["MachineConfirmedDead", "MemberLost", "StopOrdered"]
    yard.exit(f"{run_id}.0.1", signal=15, stop_reason="MEMBER_FAILED", cause=Cause.PLATFORM)
    run = yard.run(run_id)
    assert (run.attempts[0].outcome, run.attempts[0].cause) == (Outcome.LOST, Cause.NODE)
    assert run.attempts[0].failure is not None
    assert "op confirmed that it is dead: burnt" in run.attempts[0].failure.message
    assert (run.state, run.retries_spent, run.avoid_nodes) == (RunState.QUEUED, 0, ("a",))
    again = yard.do(c.ConfirmDead(name="a", by="op"))
    assert kinds(again) == []
    assert told(again).notes[0].message == "is away, and holds no device of a run"


def test_what_comes_back_of_a_machine_taken_for_dead_is_killed() -> None:
    yard = Yard(node("a"), node("b"))
    run_id = busy(yard)
    held = yard.attempt(run_id).members[0].machine
    yard.do(c.MachineAway(machine=held))
    yard.do(c.ConfirmDead(name=held, by="op"))
    alive = c.SeenMember(key=yard.attempt(run_id).member_key(0), state=c.SeenState.ALIVE)
    assert "KillMember" in acts(yard.hello(held, None, alive))


def test_an_unknown_machine_is_not_dead() -> None:
    yard = Yard(node("host-1"))
    with pytest.raises(NotFound, match="no node or machine 'host-2'; did you mean 'host-1'"):
        yard.do(c.ConfirmDead(name="host-2", by="op"))
