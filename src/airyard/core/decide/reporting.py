"""Looks whether what monitors of one's own report is about nodes and devices that there are.

Owns: that. Must not know: what follows from a report (``ailing.py``), the fields' own limits (``core/health/reports``).
An agent's events are not looked at: a node that left meanwhile is no mistake of its agent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from airyard.core.decide.operating import unknown_node
from airyard.core.errors import Fix, NotFound, UserError
from airyard.core.health.facts import HealthEvent
from airyard.core.state import ClusterState


def located(state: ClusterState, events: Iterable[HealthEvent]) -> tuple[HealthEvent, ...]:
    """Return the events, each with the machine of its node. Raises: NotFound, UserError."""
    return tuple(_located(state, event) for event in events)


def _located(state: ClusterState, event: HealthEvent) -> HealthEvent:
    if not event.node:
        return _of_machine(state, event)
    node = state.nodes.get(event.node)
    if node is None:
        raise unknown_node([event.node], state.nodes, "node")
    if event.machine not in ("", node.machine):
        raise UserError(
            f"node {node.name} is of machine {node.machine}, not of {event.machine}",
            code="BAD_HEALTH_EVENT",
            fix=f"name {node.machine}, or leave the machine out",
        )
    uuids = {device.uuid: device.index for device in node.devices}
    known = sorted(device.index for device in node.devices)
    if event.device is not None and event.device not in known:
        there = ", ".join(map(str, known[:32])) or "none"
        raise _no_device(f"node {node.name} has no device {event.device}; it has {there}", node.name)
    if event.device_uuid and event.device_uuid not in uuids:
        raise _no_device(f"node {node.name} has no device {event.device_uuid!r}", node.name)
    if event.device is None and event.device_uuid:
        return replace(event, machine=node.machine, device=uuids[event.device_uuid])
    return replace(event, machine=node.machine)


def _of_machine(state: ClusterState, event: HealthEvent) -> HealthEvent:
    if event.machine not in state.machines:
        raise unknown_node([event.machine], state.machines, "machine")
    there = [node for node in state.nodes.values() if node.machine == event.machine]
    uuid = event.device_uuid
    if event.device is not None and not uuid:
        raise UserError(
            f"device {event.device} is of a node, and this names none",
            code="BAD_HEALTH_EVENT",
            fix="name the node, or the device by its UUID",
        )
    if uuid and not any(device.uuid == uuid for node in there for device in node.devices):
        raise _no_device(f"machine {event.machine} has no device {uuid!r}", "")
    return event


def _no_device(message: str, node: str) -> NotFound:
    look = f"airyard nodes {node} -o json" if node else "airyard nodes -o json"
    return NotFound(
        message, code="DEVICE_NOT_FOUND", fix=Fix(text=f"`{look}` lists the devices there are", command=look)
    )
