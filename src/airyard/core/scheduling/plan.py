"""What the planner is given and what it answers.

Owns: the snapshot and the plan as records. Must not know: how they are made or carried out.
All times are milliseconds since 1970 on the server's clock, durations milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from airyard.core.cluster import Cordon
from airyard.core.placement import Seat
from airyard.core.policy import Policy, Reservation


class Reason(Enum):
    """Why a run is not running: the closed list."""

    NO_SUCH_ACCELERATOR = "NO_SUCH_ACCELERATOR"
    CANNOT_SWITCH_USER = "CANNOT_SWITCH_USER"
    EXCEEDS_POOL = "EXCEEDS_POOL"
    PROJECT_CEILING = "PROJECT_CEILING"
    BUDGET = "BUDGET"
    NO_FREE_NODES = "NO_FREE_NODES"
    NO_FABRIC_BLOCK = "NO_FABRIC_BLOCK"
    NODES_UNHEALTHY = "NODES_UNHEALTHY"
    HELD_FOR_RESERVATION = "HELD_FOR_RESERVATION"
    PREEMPTING = "PREEMPTING"
    BACKOFF = "BACKOFF"
    UPSTREAM = "UPSTREAM"
    NOT_YET = "NOT_YET"
    PAUSED = "PAUSED"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node as the planner sees it. ``devices`` are the indexes that no stranger holds; ``total`` counts all."""

    name: str
    machine: str
    accelerator: str
    model: str | None
    pool: str
    total: int
    devices: tuple[int, ...]
    cpus: float
    memory_bytes: int
    alive: bool
    cordoned: bool
    simulated: bool
    fabric: str = ""
    rack: str = ""
    cordon: Cordon | None = None
    """Who cordoned it, when and why."""
    run_as: str = ""
    """See ``cluster.Node``."""
    in_doubt: bool = False
    """Its health is in doubt: gangs keep away from it where they can."""


