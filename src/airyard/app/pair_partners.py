"""Which nodes another one can be tested against now: idle, healthy, of its pool and its kind.

Owns: that choice. Pure; must not know: what a test does, who asks for it.
"""

from __future__ import annotations

from airyard.core.health.states import HealthState, NodeHealth
from airyard.core.scheduling.nodes import natural
from airyard.core.state import ClusterState


def partners(state: ClusterState, name: str, now_ms: int) -> tuple[str, ...]:
    """Return their names in order. Reserved ones are left alone, and so are suspects. Cost: nodes and live members."""
    node = state.nodes.get(name)
    if node is None:
        return ()
    pool, booked = state.policy.pool_of(node), state.bookings()
    reserved = {
        each
        for reservation in state.reservations.values()
        if reservation.from_ms <= now_ms < reservation.to_ms
        for each in reservation.nodes
    }
    found = []
    for other in state.nodes.values():
        machine = state.machines.get(other.machine)
        if (
            other.name != name
            and other.accelerator == node.accelerator
            and other.simulated is node.simulated
            and machine is not None
            and machine.alive
            and not other.cordoned
            and other.name not in booked
            and other.name not in reserved
            and not any(device.owner for device in other.devices)
            and state.health.get(other.name, NodeHealth()).state is HealthState.HEALTHY
            and state.policy.pool_of(other) == pool
        ):
            found.append(other.name)
    return tuple(sorted(found, key=natural))
