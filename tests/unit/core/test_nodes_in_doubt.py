"""Gangs keep away from suspects and from nodes on probation while others serve; runs of one node do not care."""

from __future__ import annotations

from airyard.core.health.states import HealthState, NodeHealth
from airyard.core.scheduling.invariants import violations
from airyard.core.scheduling.plan import NodeView, Snapshot
from airyard.core.scheduling.planner import plan_snapshot
from airyard.core.scheduling.snapshot import node_views, nodes_in_doubt
from airyard.core.state import ClusterState
from core_yard import node as a_node
from explain_yard import NOW_MS, book_of, node, waits, yard


def doubted(name: str, **changes: object) -> NodeView:
    return node(name, in_doubt=True, **changes)


def placed(snapshot: Snapshot) -> dict[int, list[str]]:
    """Plan; return run → nodes. The plan is sound."""
    made = plan_snapshot(snapshot, NOW_MS)
    assert violations(book_of(snapshot), made, NOW_MS) == []
    return {start.run_id: sorted(seat.node for seat in start.seats) for start in made.starts}


def test_a_gang_goes_round_them_while_others_serve() -> None:
    nodes = [doubted("n0"), node("n1"), doubted("n2"), node("n3")]
    assert placed(yard(nodes, [waits(1, 8, 2)])) == {1: ["n1", "n3"]}
    (found,) = placed(yard(nodes, [waits(1, 8, 3)])).values()
    assert len(found) == 3


def test_a_yard_that_has_no_other_nodes_still_runs_its_gangs() -> None:
    assert placed(yard([doubted("n0"), doubted("n1")], [waits(1, 8, 2)])) == {1: ["n0", "n1"]}


def test_a_node_that_the_run_has_reason_to_avoid_is_the_last_that_it_gets() -> None:
    nodes = [doubted("n0"), node("n1"), node("n2")]
    assert placed(yard(nodes, [waits(1, 8, 2, avoid_nodes=("n1",))])) == {1: ["n0", "n2"]}


def test_a_fabric_of_suspects_is_not_chosen_for_being_the_fullest() -> None:
    nodes = [
        doubted("n0", fabric="f0"),
        node("n1", fabric="f0"),
        *(node(f"n{index}", fabric="f1") for index in (2, 3, 4)),
    ]
    assert placed(yard(nodes, [waits(1, 8, 2)])) == {1: ["n2", "n3"]}


def test_the_planner_is_told_of_nodes_in_doubt() -> None:
    state = ClusterState()
    state.nodes = {name: a_node(name) for name in ("a", "b", "c", "d")}
    for name, health in (
        ("a", HealthState.SUSPECT),
        ("b", HealthState.PROBATION),
        ("c", HealthState.HEALTHY),
    ):
        state.health[name] = NodeHealth(state=health)
    assert nodes_in_doubt(state) == {"a", "b"}
    assert {view.name for view in node_views(state) if view.in_doubt} == {"a", "b"}
