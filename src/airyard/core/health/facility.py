"""Nodes that fail by what they share (power, cooling, storage): one alone is noted, several are an incident.

Owns: which nodes share a supply, how many make an incident, when it is over, what it excuses; the records that are
kept. Must not know: who saw it, who is told. Pure: time is an argument.

Power and cooling are those of a place, and slow its nodes down. Storage is told by its mount, and fails on machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from airyard.core.health import clock_reasons, shared, slowing
from airyard.core.health.facts import Component, HealthEvent, Source
from airyard.core.health.states import Hit

WINDOW_MS = 300_000
"""What begins so close to each other has one cause."""
NODES = 3
"""So many nodes of one place; in a place of two, both."""
MACHINES = 2
"""So many machines that fail at one storage within ``shared.WITHIN_MS``."""
QUIET_MS = 900_000
"""Without a sighting for so long it is over: agents repeat what lasts within ten minutes."""
REFRESH_MS = 60_000
"""What lasts is noted once in so long."""
KEPT_MS = 86_400_000
SLOWDOWNS_KEPT = 4_096
INCIDENTS_KEPT = 16
"""So many, and all that go on: one that was forgotten would begin again with each sighting."""
GOING_ON_MOST = 512
NAMES_SHOWN = 8
_SLOWNESS = slowing.SLOWNESS | {slowing.RULE, slowing.AGAIN, "check.gpu.clocks", "check.compute.load"}
_EXCUSED = {shared.ALONE, shared.AGAIN, *shared.OF_STORAGE}
_CHARACTERS = 300


class Supply(Enum):
    """What a place gives its nodes."""

    POWER = "POWER"
    COOLING = "COOLING"
    STORAGE = "STORAGE"


NEXT_STEP = {
    Supply.POWER: "look at the power supply and the power limits of the place, not at its nodes",
    Supply.COOLING: "look at the cooling of the place (air, water, doors), not at its nodes",
    Supply.STORAGE: "look at the file server and the network to it, not at the nodes",
}
_WHAT = {Supply.POWER: "the power brake is on at", Supply.COOLING: "heat slows GPUs down at"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """One node that is slowed down for want of a supply, or fails at its storage.

    ``since_ms``: its first sighting of a row without a long pause.
    """

    node: str
    supply: Supply
    place: str
    """Empty where no label says what it shares that supply with."""
    at_ms: int
    since_ms: int
    device: int | None = None
    event_id: str = ""
    message: str = ""
    machine: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Nodes that failed by one supply at about the same time."""

    place: str
    supply: Supply
    began_ms: int
    nodes: tuple[str, ...]
    why: str
    ended_ms: int = 0
    """0: it goes on."""

    @property
    def at(self) -> tuple[str, Supply]:
        """What tells it from others that go on."""
        return self.place, self.supply


@dataclass(frozen=True, slots=True, kw_only=True)
class Facility:
    """What is known: the newest slowdown of each node and supply, and incidents, the newest last."""

    slowdowns: tuple[Slowdown, ...] = ()
    incidents: tuple[Incident, ...] = ()


def place_of(labels: Mapping[str, str] | None, supply: Supply) -> str:
    """Return what a node shares a supply with, in words: for power its power domain, else its rack."""
    said = labels or {}
    if supply is Supply.POWER and said.get("power"):
        return f"power domain {said['power']}"
    fabric = f" of fabric {said['fabric']}" if said.get("fabric") else ""
    return f"rack {said['rack']}{fabric}" if said.get("rack") else ""


def places_of(labels: Mapping[str, str] | None) -> tuple[str, ...]:
    """Return, in words, what a node shares with others and may fail with: its rack, its leaf switch."""
    said = labels or {}
    rack = place_of(said, Supply.COOLING)
    return tuple(one for one in (rack, f"fabric {said['fabric']}" if said.get("fabric") else "") if one)


def supplies(event: HealthEvent) -> tuple[Supply, ...]:
    """Return which supplies an event says are short; a job's text never does."""
    if not event.confirmed or event.source is Source.JOB_LOG:
        return ()
    if event.rule in shared.OF_STORAGE:
        return (Supply.STORAGE,)
    brake = event.component is Component.FACILITY or event.clock_reasons & clock_reasons.POWER_BRAKE
    heat = event.rule in slowing.SLOWNESS and event.clock_reasons & clock_reasons.HEAT
    return tuple(one for one, said in ((Supply.POWER, brake), (Supply.COOLING, heat)) if said)


def slowdown_of(
    event: HealthEvent, node: str, supply: Supply, place: str, now_ms: int, *, machine: str = ""
) -> Slowdown:
    """Return what is kept of a sighting. A clock that is ahead does not count."""
    at_ms = min(event.at_ms, now_ms)
    return Slowdown(
        node=node,
        supply=supply,
        place=place,
        at_ms=at_ms,
        since_ms=at_ms,
        device=event.device,
        event_id=event.event_id,
        message=event.message[:_CHARACTERS],
        machine=machine,
    )


def _newest(known: Facility, node: str, supply: Supply) -> Slowdown | None:
    return next((one for one in known.slowdowns if (one.node, one.supply) == (node, supply)), None)


def is_news(known: Facility, seen: Slowdown) -> bool:
    """True when a sighting says something that is not known. The same again never does, in whatever order."""
    before = _newest(known, seen.node, seen.supply)
    if before is not None and seen.at_ms < before.at_ms + REFRESH_MS:
        return False
    here = (one.ended_ms for one in known.incidents if one.at == (seen.place, seen.supply))
    return seen.at_ms > max(here, default=0)


