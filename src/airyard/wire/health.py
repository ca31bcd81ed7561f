"""What is asked and told of nodes' health: events, maintenance, a false alarm, the breaker.

Owns: shapes, types and sizes; nothing here acts. Must not know: routes, the state.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from airyard.wire.answer import Answer
from airyard.wire.facility import IncidentDoc, SlowdownDoc
from airyard.wire.native import Part
from airyard.wire.nodes import HealthStepDoc, IdleTestDoc, Names, Why


class BreakerDoc(Answer):
    """A pool of which no node is taken out any more, and why."""

    pool: str
    at: str | None
    why: str


class FabricFaultDoc(Answer):
    """What is at fault between nodes and not found well since: EDGE, LEAF or RAIL. Times are RFC 3339."""

    pool: str
    what: str
    where: str
    since: str
    seen: str
    next_step: str


class HealthEventsAnswer(Answer):
    """What became of nodes by their health, the newest last."""

    events: list[HealthStepDoc]
    breakers: list[BreakerDoc]
    tests: list[IdleTestDoc] = Field(default_factory=list)
    """Of idle nodes: the newest of each node, and the newest sweeps of each pool."""
    faults: list[FabricFaultDoc] = Field(default_factory=list)
    """Between nodes, the oldest first, whenever they began; none where one node was asked for."""
    incidents: list[IncidentDoc] = Field(default_factory=list)
    """Of the facility, the newest last: those that go on, whenever they began, and those that ended in the span."""
    slowdowns: list[SlowdownDoc] = Field(default_factory=list)
    """Of nodes, the newest last; those in an incident, too."""


class MaintenanceRequest(Part):
    """``POST /health/maintenance``: ``on`` takes nodes over, else they are tested and work again."""

    nodes: Names
    on: bool
    reason: Why = ""


class AcquitRequest(Part):
    """``POST /health/acquit``: it was a false alarm."""

    nodes: Names
    reason: Why = ""


class ResetBreakerRequest(Part):
    """``POST /health/breaker/reset``: of one pool, or of all."""

    pool: Annotated[str, Field(max_length=200)] = ""


class HealthReportRequest(Part):
    """``POST /health/report``: what monitors of one's own saw, each in the form of a HealthEvent.

    ``event_id``, ``rule`` and ``node`` or ``machine`` are needed; for the rest see docs/health.md#reports.
    """

    events: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=100)]


class HealthReportAnswer(Answer):
    """How many events were taken. ``notes``: what of them is not kept."""

    taken: int
    notes: list[str] = Field(default_factory=list)


class CheckRequest(Part):
    """``POST /health/check``: a node that its agent is to check."""

    node: Annotated[str, Field(min_length=1, max_length=200)]
    profile: Literal["fast", "full"] = "fast"


class PairRequest(Part):
    """``POST /health/pair``: two nodes that are to be tested against each other; the first serves."""

    nodes: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=200)]], Field(min_length=2, max_length=2)
    ]


class PairAnswer(Answer):
    """``done``: it is over, and the rest is there: what was measured, and what it comes to."""

    done: bool
    nodes: Annotated[list[str], Field(default_factory=list)]
    machines: Annotated[list[str], Field(default_factory=list)]
    simulated: bool = False
    outcome: str = ""
    """``PASS`` or ``FAIL``."""
    why: str = ""
    method: str = ""
    """``nccl`` or ``gloo``: an all-reduce of both; ``tcp``: blocks both ways; empty where nothing was measured."""
    busbw_gb_s: float | None = None
    latency_p95_us: float | None = None
    correct: bool | None = None
    errors_grown: int | None = None
    adapters: Annotated[list[dict[str, Any]], Field(default_factory=list)]
    """What adapters that correspond had one by one: ``{a, b, kind, gb_s, problem}``; empty where there is one."""
    problem: dict[str, Any] | None = None
    """Why there is no verdict, in the form of an error."""


class CheckBegun(Answer):
    """The name by which the results are asked for."""

    round: str


class CheckAnswer(Answer):
    """``done``: it is over, and the rest is there. Of a simulated node nothing is checked."""

    done: bool
    node: str = ""
    profile: str = ""
    simulated: bool = False
    reported: int = 0
    """Failures that were reported as the node's health."""
    checks: Annotated[list[dict[str, Any]], Field(default_factory=list)]
    problem: dict[str, Any] | None = None
    """Why there are no results, in the form of an error."""
