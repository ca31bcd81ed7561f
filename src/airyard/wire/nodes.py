"""What is asked of nodes and told about them: NodeDoc, cordon, drain, the word that a machine is dead.

Owns: shapes, types and sizes; nothing here acts. Must not know: routes, the state.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from airyard.core.plain import plain
from airyard.wire.answer import Answer
from airyard.wire.facility import IncidentDoc, SlowdownDoc
from airyard.wire.moment import Moment
from airyard.wire.native import Name, Part

Names = Annotated[list[Name], Field(min_length=1, max_length=10_000)]
Why = Annotated[str, Field(max_length=1000), AfterValidator(plain)]


class DeviceDoc(Answer):
    """One device; ``detail`` names a stranger that holds it."""

    index: int
    uuid: str
    state: Literal["free", "booked", "in_use"]
    run_id: int | None
    detail: str | None


class CordonDoc(Answer):
    """Who closed a node for new members, when and why."""

    by: str
    at: str | None
    reason: str


class DrainDoc(CordonDoc):
    """Who wants it empty; without ``deadline_at`` at once. ``drained``: no run holds a device of it any more."""

    deadline_at: str | None
    drained: bool


class WaitDoc(Answer):
    """What a node waits for, until when at the latest.

    ``what``: RUNS, BACK_OFF, BUDGET, BREAKER, REMEDY, TEST, TRUST or PERSON.
    """

    what: str
    text: str
    until: str | None


class HealthDoc(Answer):
    """What is thought of a node's health; ``waits_for``: what a person has to do. None of it: it was always well."""

    state: str
    since: str | None
    rule: str
    score: float
    attempt: int
    remedy: str
    retest: str
    strikes: int
    waits_for: str
    not_before: str | None
    waits: WaitDoc | None = None


class HealthStepDoc(Answer):
    """One line of a node's story: what it was, what it became, why, on whose word, with which evidence."""

    node: str
    at: str | None
    before: str
    after: str
    why: str
    by: str
    rule: str
    score: float
    attempt: int
    evidence: list[str]
    budget: str


class IdleTestDoc(Answer):
    """A test while nobody needed the node: LIGHT or DEEP, or FABRIC, in pairs; of a whole sweep ``node`` is empty.

    ``values``: check → what it read; ``blamed``: of a sweep, whether NODE, EDGE, LEAF or RAIL.
    """

    node: str
    pool: str
    at: str | None
    kind: str
    status: str
    message: str
    took_ms: int
    values: dict[str, float] = Field(default_factory=dict)
    blamed: list[str] = Field(default_factory=list)


class NodeDoc(Answer):
    """One node. ``version``: its agent's; ``upgrade``: that one is of an older release than the server."""

    name: str
    machine: str
    accelerator: str
    devices: list[DeviceDoc]
    alive: bool
    cordoned: bool
    cordon: CordonDoc | None
    draining: DrainDoc | None
    reservation_id: int | None
    simulated: bool
    cpus: float
    memory_bytes: int
    labels: dict[str, str]
    pool: str
    version: str = ""
    upgrade: bool = False
    health: HealthDoc | None = None


class NodesAnswer(Answer):
    """All nodes, by name."""

    nodes: list[NodeDoc]


class MachineDoc(Answer):
    """The machine of a node. ``boot_id`` names the system that was seen last on it."""

    name: str
    address: str
    network: str = ""
    boot_id: str
    alive: bool
    away_since: str | None = None


class LeaveDoc(Answer):
    """A stop that a run was ordered: why, by whom, and when it is made to go at the latest."""

    reason: str
    by: str
    at: str
    gone_by: str
    message: str


class ResidentDoc(Answer):
    """A run that holds devices of the node."""

    run_id: int
    name: str
    owner: str
    project: str
    attempt: int
    member: int
    phase: str
    devices: list[int]
    leaving: LeaveDoc | None


class NodeAnswer(Answer):
    """One node, its machine, and the runs on it; ``incidents`` and ``slowdowns``: of power and cooling, for a day."""

    node: NodeDoc
    machine: MachineDoc
    runs: list[ResidentDoc]
    story: list[HealthStepDoc] = Field(default_factory=list)
    tests: list[IdleTestDoc] = Field(default_factory=list)
    incidents: list[IncidentDoc] = Field(default_factory=list)
    slowdowns: list[SlowdownDoc] = Field(default_factory=list)


class CordonRequest(Part):
    """``POST /nodes/cordon``."""

    nodes: Names
    reason: Why = ""


class UncordonRequest(Part):
    """``POST /nodes/uncordon``."""

    nodes: Names


class DrainRequest(Part):
    """``POST /nodes/drain``: at once, or so that all are gone at ``deadline_at`` or after ``deadline_s``."""

    nodes: Names
    reason: Why = ""
    deadline_at: Moment | None = None
    deadline_s: Annotated[int, Field(ge=1, le=10 * 366 * 86_400)] | None = None


class ConfirmDeadRequest(Part):
    """``POST /nodes/{name}/confirm-dead``: with ``boot_id`` only if the machine has not been back since."""

    reason: Why = ""
    boot_id: Annotated[str, Field(max_length=200)] = ""


class OperatedDoc(Answer):
    """What it meant for one node; not ``changed``: it was so already. ``node`` null: it is not there just now."""

    name: str
    changed: bool
    message: str
    node: NodeDoc | None


class LeavingDoc(Answer):
    """A run on drained nodes: when it is asked to leave, or was, and when it is made to at the latest."""

    run_id: int
    owner: str
    nodes: list[str]
    asked_at: str
    gone_by: str


class OperatedAnswer(Answer):
    """What was done to each node, and (of a drain) what becomes of the runs there."""

    nodes: list[OperatedDoc]
    runs: list[LeavingDoc]


class ConfirmDeadAnswer(Answer):
    """What the word meant."""

    machine: str
    changed: bool
    message: str
