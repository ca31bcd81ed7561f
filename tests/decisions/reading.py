"""Reads a decision case: a folder with ``cluster.toml``, ``queue.toml`` and ``expected.txt``.

``cluster.toml``: ``[[node]]`` (name, type, pool, fabric, rack, cpus, memory_gib, alive, cordoned or drained: who and
why), ``[[running]]`` (run, class, project, user, holds, since, ends, checkpoint, served, evicted, stopping,
max_loss), ``[[pool]]``, ``[[project]]`` (with ``[[project.share]]``), ``[[reservation]]`` (nodes, from, to,
maintenance, project), ``[[used]]`` (project, pool, hours), ``spent`` (projects whose budget is used up).
``queue.toml``: ``[[run]]`` (run, type, nodes, class, project, user, pool, since, expected, likely, limit, avoid,
not_before, begin, held, served, checkpoint, same_fabric, evicted, left_for).
Times are seconds from now: ``since``, ``checkpoint`` and ``evicted`` count into the past, the others into the future.
Durations (``expected``, ``limit``, ``served``, ``max_loss``) are seconds.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from airyard.core.cluster import Cordon, Drain
from airyard.core.placement import Seat
from airyard.core.policy import (
    Budget,
    Policy,
    PoolOrder,
    PoolPolicy,
    ProjectPolicy,
    Reservation,
    Share,
    Slicing,
    UserLimits,
)
from airyard.core.scheduling.book import Book
from airyard.core.scheduling.listing import in_order
from airyard.core.scheduling.plan import NodeView, Plan, Running, Snapshot, Used, Waiting
from airyard.core.scheduling.waits import refusal_of
from airyard.core.workload import Compute, Priority

CASES = Path(__file__).parent
SECOND_MS = 1000
NOW_MS = 10_000_000_000


def read_case(name: str) -> Snapshot:
    """Build the snapshot of a case."""
    cluster = tomllib.loads((CASES / name / "cluster.toml").read_text(encoding="utf-8"))
    queue = tomllib.loads((CASES / name / "queue.toml").read_text(encoding="utf-8"))
    nodes = tuple(_node(item) for item in cluster.get("node", []))
    return Snapshot(
        seq=1,
        nodes=nodes,
        waiting=tuple(_waiting(item) for item in queue.get("run", [])),
        running=tuple(_running(item, nodes) for item in cluster.get("running", [])),
        policy=Policy(
            pools=tuple(_pool(item) for item in cluster.get("pool", [])),
            projects=tuple(_project(item) for item in cluster.get("project", [])),
        ),
        reservations=tuple(
            _reservation(number, item) for number, item in enumerate(cluster.get("reservation", []), 1)
        ),
        usage=tuple(
            Used(project=item["project"], pool=item["pool"], decayed=item["hours"] * 3600 * SECOND_MS)
            for item in cluster.get("used", [])
        ),
        spent=frozenset(cluster.get("spent", [])),
    )


def _node(item: dict[str, Any]) -> NodeView:
    compute = Compute.of(item["type"])
    total = max(compute.devices_per_node, 1)
    return NodeView(
        name=item["name"],
        machine=item.get("machine", item["name"]),
        accelerator=item["type"],
        model=compute.model,
        pool=item.get("pool", item["type"]),
        total=total,
        devices=tuple(range(total)),
        cpus=item.get("cpus", 32.0),
        memory_bytes=item.get("memory_gib", 256) << 30,
        alive=item.get("alive", True),
        cordoned="cordoned" in item or "drained" in item,
        cordon=_cordon(item),
        simulated=False,
        fabric=item.get("fabric", ""),
        rack=item.get("rack", ""),
    )


def _cordon(item: dict[str, Any]) -> Cordon | None:
    """Read ``cordoned = ["op", "fan"]`` or ``drained``, which is a cordon too; true says nothing of who and why."""
    if isinstance(item.get("drained"), list):
        by, reason = item["drained"]
        drain = Drain(by=by, at_ms=NOW_MS, reason=reason)
        return Cordon(by=by, at_ms=NOW_MS, reason=reason, drain=drain)
    if isinstance(item.get("cordoned"), list):
        by, reason = item["cordoned"]
        return Cordon(by=by, at_ms=NOW_MS, reason=reason)
    return None


def _running(item: dict[str, Any], nodes: tuple[NodeView, ...]) -> Running:
    placed_ms = NOW_MS - item.get("since", 600) * SECOND_MS
    ends_ms = NOW_MS + item.get("ends", 3600) * SECOND_MS
    saved = item.get("checkpoint")
    evicted = item.get("evicted")
    max_loss = item.get("max_loss")
    pools = {node.name: node.pool for node in nodes}
    return Running(
        run_id=item["run"],
        attempt=0,
        rank=Priority(item.get("class", "NORMAL")).rank,
        placed_ms=placed_ms,
        seats=tuple(
            Seat(node=node, machine=node, devices=tuple(devices)) for node, devices in item["holds"].items()
        ),
        stopping=item.get("stopping", False),
        project=item.get("project", "default"),
        owner=item.get("user", ""),
        pool=pools[next(iter(item["holds"]))],
        end_ms=ends_ms,
        late_end_ms=ends_ms,
        safe_ms=placed_ms if saved is None else NOW_MS - saved * SECOND_MS,
        acknowledges=saved is not None,
        served_ms=item.get("served", 0) * SECOND_MS,
        evicted_ms=None if evicted is None else NOW_MS - evicted * SECOND_MS,
        max_loss_ms=None if max_loss is None else max_loss * SECOND_MS,
        evicted=item.get("stopping", False),
    )


def _waiting(item: dict[str, Any]) -> Waiting:
    compute = Compute.of(item["type"], nodes=item.get("nodes", 1))
    expected_ms = item.get("expected", 3600) * SECOND_MS
    limit = item.get("limit")
    return Waiting(
        run_id=item["run"],
        rank=Priority(item.get("class", "NORMAL")).rank,
        queued_ms=NOW_MS - item.get("since", 0) * SECOND_MS,
        accelerator=compute.accelerator,
        model=compute.model,
        devices_per_node=compute.local_world_size,
        nodes=compute.nodes,
        project=item.get("project", "default"),
        owner=item.get("user", ""),
        pool=item.get("pool"),
        same_fabric=item.get("same_fabric", False),
        cpus=item.get("cpus"),
        avoid_nodes=tuple(item.get("avoid", ())),
        not_before_ms=NOW_MS + item["not_before"] * SECOND_MS if "not_before" in item else 0,
        begin_ms=NOW_MS + item["begin"] * SECOND_MS if "begin" in item else 0,
        held=item.get("held", False),
        expected_ms=expected_ms,
        likely_ms=item.get("likely", item.get("expected", 3600)) * SECOND_MS,
        limit_ms=None if limit is None else limit * SECOND_MS,
        served_ms=item.get("served", 0) * SECOND_MS,
        acknowledges="checkpoint" in item or "served" in item,
        evicted_ms=NOW_MS - item["evicted"] * SECOND_MS if "evicted" in item else None,
        left_for=item.get("left_for"),
    )


def _pool(item: dict[str, Any]) -> PoolPolicy:
    slicing = item.get("slicing")
    return PoolPolicy(
        name=item["name"],
        accelerator=item.get("accelerator", item["name"]),
        order=PoolOrder(item.get("order", "predicted")),
        share=item.get("share", True),
        slicing=Slicing() if slicing is True else None,
        ageing_ms=item.get("ageing", 7 * 86_400) * SECOND_MS,
        reservations=item.get("reservations", 8),
    )


def _project(item: dict[str, Any]) -> ProjectPolicy:
    return ProjectPolicy(
        name=item["name"],
        shares=tuple(
            Share(
                pool=share["pool"],
                guarantee=share.get("guarantee", 0),
                ceiling=share.get("ceiling"),
                weight=share.get("weight", 1.0),
            )
            for share in item.get("share", [])
        ),
        budget=Budget(gpu_hours=item["budget"]) if "budget" in item else None,
        per_user=UserLimits(running=item.get("user_runs"), devices=item.get("user_devices")),
        slicing=item.get("slicing"),
    )


def _reservation(number: int, item: dict[str, Any]) -> Reservation:
    return Reservation(
        reservation_id=number,
        nodes=tuple(item["nodes"]),
        from_ms=NOW_MS + item["from"] * SECOND_MS,
        to_ms=NOW_MS + item["to"] * SECOND_MS,
        by="operator",
        maintenance=item.get("maintenance", False),
        project=item.get("project"),
    )


def in_words(snapshot: Snapshot, made: Plan) -> str:
    """Write a plan as people read it: starts, evictions, promises, then the queue with its reasons."""
    lines = []
    for start in made.starts:
        seats = ", ".join(f"{seat.node}[{_span(seat.devices)}]" for seat in start.seats)
        lines.append(f"run {start.run_id} starts on {seats}")
    for one in made.evictions:
        lost = f"{one.lost_ms // 1000} device-seconds"
        lines.append(f"run {one.run_id} is evicted for run {one.for_run} ({one.rule}, loses {lost})")
    for hold in made.holds:
        wait_s = (hold.from_ms - NOW_MS) // 1000
        lines.append(
            f"run {hold.run_id} is promised {hold.devices_per_node} on {', '.join(hold.nodes)} in {wait_s} s"
        )
    started = {start.run_id for start in made.starts}
    wants = {want.run_id: want for want in snapshot.waiting}
    for position, run_id in enumerate(in_order(Book.of(snapshot, NOW_MS), NOW_MS), start=1):
        if run_id not in started:
            found = refusal_of(made, wants[run_id], NOW_MS)
            why = f"{found.reason.value}: {found.message}" if found else "no reason"
            lines.append(f"run {run_id} waits ({position}): {why}")
    return "\n".join(lines) + "\n"


def _span(devices: tuple[int, ...]) -> str:
    whole = devices == tuple(range(devices[0], devices[-1] + 1)) and len(devices) > 1
    return f"{devices[0]}-{devices[-1]}" if whole else ",".join(map(str, devices))
