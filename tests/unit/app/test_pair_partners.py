"""Which nodes another one is tested against: idle, open, healthy ones of its pool and kind."""

from __future__ import annotations

from dataclasses import replace

from airyard.app.pair_partners import partners
from airyard.core.cluster import Machine
from airyard.core.health.states import HealthState, NodeHealth
from airyard.core.policy import Reservation
from airyard.core.state import ClusterState
from core_yard import node


def test_only_idle_healthy_nodes_of_the_same_pool_and_kind() -> None:
    state = ClusterState()
    for number in range(1, 11):
        made = node(f"n{number}", machine=f"m{number}")
        state.nodes[made.name] = made
        state.machines[made.machine] = Machine(name=made.machine, boot_id="b", address="10.0.0.1")
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