def with_slowdown(known: Facility, seen: Slowdown) -> Facility:
    """Return what is known with a sighting taken in; a node that joins an open incident is one of its nodes."""
    before = _newest(known, seen.node, seen.supply)
    if before is not None and seen.at_ms - before.at_ms < QUIET_MS:
        seen = replace(seen, since_ms=before.since_ms)
    others = [one for one in known.slowdowns if one is not before and one.at_ms > seen.at_ms - KEPT_MS]
    incidents = tuple(
        replace(one, nodes=tuple(sorted({*one.nodes, seen.node})))
        if seen.place and one.at == (seen.place, seen.supply) and not one.ended_ms
        else one
        for one in known.incidents
    )
    return Facility(slowdowns=(*others, seen)[-SLOWDOWNS_KEPT:], incidents=incidents)


def goes_on(known: Facility, place: str, supply: Supply) -> bool:
    """True while there is an incident of a place."""
    return any(one.at == (place, supply) and not one.ended_ms for one in known.incidents)


def begun(known: Facility, node: str, supply: Supply, nodes_there: int) -> Incident | None:
    """Return the incident that the newest sighting of a node makes; None while it is alone, or is known of."""
    mine = _newest(known, node, supply)
    if mine is None or not mine.place:
        return None
    at = (mine.place, supply)
    going_on = [one.at for one in known.incidents if not one.ended_ms]
    if at in going_on or len(going_on) >= GOING_ON_MOST:
        return None
    if supply is Supply.STORAGE:
        return _of_storage(known, mine)
    if nodes_there < 2:
        return None
    near = [
        one for one in known.slowdowns if (one.place, one.supply) == at and _apart_ms(one, mine) <= WINDOW_MS
    ]
    if len(near) < min(NODES, nodes_there):
        return None
    names = tuple(sorted(one.node for one in near))
    return Incident(
        place=mine.place,
        supply=supply,
        began_ms=min(one.since_ms for one in near),
        nodes=names,
        why=f"{_WHAT[supply]} {len(names)} of {nodes_there} nodes of {mine.place} within "
        f"{WINDOW_MS // 60_000} minutes: {_listed(names)}"[:_CHARACTERS],
    )


def _of_storage(known: Facility, mine: Slowdown) -> Incident | None:
    """Return the incident of machines that fail at one storage now: who failed for long says nothing of another now."""
    near = [
        one
        for one in known.slowdowns
        if (one.place, one.supply) == (mine.place, mine.supply)
        and abs(one.at_ms - mine.at_ms) <= shared.WITHIN_MS
    ]
    machines = {one.machine for one in near}
    if len(machines) < MACHINES:
        return None
    names = tuple(sorted(one.node for one in near))
    return Incident(
        place=mine.place,
        supply=mine.supply,
        began_ms=min(max(one.since_ms, one.at_ms - shared.WITHIN_MS) for one in near),
        nodes=names,
        why=f"{len(names)} nodes on {len(machines)} machines fail at {mine.place} within "
        f"{shared.WITHIN_MS // 60_000} minutes: {_listed(names)}"[:_CHARACTERS],
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMES_SHOWN]) + (", ..." if len(names) > NAMES_SHOWN else "")


def _apart_ms(one: Slowdown, other: Slowdown) -> int:
    return max(0, one.since_ms - other.at_ms, other.since_ms - one.at_ms)


def with_incident(known: Facility, incident: Incident) -> Facility:
    """Return what is known with an incident that began; of the oldest the ended ones go first."""
    return replace(known, incidents=_kept((*known.incidents, incident)))


def _kept(incidents: Iterable[Incident]) -> tuple[Incident, ...]:
    found = sorted(incidents, key=lambda one: (not one.ended_ms, one.began_ms))
    going_on = sum(not one.ended_ms for one in found)
    return tuple(found[-max(INCIDENTS_KEPT, going_on) :])


def over(known: Facility, now_ms: int) -> list[Incident]:
    """Return the incidents that are over, with their end: nothing was seen in them for a while.

    One of storage is over when no two machines fail any more: what one goes on to show is its own.
    """
    newest: dict[tuple[str, Supply], dict[str, int]] = {}
    for one in known.slowdowns:
        who = one.machine if one.supply is Supply.STORAGE else ""
        there = newest.setdefault((one.place, one.supply), {})
        there[who] = max(there.get(who, 0), one.at_ms)
    return [
        replace(one, ended_ms=now_ms)
        for one in known.incidents
        if not one.ended_ms and _last(newest.get(one.at, {}), one.supply) <= now_ms - QUIET_MS
    ]


def _last(newest: Mapping[str, int], supply: Supply) -> int:
    """Return when an incident was seen last, from when each machine showed it last."""
    needed = MACHINES if supply is Supply.STORAGE else 1
    found = sorted(newest.values(), reverse=True)
    return found[needed - 1] if len(found) >= needed else 0


def with_end(known: Facility, ended: Incident) -> Facility:
    """Return what is known after an incident is over."""
    return replace(
        known,
        incidents=_kept(ended if one.at == ended.at and not one.ended_ms else one for one in known.incidents),
    )


def excuses(known: Facility, node: str, rule: str, at_ms: int) -> bool:
    """True for what a node shows in an incident, or right before it was known: that speaks not against the node."""
    return any(
        node in one.nodes
        and rule in (_EXCUSED if one.supply is Supply.STORAGE else _SLOWNESS)
        and one.began_ms - WINDOW_MS <= at_ms
        and (not one.ended_ms or at_ms <= one.ended_ms)
        for one in known.incidents
    )


def excused(known: Facility, node: str, hits: Iterable[Hit]) -> list[Hit]:
    """Return the evidence against a node that is the facility's."""
    return [hit for hit in hits if excuses(known, node, hit.rule, hit.at_ms)]