class Shape(NamedTuple):
    """What a gang asks of nodes: two runs of one shape fit the same places."""

    kind: str
    """The model of its devices, or ``CPU``."""
    devices: int
    """A node."""
    nodes: int
    pool: str | None
    """In lower case; None leaves the choice."""
    same_fabric: bool
    cpus: float
    memory_bytes: int
    unix_user: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A queued run: a gang of ``devices_per_node`` devices on each of ``nodes`` nodes. ``rank`` 0 goes first.

    ``expected_ms`` and ``likely_ms`` are how long it will run from here (p50, p90) as predicted outside the planner.
    ``served_ms`` is the service it has had; ``acknowledges``: it has acknowledged checkpoints, so little is lost
    when it is evicted.
    """

    run_id: int
    rank: int
    queued_ms: int
    accelerator: str
    model: str | None
    devices_per_node: int
    nodes: int
    project: str = "default"
    owner: str = ""
    pool: str | None = None
    same_fabric: bool = False
    cpus: float | None = None
    memory_bytes: int | None = None
    unix_user: str = ""
    """The account that its nodes must be able to start it as; empty takes any node."""
    avoid_nodes: tuple[str, ...] = ()
    not_before_ms: int = 0
    begin_ms: int = 0
    held: bool = False
    expected_ms: int = 3_600_000
    likely_ms: int = 3_600_000
    limit_ms: int | None = None
    grace_ms: int = 120_000
    """What it gets between being asked to leave and being made to."""
    served_ms: int = 0
    acknowledges: bool = False
    evicted_ms: int | None = None
    left_for: int | None = None
    """The run that its last attempt was evicted for."""
    left_by: str = ""
    """By what right: ``priority``, ``reclaim`` or ``slice``."""
    placed_ms: int | None = None
    """When its last attempt was placed."""
    since_ms: int = 0
    """Since when it has been waiting for devices this time: ``queued_ms`` keeps its place, over all attempts."""

    @property
    def shape(self) -> Shape:
        """What it asks of nodes."""
        return Shape(
            self.model or self.accelerator,
            self.devices_per_node,
            self.nodes,
            self.pool.lower() if self.pool else None,
            self.same_fabric,
            self.cpus or 0.0,
            self.memory_bytes or 0,
            self.unix_user,
        )

    @property
    def devices(self) -> int:
        """Devices of the whole gang."""
        return self.devices_per_node * self.nodes

    @property
    def bound_ms(self) -> int:
        """How long it may hold its devices, as far as is known: the likely duration within the limit."""
        return self.likely_ms if self.limit_ms is None else min(self.likely_ms, self.limit_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A live attempt and the seats it still holds. ``stopping``: it is on its way out already.

    ``end_ms`` and ``late_end_ms`` are when it is expected to end (p50, p90); ``limit_end_ms`` when it must.
    ``safe_ms`` is what is lost from when it goes: its newest acknowledged checkpoint, else its start.
    ``evicted_ms`` is when the run was evicted last; ``served_ms`` its service before this attempt;
    ``evicted``: it was asked to leave to make room.
    """

    run_id: int
    attempt: int
    rank: int
    placed_ms: int
    seats: tuple[Seat, ...]
    stopping: bool
    project: str = "default"
    owner: str = ""
    pool: str = ""
    end_ms: int = 0
    late_end_ms: int = 0
    limit_end_ms: int | None = None
    safe_ms: int = 0
    acknowledges: bool = False
    served_ms: int = 0
    evicted_ms: int | None = None
    max_loss_ms: int | None = None
    evicted: bool = False
    leaving_for: int | None = None
    """The run that it was evicted for."""

    @property
    def devices(self) -> int:
        """Devices still held."""
        return sum(len(seat.devices) for seat in self.seats)


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What a project used of a pool: decayed device-milliseconds as of the snapshot."""

    project: str
    pool: str
    decayed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All the planner may look at, taken from the state after journal number ``seq``."""

    seq: int
    nodes: tuple[NodeView, ...]
    waiting: tuple[Waiting, ...]
    running: tuple[Running, ...]
    policy: Policy = field(default_factory=Policy)
    reservations: tuple[Reservation, ...] = ()
    usage: tuple[Used, ...] = ()
    spent: frozenset[str] = frozenset()
    """Projects whose budget of this month is used up and pauses them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Place this run now, all seats at once, in the order of their node rank."""

    run_id: int
    seats: tuple[Seat, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """Ask this attempt to leave, so that ``for_run`` can be placed. ``rule`` says by what right."""

    run_id: int
    attempt: int
    for_run: int
    rule: str = "priority"
    """``priority``, ``reclaim`` (a guarantee is asked back) or ``slice`` (a younger run gets its first slice)."""
    lost_ms: int = 0
    """Device-milliseconds of work that it has not saved."""


class GroupKey(NamedTuple):
    """Runs of one group are served in the order of their keys, and one reason holds for all of them."""

    shape: Shape
    rank: int
    project: str
    owner: str
    """Empty unless the project limits its users."""
    sliced: bool
    """It has had its first slice, by the rules of the pool that serves it first."""
    avoid_nodes: tuple[str, ...]
    claims: bool = False
    """Others were evicted for it: what they leave is its own before anybody of its class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a group of waiting runs is not placed by this plan; ``run_id`` is the first that was refused."""

    run_id: int
    reason: Reason
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Devices promised to a blocked run: so many on each of these nodes from ``from_ms`` on."""

    run_id: int
    nodes: tuple[str, ...]
    devices_per_node: int
    from_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every waiting run is started, or has a reason by itself or with its group or shape, or is parked.

    ``wake_ms`` is the next time at which the same snapshot may lead to another plan; None is never.
    """

    seq: int
    made_ms: int = 0
    starts: tuple[Start, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    refusals: Mapping[GroupKey, Refusal] = field(default_factory=dict)
    of_shapes: Mapping[Shape, Refusal] = field(default_factory=dict)
    """For groups that are not among ``refusals``: they were not tried, because none of their shape could start."""
    of_runs: Mapping[int, Refusal] = field(default_factory=dict)
    """For the runs of ``kept``: what they wait for is on its way."""
    kept: tuple[Hold, ...] = ()
    """What is kept, from now on, for runs that start as soon as others have left."""
    holds: tuple[Hold, ...] = ()
    wake_ms: int | None = None
