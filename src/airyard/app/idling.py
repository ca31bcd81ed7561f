"""What the tests of idle nodes see of the state: who is idle since when, wanted, at risk, and when it passed last.

Owns: the projection, who counts as reserved. Must not know: when a test is due (``core/health/idle``), how it is run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from airyard.core.cluster import Node
from airyard.core.health import gang_sums
from airyard.core.health.idle import SLICE_MS, IdleNode
from airyard.core.health.idle_records import NodeTests
from airyard.core.health.states import WORKING, HealthState, NodeHealth
from airyard.core.scheduling.plan import Plan
from airyard.core.state import ClusterState

SOON_MS = 2 * SLICE_MS
"""Who is promised a node, or has reserved it, within this time finds it without a test that has just begun."""


def promised(plan: Plan | None, now_ms: int) -> frozenset[str]:
    """Return the nodes that the newest plan keeps for waiting runs, now or soon."""
    if plan is None:
        return frozenset()
    kept = (*plan.kept, *(hold for hold in plan.holds if hold.from_ms <= now_ms + SOON_MS))
    return frozenset(name for hold in kept for name in hold.nodes)


def reserved(state: ClusterState, now_ms: int) -> frozenset[str]:
    """Return the nodes that somebody has reserved now, or will before a test that has just begun is over."""
    return frozenset(
        name
        for each in state.reservations.values()
        if each.from_ms - SOON_MS <= now_ms < each.to_ms
        for name in each.nodes
    )


def idle_nodes(
    state: ClusterState,
    now_ms: int,
    *,
    since_ms: int,
    cpu_slots: bool = False,
    wanted: Collection[str] = (),
    resting: Collection[str] = (),
) -> list[IdleNode]:
    """Return all nodes that may be tested at all. Cost: nodes and live members.

    ``since_ms``: a node of which nobody knows since when it is idle counts from then on. ``wanted``: nodes that are
    promised to somebody; those in use or reserved are found here.
    """
    booked = state.bookings()
    kept = reserved(state, now_ms)
    alive = {name for name, machine in state.machines.items() if machine.alive}
    found = []
    for name, node in state.nodes.items():
        if node.model is None and not cpu_slots:
            continue
        health = state.health.get(name)
        in_use = name in booked or any(device.owner for device in node.devices)
        found.append(
            _facts(
                node,
                pool=state.policy.pool_of(node),
                idle_since_ms=None if in_use else state.left_ms.get(name, since_ms),
                open_=node.machine in alive and name not in state.cordons and _works(health),
                wanted=in_use or name in kept or name in wanted,
                resting=name in resting,
                health=health,
                tests=state.tests.get(name) or NodeTests(),
                version=state.machines[node.machine].boot_id if node.machine in state.machines else "",
            )
        )
    return found


def _works(health: NodeHealth | None) -> bool:
    return health is None or health.state in WORKING


def _facts(
    node: Node,
    *,
    pool: str,
    idle_since_ms: int | None,
    open_: bool,
    wanted: bool,
    resting: bool,
    health: NodeHealth | None,
    tests: NodeTests,
    version: str,
) -> IdleNode:
    tried_ms = max((note.at_ms for note in (tests.light, tests.deep) if note is not None), default=None)
    deep_ms, deep_tried_ms = tests.deep_ms, tests.deep.at_ms if tests.deep is not None else None
    if health is not None and health.state is HealthState.SUSPECT:
        # What it passed before says nothing to the suspicion: a deep test may clear it.
        deep_ms = deep_ms if (deep_ms or 0) >= health.since_ms else None
        deep_tried_ms = deep_tried_ms if (deep_tried_ms or 0) >= health.since_ms else None
    return IdleNode(
        name=node.name,
        pool=pool,
        like=f"{node.accelerator} {node.simulated}",
        idle_since_ms=idle_since_ms,
        open=open_,
        wanted=wanted,
        resting=resting,
        strikes=health.strikes if health is not None else 0,
        signals=sum(hit.at_ms > (tried_ms or 0) for hit in health.hits) if health is not None else 0,
        changed=tests.passed_ms is not None and tests.version != version,
        passed_ms=tests.passed_ms,
        deep_ms=deep_ms,
        paired_ms=tests.paired_ms,
        tried_ms=tried_ms,
        deep_tried_ms=deep_tried_ms,
        paired_tried_ms=tests.fabric.at_ms if tests.fabric is not None else None,
        doubted=health is not None and gang_sums.is_doubted(health.hits, _paired_from_ms(tests)),
    )


def _paired_from_ms(tests: NodeTests) -> int:
    return tests.fabric.at_ms - tests.fabric.took_ms if tests.fabric is not None else 0


def edges_in_doubt(state: ClusterState, names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return the edges between some nodes that sums over gangs speak against, as far as no pair test was since."""
    hits = {}
    for name in names:
        health, tests = state.health.get(name), state.tests.get(name) or NodeTests()
        if health is not None and gang_sums.is_doubted(health.hits, _paired_from_ms(tests)):
            hits[name] = health.hits
    return gang_sums.edges_in_doubt(hits)


def in_the_way(state: ClusterState, names: Iterable[str], began_ms: int) -> bool:
    """True when a run has been on one of the nodes since, is there, or one of them cannot be told any more."""
    booked = state.bookings()
    for name in names:
        node = state.nodes.get(name)
        machine = state.machines.get(node.machine) if node is not None else None
        if node is None or machine is None or not machine.alive or name in booked:
            return True
        if any(device.owner for device in node.devices):
            return True
        if state.left_ms.get(name, 0) >= began_ms or name in state.cordons:
            return True
    return False


def leaves(state: ClusterState, pool: str) -> dict[str, str]:
    """Return node → leaf switch of all labelled nodes of a pool: fabric and rack, as the planner knows them."""
    found = {}
    for name, node in state.nodes.items():
        labels = node.labels or {}
        leaf = "/".join(labels[key] for key in ("fabric", "rack") if labels.get(key))
        if leaf and state.policy.pool_of(node) == pool:
            found[name] = leaf
    return found
