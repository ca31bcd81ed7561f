"""The health of one node: its states, the legal moves between them as data, and the record that is kept.

Owns: the states, the moves, the record. Must not know: why a move is made (``machine.py``), cordons, runs.
A node of which nothing is known is healthy: there is no record of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from airyard.core.health.facts import Component, Remedy, Retest, Severity


class HealthState(Enum):
    """Where a node is between well and scrapped."""

    HEALTHY = "HEALTHY"
    SUSPECT = "SUSPECT"
    CORDONED = "CORDONED"
    DRAINING = "DRAINING"
    QUARANTINED = "QUARANTINED"
    RESETTING = "RESETTING"
    RETESTING = "RETESTING"
    PROBATION = "PROBATION"
    MAINTENANCE = "MAINTENANCE"
    ENROLLING = "ENROLLING"
    RETIRED = "RETIRED"


_S = HealthState

AUTOMATIC_MOVES: Mapping[HealthState, frozenset[HealthState]] = {
    _S.HEALTHY: frozenset({_S.SUSPECT, _S.CORDONED}),
    _S.SUSPECT: frozenset({_S.HEALTHY, _S.CORDONED}),
    _S.CORDONED: frozenset({_S.DRAINING}),
    _S.DRAINING: frozenset({_S.QUARANTINED}),
    _S.QUARANTINED: frozenset({_S.RESETTING, _S.RETIRED}),
    _S.RESETTING: frozenset({_S.RETESTING, _S.QUARANTINED}),
    # A failed test leads to the next remedy or to the end of them, never to work.
    _S.RETESTING: frozenset({_S.PROBATION, _S.RESETTING, _S.QUARANTINED, _S.RETIRED}),
    _S.PROBATION: frozenset({_S.HEALTHY, _S.CORDONED}),
    _S.MAINTENANCE: frozenset(),
    _S.ENROLLING: frozenset({_S.HEALTHY, _S.QUARANTINED}),
    _S.RETIRED: frozenset(),
}
"""What happens without a person."""

OPERATOR_MOVES: Mapping[HealthState, frozenset[HealthState]] = {
    **{state: frozenset({_S.MAINTENANCE}) for state in HealthState if state is not _S.MAINTENANCE},
    _S.MAINTENANCE: frozenset({_S.ENROLLING}),
    # "It was a false alarm": on a person's word the node works again, on probation.
    _S.SUSPECT: frozenset({_S.MAINTENANCE, _S.PROBATION}),
    _S.QUARANTINED: frozenset({_S.MAINTENANCE, _S.PROBATION}),
    _S.ENROLLING: frozenset({_S.MAINTENANCE, _S.PROBATION}),
}
"""What a person may do beside it."""

HEALTH_MOVES: Mapping[HealthState, frozenset[HealthState]] = {
    state: AUTOMATIC_MOVES[state] | OPERATOR_MOVES[state] for state in HealthState
}

WORKING = frozenset({_S.HEALTHY, _S.SUSPECT, _S.PROBATION})
"""New runs may be placed on the node, unless somebody else closed it."""

IN_DOUBT = frozenset({_S.SUSPECT, _S.PROBATION})
"""The node works; a gang, of which every member dies with one node, gets it when nothing else serves."""

TAKEN_OUT = frozenset(HealthState) - WORKING - {_S.MAINTENANCE}
"""Taken out by the machine: what budgets count. Maintenance is a person's matter."""


class RemedyOutcome(Enum):
    """What became of an attempt to mend a node."""

    SUCCEEDED = "SUCCEEDED"
    TRANSIENT = "TRANSIENT"
    """It was certainly not carried out; the same may be tried again."""
    PERMANENT = "PERMANENT"
    """It failed, or nobody knows whether it was carried out: a person has to look."""
    SUPERSEDED = "SUPERSEDED"
    CANCELLED = "CANCELLED"
    """It was not begun: nobody has configured how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """What counts for or against a node: one of each rule and device. ``weight``: see ``blame.py``."""

    event_id: str
    rule: str
    weight: float
    at_ms: int
    confirmed: bool
    severity: Severity
    device: int | None = None
    rule_version: int = 1
    remedy: Remedy = Remedy.NONE
    retest: Retest = Retest.T1
    message: str = ""
    evidence: tuple[str, ...] = ()
    component: Component | None = None
    """None in records of before it was kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHealth:
    """What is known of one node's health, and how far its cure is.

    ``session`` counts quarantines, ``attempt`` the remedies reserved in this one, ``passes`` tests passed in a row.
    ``waits_for``: what a person has to do; empty while the machine goes on by itself.
    """

    state: HealthState = HealthState.HEALTHY
    since_ms: int = 0
    score: float = 0.0
    hits: tuple[Hit, ...] = ()
    rule: str = ""
    """The rule that decided."""
    session: int = 0
    attempt: int = 0
    remedy: Remedy = Remedy.NONE
    """In flight, or done last."""
    put_off: int = 0
    """Of ``attempt`` those that were certainly not carried out: they were numbered, and count for nothing else."""
    retest: Retest = Retest.T1
    passes: int = 0
    strikes: int = 0
    struck_ms: int = 0
    remedied_ms: tuple[int, ...] = ()
    """When remedies were reserved, of the last week."""
    past_rules: tuple[str, ...] = ()
    """Rules for which it was taken out before, the newest last."""
    not_before_ms: int = 0
    known: tuple[str, ...] = ()
    """Events that were settled by a cure: said again they say nothing."""
    cured_ms: int = 0
    """What is older than this was settled by the last cure."""
    clean: int = 0
    """Runs that ended well on it while on probation."""
    waits_for: str = ""

    @property
    def remedies(self) -> int:
        """Remedies of this quarantine that were carried out, or may have been; the one in flight, too."""
        return self.attempt - self.put_off


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One line of a node's story. ``evidence``: raw lines; ``budget``: what the budgets said."""

    at_ms: int
    before: HealthState
    after: HealthState
    why: str
    by: str
    rule: str = ""
    score: float = 0.0
    attempt: int = 0
    evidence: tuple[str, ...] = ()
    budget: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """Since when, and why, no node of a pool is taken out any more; until a person closes it."""

    at_ms: int
    why: str
