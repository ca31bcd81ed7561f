"""Which nodes another one can be tested against now: idle, healthy, of its pool and its kind.

Owns: that choice, and which of them are known best to be well. Pure; must not know: what a test does, who asks for it.
"""

from __future__ import annotations

from airyard.app.idling import reserved
from airyard.core.cluster import Machine
from airyard.core.health.idle import HOUR_MS
from airyard.core.health.idle_records import NodeTests
from airyard.core.health.states import HealthState, NodeHealth
from airyard.core.scheduling.nodes import natural
from airyard.core.state import ClusterState

LATELY_MS = 48 * HOUR_MS
"""A pass that is older says little: idle nodes are tested once a day."""


def partners(state: ClusterState, name: str, now_ms: int) -> tuple[str, ...]:
    """Return their names, those first that passed lately: in pairs and deeply, in pairs, deeply; then all others.

    Reserved ones are left alone, and so are suspects. Cost: nodes and live members.
    """
    node = state.nodes.get(name)
    if node is None:
        return ()
    pool, booked = state.policy.pool_of(node), state.bookings()
    kept, found = reserved(state, now_ms), []
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
            and other.name not in kept
            and not any(device.owner for device in other.devices)
            and state.health.get(other.name, NodeHealth()).state is HealthState.HEALTHY
            and state.policy.pool_of(other) == pool
        ):
            tests = state.tests.get(other.name) or NodeTests()
            found.append((-_passes(tests, machine, now_ms), natural(other.name), other.name))
    return tuple(name for _, _, name in sorted(found))


def _passes(tests: NodeTests, machine: Machine, now_ms: int) -> int:
    """Return how much it passed lately: 2 for its pair tests, 1 for its deep one, with the boot that runs now."""
    paired = tests.paired_ms is not None and now_ms - tests.paired_ms < LATELY_MS
    deep = (
        tests.deep_ms is not None and now_ms - tests.deep_ms < LATELY_MS and tests.version == machine.boot_id
    )
    return 2 * paired + deep
