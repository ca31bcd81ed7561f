"""Which events of the journal are worth a notification, and what they say.

Owns: the table from an event to a notice. Must not know: who is told (``notify.py`` has the rules), delivery, text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from airyard.core import events
from airyard.core.events import Recorded
from airyard.core.health.fabric_faults import in_words
from airyard.core.health.facility import NEXT_STEP, Supply
from airyard.core.health.states import HealthState
from airyard.core.health.waiting import for_person
from airyard.core.notify import FleetNotice, RunNotice
from airyard.core.run import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something that somebody may want to hear of.

    ``kinds``: what it counts as, the most telling first; a receiver gets the first one that it asked for. ``key`` is
    the same for events that are about one occasion: of those the first is told.
    """

    kinds: tuple[RunNotice | FleetNotice, ...]
    key: str
    at_ms: int
    message: str
    run_id: int | None = None
    attempt: int | None = None
    node: str | None = None
    pool: str | None = None
    outcome: str | None = None
    cause: str | None = None
    next_step: str | None = None
    by: str | None = None
    place: str | None = None
    """A rack or a power domain."""


_FAILING = frozenset({Outcome.FAILED, Outcome.TIMED_OUT})
_OF_HEALTH = {
    HealthState.QUARANTINED: FleetNotice.NODE_QUARANTINED,
    HealthState.RETIRED: FleetNotice.NODE_RETIRED,
    HealthState.PROBATION: FleetNotice.NODE_BACK,
}


def notice_of(recorded: Recorded) -> Notice | None:
    """Return what an event tells; None for the many that tell nothing."""
    tell = SOURCES.get(type(recorded.event).__name__)
    return tell(recorded, recorded.event) if tell is not None else None


def _key(recorded: Recorded) -> str:
    # The time, too: in a journal that went on from a backup numbers come again.
    return f"{recorded.epoch}.{recorded.seq}.{recorded.at_ms}"


def _run_ended(recorded: Recorded, event: events.RunEnded) -> Notice:
    failed, failure = event.outcome in _FAILING, event.failure
    return Notice(
        kinds=(RunNotice.FAILED, RunNotice.DONE) if failed else (RunNotice.DONE,),
        key=_key(recorded),
        at_ms=recorded.at_ms,
        message=failure.message if failure is not None else "",
        run_id=event.run_id,
        node=failure.node if failure is not None else None,
        outcome=event.outcome.value,
        cause=event.cause.value if event.cause is not None else None,
        next_step=failure.next_step if failure is not None else None,
    )


def _attempt_ended(recorded: Recorded, event: events.AttemptEnded) -> Notice | None:
    if event.outcome is not Outcome.PREEMPTED:
        return None
    return Notice(
        kinds=(RunNotice.PREEMPTED,),
        key=_key(recorded),
        at_ms=recorded.at_ms,
        message=event.failure.message if event.failure is not None else "",
        run_id=event.run_id,
        attempt=event.attempt,
        outcome=event.outcome.value,
        cause=event.cause.value if event.cause is not None else None,
    )


def _attempt_stalled(recorded: Recorded, event: events.AttemptStalled) -> Notice:
    """A verdict that changes is about the same stall: it is told once; of signs without a step, once an attempt."""
    stall = event.stall
    of = "" if stall.source == "steps" else f"{stall.source}."
    return Notice(
        kinds=(RunNotice.STALLED,),
        key=f"stall.{of}{event.run_id}.{event.attempt}.{stall.step}",
        at_ms=recorded.at_ms,
        message=stall.message,
        run_id=event.run_id,
        attempt=event.attempt,
        node=stall.suspect_node or None,
    )


def _node_cordoned(recorded: Recorded, event: events.NodeCordoned) -> Notice:
    return Notice(
        kinds=(FleetNotice.NODE_CORDONED,),
        key=_key(recorded),
        at_ms=recorded.at_ms,
        message=event.reason,
        node=event.node,
        by=event.by,
    )


