"""Machines, nodes and devices: what the yard consists of.

Owns: the facts about capacity. Must not know: who uses it (that is ``run.py``) or how it was found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator (or one CPU slot). ``owner`` names a stranger that holds it: such a device is not booked."""

    index: int
    uuid: str
    owner: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A schedulable unit of one machine: its devices of one model, and its share of CPU and memory.

    ``model`` is None for a CPU slot. Which pool it is in says the policy (``Policy.pool_of``).
    """

    name: str
    machine: str
    accelerator: str
    model: str | None
    devices: tuple[Device, ...]
    cpus: float
    memory_bytes: int
    simulated: bool = False
    labels: Mapping[str, str] | None = None
    cordoned: bool = False
    run_as: str = ""
    """As whom its agent starts members: ``*`` as anybody, else the one Unix account that it runs as itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """An operator's wish that a node become empty: who is on it is asked to leave."""

    by: str
    at_ms: int
    reason: str = ""
    deadline_ms: int | None = None
    """When all have to be gone; None: they are asked to leave at once, each with its own grace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:
    """Why a node takes no new members, who said so, and since when. It outlives the node's absence."""

    by: str
    at_ms: int
    reason: str = ""
    drain: Drain | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One operating system instance; its agent hosts the nodes that name it.

    ``alive`` is the engine's word; a machine that is away keeps its bookings until death is proved.
    """

    name: str
    boot_id: str
    address: str
    alive: bool = True
    network: str = ""
    """Its network in words: ``RDMA 8 × 400G InfiniBand``, ``TCP only: why``; empty when its agent is old."""
    version: str = ""
    """The release of Airyard that its agent is of; empty until it was heard."""
    away_ms: int = 0
    """Since when it is away; 0 where that is not known."""
