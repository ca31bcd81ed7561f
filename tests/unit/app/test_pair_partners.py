"""Which nodes another one is tested against: idle, open, healthy ones of its pool and kind."""

from __future__ import annotations

from dataclasses import replace

from airyard.app.idling import SOON_MS
from airyard.app.pair_partners import LATELY_MS, partners
from airyard.core.cluster import Machine
from airyard.core.health.idle_records import NodeTests
from airyard.core.health.states import HealthState, NodeHealth
from airyard.core.policy import Reservation
from airyard.core.state import ClusterState
from core_yard import node


def yard(count: int) -> ClusterState:
    """So many nodes that are alike, each on a machine of its own."""
    state = ClusterState()
    for number in range(1, count + 1):
        made = node(f"n{number}", machine=f"m{number}")
        state.nodes[made.name] = made
        state.machines[made.machine] = Machine(name=made.machine, boot_id="b", address="10.0.0.1")
    return state


def test_only_idle_healthy_nodes_of_the_same_pool_and_kind() -> None:
    state = yard(10)
    assert partners(state, "n1", 5) == tuple(f"n{number}" for number in range(2, 11))
    state.nodes["n2"] = replace(state.nodes["n2"], cordoned=True)
    state.nodes["n3"] = node("n3", "A100", machine="m3")
    state.nodes["n4"] = replace(state.nodes["n4"], simulated=not state.nodes["n4"].simulated)
    state.machines["m5"] = replace(state.machines["m5"], alive=False)
    state.health["n6"] = NodeHealth(state=HealthState.SUSPECT)
    taken = replace(state.nodes["n7"].devices[0], owner="somebody")
    state.nodes["n7"] = replace(state.nodes["n7"], devices=(taken,))
    state.reservations[1] = Reservation(reservation_id=1, nodes=("n8",), from_ms=0, to_ms=10, by="ada")
    state.reservations[2] = Reservation(reservation_id=2, nodes=("n9",), from_ms=0, to_ms=5, by="ada")
    assert partners(state, "n1", 5) == ("n9", "n10")
    assert partners(state, "no-node", 5) == ()


def test_those_that_passed_lately_come_first() -> None:
    state, now_ms = yard(7), 10 * LATELY_MS
    lately = now_ms - LATELY_MS + 1
    state.tests["n6"] = NodeTests(deep_ms=lately, paired_ms=lately, version="b")
    state.tests["n5"] = NodeTests(paired_ms=lately)
    state.tests["n7"] = NodeTests(deep_ms=lately, version="b")
    # A pass of another boot, or of long ago, is none.
    state.tests["n3"] = NodeTests(deep_ms=lately, version="the boot before")
    state.tests["n4"] = NodeTests(deep_ms=now_ms - LATELY_MS, paired_ms=now_ms - LATELY_MS, version="b")
    assert partners(state, "n1", now_ms) == ("n6", "n5", "n7", "n2", "n3", "n4")


def test_one_that_is_reserved_soon_is_left_alone() -> None:
    state = yard(3)
    wish = Reservation(reservation_id=1, nodes=("n2",), from_ms=SOON_MS + 5, to_ms=SOON_MS + 9, by="ada")
    state.reservations[1] = wish
    assert partners(state, "n1", 4) == ("n2", "n3")
    assert partners(state, "n1", 5) == ("n3",)