def _health_changed(recorded: Recorded, event: events.NodeHealthChanged) -> Notice | None:
    health = event.health
    kind = _OF_HEALTH.get(health.state)
    # A record that only learns something keeps the time since when its state holds.
    if kind is None or health.since_ms != recorded.at_ms:
        return None
    return Notice(
        kinds=(kind,),
        key=_key(recorded),
        at_ms=recorded.at_ms,
        message=event.why,
        node=event.node,
        cause=health.rule or None,
        next_step=for_person(event.node, health) or None,
        by=event.by,
    )


def _breaker_opened(recorded: Recorded, event: events.BreakerOpened) -> Notice:
    return Notice(
        kinds=(FleetNotice.BREAKER_OPEN,),
        key=_key(recorded),
        at_ms=recorded.at_ms,
        message=event.why,
        pool=event.pool,
        next_step="look at what broke, then `airyard health breaker reset`",
    )


def _fabric_tested(recorded: Recorded, event: events.FabricTested) -> Notice | None:
    """What goes on to stand is not told again; of nodes their own health tells."""
    begun, ended = event.begun, event.ended
    if not begun and not ended:
        return None
    said = ([in_words(begun)] if begun else []) + ([f"well again: {in_words(ended)}"] if ended else [])
    return Notice(
        kinds=((FleetNotice.FABRIC_FAULT,) if begun else ()) + ((FleetNotice.FABRIC_WELL,) if ended else ()),
        key=_key(recorded),
        at_ms=recorded.at_ms,
        message="; ".join(said),
        pool=event.pool,
        cause=(*begun, *ended)[0].rule,
        next_step=begun[0].next_step if begun else None,
    )


def _incident_began(recorded: Recorded, event: events.FacilityIncidentBegan) -> Notice:
    incident = event.incident
    return Notice(
        kinds=(FleetNotice.FACILITY_INCIDENT,),
        key=_key(recorded),
        at_ms=recorded.at_ms,
        message=incident.why,
        cause=f"facility.{incident.supply.value.lower()}",
        next_step=NEXT_STEP[incident.supply],
        place=incident.place,
    )


_WELL_AGAIN = {
    Supply.POWER: "none of its {} nodes is slowed down any more",
    Supply.COOLING: "none of its {} nodes is slowed down any more",
    Supply.STORAGE: "no two machines of its {} nodes fail there any more",
}


def _incident_ended(recorded: Recorded, event: events.FacilityIncidentEnded) -> Notice:
    incident = event.incident
    minutes = max(1, (incident.ended_ms - incident.began_ms) // 60_000)
    return Notice(
        kinds=(FleetNotice.FACILITY_WELL,),
        key=_key(recorded),
        at_ms=recorded.at_ms,
        message=f"{_WELL_AGAIN[incident.supply].format(len(incident.nodes))}; it began {minutes} minutes ago",
        cause=f"facility.{incident.supply.value.lower()}",
        place=incident.place,
    )


def _lead_began(recorded: Recorded, event: events.LeadBegan) -> Notice:
    return Notice(
        kinds=(FleetNotice.SERVER_TAKEOVER,),
        key=_key(recorded),
        at_ms=recorded.at_ms,
        message=f"version {event.version}, epoch {event.epoch}",
    )


SOURCES: Mapping[str, Callable[[Recorded, Any], Notice | None]] = {
    "RunEnded": _run_ended,
    "AttemptEnded": _attempt_ended,
    "AttemptStalled": _attempt_stalled,
    "NodeCordoned": _node_cordoned,
    "NodeHealthChanged": _health_changed,
    "BreakerOpened": _breaker_opened,
    "FabricTested": _fabric_tested,
    "FacilityIncidentBegan": _incident_began,
    "FacilityIncidentEnded": _incident_ended,
    "LeadBegan": _lead_began,
}
"""Kind of an event in the journal → how to read a notice from it. What is not here is never looked at."""
