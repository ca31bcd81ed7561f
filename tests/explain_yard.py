"""Small yards to explain: nodes of eight H100 (``n0``, ``n1``, ...), a pool ``h100``, times in minutes from now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airyard.core.placement import Seat
from airyard.core.policy import Policy, PoolPolicy, ProjectPolicy, Reservation
from airyard.core.scheduling.book import Book
from airyard.core.scheduling.plan import NodeView, Running, Snapshot, Waiting

NOW_MS = 10_000_000_000
MINUTE_MS = 60_000
POOL = "h100"


def at(minutes: float) -> int:
    """Return a time so many minutes from now."""
    return NOW_MS + round(minutes * MINUTE_MS)


def minutes(at_ms: int) -> float:
    """Return how many minutes from now a time is."""
    return (at_ms - NOW_MS) / MINUTE_MS


def node(name: str, devices: int = 8, **changes: Any) -> NodeView:
    """Return an open node of the pool."""
    whole: dict[str, Any] = {
        "name": name,
        "machine": name,
        "accelerator": f"GPU_{devices}xH100",
        "model": "H100",
        "pool": POOL,
        "total": devices,
        "devices": tuple(range(devices)),
        "cpus": 64.0,
        "memory_bytes": 1 << 40,
        "alive": True,
        "cordoned": False,
        "simulated": False,
    }
    return NodeView(**{**whole, **changes})


def waits(
    run_id: int, devices: int = 8, nodes: int = 1, *, lasts: float = 60, queued: float = -10, **changes: Any
) -> Waiting:
    """Return a waiting run that lasts so many minutes."""
    lasts_ms = round(lasts * MINUTE_MS)
    whole: dict[str, Any] = {
        "run_id": run_id,
        "rank": 1,
        "queued_ms": at(queued),
        "accelerator": f"GPU_{devices}xH100",
        "model": "H100",
        "devices_per_node": devices,
        "nodes": nodes,
        "owner": "ada",
        "expected_ms": lasts_ms,
        "likely_ms": lasts_ms,
    }
    return Waiting(**{**whole, **changes})


def runs(
    run_id: int, holds: Mapping[str, Iterable[int]], *, ends: float = 60, placed: float = -120, **changes: Any
) -> Running:
    """Return a live attempt on these devices."""
    whole: dict[str, Any] = {
        "run_id": run_id,
        "attempt": 0,
        "rank": 1,
        "placed_ms": at(placed),
        "seats": tuple(Seat(node=name, machine=name, devices=tuple(found)) for name, found in holds.items()),
        "stopping": False,
        "owner": "bob",
        "pool": POOL,
        "end_ms": at(ends),
        "late_end_ms": at(ends),
        "safe_ms": at(placed),
    }
    return Running(**{**whole, **changes})


def reserved(number: int, nodes: Iterable[str], begin: float, end: float, **changes: Any) -> Reservation:
    """Return a maintenance of nodes."""
    whole: dict[str, Any] = {"maintenance": True, "by": "operator", **changes}
    return Reservation(reservation_id=number, nodes=tuple(nodes), from_ms=at(begin), to_ms=at(end), **whole)


def yard(
    nodes: int | Iterable[NodeView],
    waiting: Iterable[Waiting] = (),
    running: Iterable[Running] = (),
    *,
    projects: Iterable[ProjectPolicy] = (),
    pool: Mapping[str, Any] | None = None,
    **more: Any,
) -> Snapshot:
    """Return a snapshot; ``nodes``: how many of eight devices, or the nodes themselves."""
    views = [node(f"n{index}") for index in range(nodes)] if isinstance(nodes, int) else nodes
    rules = {"name": POOL, "accelerator": "GPU_8xH100", **(pool or {})}
    return Snapshot(
        seq=1,
        nodes=tuple(views),
        waiting=tuple(waiting),
        running=tuple(running),
        policy=Policy(pools=(PoolPolicy(**rules),), projects=tuple(projects)),
        **more,
    )


def book_of(snapshot: Snapshot) -> Book:
    """Return the book of a snapshot."""
    return Book.of(snapshot, NOW_MS)
