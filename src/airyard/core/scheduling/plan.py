"""What the planner is given and what it answers.

Owns: the snapshot and the plan as records. Must not know: how they are made or carried out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from airyard.core.placement import Seat


class Reason(Enum):
    """Why a run is not running: the closed list."""

    NO_SUCH_ACCELERATOR = "NO_SUCH_ACCELERATOR"
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
    """A node as the planner sees it: which of its devices nobody holds."""

    name: str
    machine: str
    accelerator: str
    model: str | None
    pool: str
    total: int
    free: tuple[int, ...]
    cpus: float
    memory_bytes: int
    alive: bool
    cordoned: bool
    simulated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A queued run: a gang of ``devices_per_node`` devices on each of ``nodes`` nodes. ``rank`` 0 goes first."""

    run_id: int
    rank: int
    queued_ms: int
    accelerator: str
    model: str | None
    devices_per_node: int
    nodes: int
    pool: str | None
    same_fabric: bool
    cpus: float | None
    memory_bytes: int | None
    avoid_nodes: tuple[str, ...]
    not_before_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A live attempt and the seats it still holds. ``stopping``: it is on its way out already."""

    run_id: int
    attempt: int
    rank: int
    placed_ms: int
    seats: tuple[Seat, ...]
    stopping: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All the planner may look at, taken from the state after journal number ``seq``."""

    seq: int
    nodes: tuple[NodeView, ...]
    waiting: tuple[Waiting, ...]
    running: tuple[Running, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Place this run now, all seats at once, in the order of their node rank."""

    run_id: int
    seats: tuple[Seat, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """Ask this attempt to leave, so that ``for_run`` can be placed."""

    run_id: int
    attempt: int
    for_run: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a waiting run is not placed by this plan. ``position`` counts from 1 in the order of the queue."""

    run_id: int
    reason: Reason
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    position: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every waiting run is either started or refused with a reason."""

    seq: int
    starts: tuple[Start, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    refusals: tuple[Refusal, ...] = ()
