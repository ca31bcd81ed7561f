"""How many nodes the machine may take out by itself, and when it has to stop: budgets and the circuit breaker.

Owns: the shares and rates. Must not know: single nodes' faults, cordons.
"""

from __future__ import annotations

from dataclasses import dataclass

SOFT_SHARE = 0.10
HARD_SHARE = 0.25
STOP_SHARE = 0.40
PLACE_SHARE = 0.50
"""Of the nodes of one rack or leaf switch: when more have a fault, it is not theirs."""
SOFT_RATE = 0.03
REMEDY_SHARE = 0.05
WINDOW_MS = 600_000
INCIDENT_NODES = 3
BREAKER_SHARE = 0.25
SMALL_POOL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A rack or leaf switch with the node in it, over all pools. ``taken_out``: of its nodes, without this one."""

    name: str
    nodes: int
    taken_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A pool as the budgets see it. ``alike``: nodes with the same rule in the last ten minutes, this one included."""

    nodes: int
    taken_out: int
    working: int
    """Nodes that take runs, this one included."""
    soft_recently: int = 0
    """Nodes taken out in the last ten minutes."""
    remedies: int = 0
    alike: int = 1
    breaker_open: bool = False
    places: tuple[Place, ...] = ()


def refusal(fleet: Fleet, *, hard: bool) -> str:
    """Say why a node may not be taken out; empty when it may."""
    if fleet.breaker_open:
        return "the breaker is open: `airyard health breaker reset` closes it"
    if not hard and fleet.alike >= INCIDENT_NODES:
        return f"an incident: {fleet.alike} nodes show the same within {WINDOW_MS // 60_000} minutes"
    if fleet.nodes <= SMALL_POOL and fleet.working <= 1:
        return "it is the last node of its pool that works"
    limit = at_most(fleet.nodes, HARD_SHARE if hard else SOFT_SHARE)
    if fleet.taken_out + 1 > limit:
        return f"{fleet.taken_out} of {fleet.nodes} nodes are out already, {limit} may be"
    for place in fleet.places:
        if place.taken_out + 1 > at_most(place.nodes, PLACE_SHARE):
            return (
                f"an incident of {place.name}: {place.taken_out} of its {place.nodes} nodes are out already"
            )
    if not hard and fleet.soft_recently + 1 > at_most(fleet.nodes, SOFT_RATE):
        return f"{fleet.soft_recently} nodes were taken out within {WINDOW_MS // 60_000} minutes"
    return ""


def trips(fleet: Fleet) -> str:
    """Say why the breaker has to open: so many nodes with the same fault are no faults of nodes."""
    if fleet.breaker_open or fleet.alike < max(INCIDENT_NODES, BREAKER_SHARE * fleet.nodes):
        return ""
    return f"{fleet.alike} of {fleet.nodes} nodes show the same within {WINDOW_MS // 60_000} minutes"


def may_remedy(fleet: Fleet) -> bool:
    """True when one more node may be reset or started again now."""
    return not fleet.breaker_open and fleet.remedies + 1 <= at_most(fleet.nodes, REMEDY_SHARE)


def at_most(nodes: int, share: float) -> int:
    """Return a share of a pool in nodes: rounded down, one at least."""
    return max(1, int(nodes * share))
