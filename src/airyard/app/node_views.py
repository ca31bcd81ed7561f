"""The documents about nodes: NodeDoc, what is on a node, what an operator's word meant.

Owns: NodeDoc, the answers of the routes below ``/nodes``. Pure; must not know: HTTP, stores, clocks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import airyard
from airyard.app import facility_views
from airyard.app.health_views import health_document, story, tests
from airyard.app.views import Document, rfc3339
from airyard.core.cluster import Cordon, Machine, Node
from airyard.core.decide import Operated
from airyard.core.decide.awaiting import Awaiting
from airyard.core.health.facility import KEPT_MS
from airyard.core.health.states import NodeHealth
from airyard.core.health.waiting import Wait
from airyard.core.ids import MemberKey
from airyard.core.run import Attempt, Member, Run, StopRequest
from airyard.core.scheduling.nodes import natural
from airyard.core.state import ClusterState
from airyard.core.versions import Kinship, kinship


def node_documents(state: ClusterState, now_ms: int) -> list[Document]:
    """Return the NodeDocs in the order of their names. Cost: nodes and live members."""
    booked, awaiting = state.bookings(), Awaiting(state, now_ms)
    reserved = {
        name: each.reservation_id
        for each in state.reservations.values()
        if each.from_ms <= now_ms < each.to_ms
        for name in each.nodes
    }
    return [
        node_document(
            node,
            state.machines.get(node.machine),
            booked.get(node.name, {}),
            state.policy.pool_of(node),
            reserved.get(node.name),
            state.cordons.get(node.name),
            state.health.get(node.name),
            awaiting.of(node.name),
        )
        for node in sorted(state.nodes.values(), key=lambda node: natural(node.name))
    ]


def node_document(
    node: Node,
    machine: Machine | None,
    booked: Mapping[int, int],
    pool: str,
    reservation_id: int | None = None,
    cordon: Cordon | None = None,
    health: NodeHealth | None = None,
    wait: Wait | None = None,
) -> Document:
    """Return the NodeDoc; ``booked`` is device index → run id, ``pool`` the pool it is in.

    ``reservation_id`` names the reservation that the node is in at this moment.
    """
    return {
        "name": node.name,
        "machine": node.machine,
        "accelerator": node.accelerator,
        "devices": [
            {
                "index": device.index,
                "uuid": device.uuid,
                "state": "booked" if device.index in booked else "in_use" if device.owner else "free",
                "run_id": booked.get(device.index),
                "detail": device.owner,
            }
            for device in node.devices
        ],
        "alive": machine is not None and machine.alive,
        "cordoned": node.cordoned,
        "cordon": _cordon(cordon),
        "draining": _draining(cordon, bool(booked)),
        "reservation_id": reservation_id,
        "simulated": node.simulated,
        "cpus": node.cpus,
        "memory_bytes": node.memory_bytes,
        "labels": dict(node.labels or {}),
        "pool": pool,
        "version": machine.version if machine is not None else "",
        "upgrade": machine is not None and is_behind(machine),
        "health": health_document(health, wait),
    }


def is_behind(machine: Machine) -> bool:
    """True while a machine's agent is of an older release than this server."""
    return kinship(machine.version, airyard.__version__) in (Kinship.OLDER, Kinship.TOO_OLD)


def versions_document(state: ClusterState, older_runners: Collection[MemberKey]) -> Document:
    """Return which machines are still to be upgraded, and whose runners are from before an upgrade."""
    live = {
        attempt.member_key(member.index)
        for _, attempt in state.live_attempts()
        for member in attempt.members
        if not member.released
    }
    machines = sorted(state.machines.values(), key=lambda machine: natural(machine.name))
    return {
        "server": airyard.__version__,
        "machines": [
            {"name": machine.name, "version": machine.version, "alive": machine.alive}
            for machine in machines
            if is_behind(machine)
        ],
        "runners": sorted(str(key) for key in live.intersection(older_runners)),
    }


def _cordon(cordon: Cordon | None) -> Document | None:
    if cordon is None:
        return None
    # A cordon from before its time was kept has none.
    return {"by": cordon.by, "at": rfc3339(cordon.at_ms or None), "reason": cordon.reason}


def _draining(cordon: Cordon | None, held: bool) -> Document | None:
    drain = cordon.drain if cordon is not None else None
    if drain is None:
        return None
    return {
        "by": drain.by,
        "at": rfc3339(drain.at_ms),
        "reason": drain.reason,
        "deadline_at": rfc3339(drain.deadline_ms),
        "drained": not held,
    }


def inside(state: ClusterState, name: str, now_ms: int) -> Document | None:
    """Return a node with its machine and the runs that hold devices of it; None when there is no such node."""
    node = state.nodes.get(name)
    if node is None:
        return None
    found = next(each for each in node_documents(state, now_ms) if each["name"] == name)
    machine = state.machines[node.machine]
    return {
        "node": found,
        "machine": {
            "name": machine.name,
            "address": machine.address,
            "network": machine.network,
            "boot_id": machine.boot_id,
            "alive": machine.alive,
            "away_since": rfc3339(machine.away_ms) if machine.away_ms and not machine.alive else None,
        },
        "runs": [
            _resident(run, attempt, member)
            for run, attempt in state.live_attempts()
            for member in attempt.members
            if member.node == name and not member.released
        ],
        "story": story(state, name),
        "tests": tests(state, name),
        "incidents": facility_views.incidents(state.facility, name, now_ms - KEPT_MS),
        "slowdowns": facility_views.slowdowns(state.facility, name, now_ms - KEPT_MS),
    }


def _resident(run: Run, attempt: Attempt, member: Member) -> Document:
    return {
        "run_id": run.run_id,
        "name": run.name,
        "owner": run.owner,
        "project": run.project,
        "attempt": attempt.number,
        "member": member.index,
        "phase": member.phase.value,
        "devices": list(member.devices),
        "leaving": _leave(attempt.stop) if attempt.stop is not None else None,
    }


def _leave(stop: StopRequest) -> Document:
    return {
        "reason": stop.reason.value,
        "by": stop.by,
        "at": rfc3339(stop.at_ms),
        "gone_by": rfc3339(stop.at_ms + stop.grace_s * 1000),
        "message": stop.message,
    }


def operated_document(reply: Operated, nodes: Mapping[str, Document]) -> Document:
    """Return what an operator's word meant; ``nodes`` are the NodeDocs as they are now, by name."""
    return {
        "nodes": [
            {
                "name": note.node,
                "changed": note.changed,
                "message": note.message,
                "node": nodes.get(note.node),
            }
            for note in reply.notes
        ],
        "runs": [
            {
                "run_id": one.run_id,
                "owner": one.owner,
                "nodes": list(one.nodes),
                "asked_at": rfc3339(one.asked_ms),
                "gone_by": rfc3339(one.gone_ms),
            }
            for one in reply.leaving
        ],
    }
