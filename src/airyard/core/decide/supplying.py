"""Decides what becomes of nodes that fail by what they share (power, cooling, storage): sightings, and incidents.

Owns: which events are journalled. Must not know: how many make an incident (``core/health/facility``).
No node is taken out here: who cuts the power of a rack, or serves its files, is no node of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from airyard.core.decide.decision import Decision, Scratch
from airyard.core.events import FacilityIncidentBegan, FacilityIncidentEnded, SlowdownSeen
from airyard.core.health import facility
from airyard.core.health.facts import HealthEvent
from airyard.core.health.shared import storage_of
from airyard.core.state import ClusterState


def seen(scratch: Scratch, event: HealthEvent, nodes: Iterable[str]) -> set[str]:
    """Note slowdowns of nodes, and the incidents that they make; return who is part of one. Cost: nodes, for news."""
    concerned = set()
    for supply in facility.supplies(event):
        for name in nodes:
            node = scratch.state.nodes[name]
            place = storage_of(event) or facility.place_of(node.labels, supply)
            slowdown = facility.slowdown_of(event, name, supply, place, scratch.now_ms, machine=node.machine)
            if facility.is_news(scratch.state.facility, slowdown):
                concerned |= _note(scratch, slowdown)
    return concerned


def _note(scratch: Scratch, slowdown: facility.Slowdown) -> set[str]:
    scratch.take(Decision(events=(SlowdownSeen(slowdown=slowdown),)))
    place, supply = slowdown.place, slowdown.supply
    if not place or facility.goes_on(scratch.state.facility, place, supply):
        return {slowdown.node}  # without counting the nodes: when a whole site is hot, each of them says so
    there = sum(facility.place_of(node.labels, supply) == place for node in scratch.state.nodes.values())
    incident = facility.begun(scratch.state.facility, slowdown.node, supply, there)
    if incident is not None:
        scratch.take(Decision(events=(FacilityIncidentBegan(incident=incident),)))
        return set(incident.nodes)
    return {slowdown.node}


def tick(state: ClusterState, now_ms: int) -> Decision:
    """End incidents in which nothing was seen for a while."""
    over = facility.over(state.facility, now_ms)
    return Decision(events=tuple(FacilityIncidentEnded(incident=one) for one in over))
